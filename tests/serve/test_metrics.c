/* What Prometheus reads: every family has one head, histograms are cumulative and end at their count, times are those
 * that were taken, and caches are counted by policy. */
#include "serve/place.h"

#include "serve/metrics.h"

enum { SERIES = 400 };

/* The text, read as Prometheus reads it. */
struct scrape {
  char *answer;
  struct {
    char name[300]; /* with its labels */
    double value;
  } series[SERIES];
  int count;
};

static bool is_name(const char *text, size_t n) {
  return n > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyz_0123456789:") >= n && !(*text >= '0' && *text <= '9');
}

/* Reads one line of values after a family's head. */
static void scrape_line(struct scrape *s, const char *line, size_t n, const char *family, bool histogram) {
  const size_t name = strcspn(line, "{ ");
  const char *space = line[name] == '{' ? strstr(line, "} ") : line + name;
  if (!is_name(line, name) || !space || space >= line + n) fail_msg("%.*s", (int)n, line);
  if (*space == '}') space++;
  char *end;
  const double value = strtod(space + 1, &end);
  assert_ptr_equal(end, line + n);
  const size_t f = strlen(family);
  assert_true(!strncmp(line, family, f));
  if (histogram)
    assert_true(!strncmp(line + f, "_bucket{", 8) || !strncmp(line + f, "_sum", 4) || !strncmp(line + f, "_count", 6));
  else
    assert_int_equal(name, f);
  assert_true(s->count < SERIES && space - line < 300);
  snprintf(s->series[s->count].name, 300, "%.*s", (int)(space - line), line);
  for (int i = 0; i < s->count; i++) assert_string_not_equal(s->series[i].name, s->series[s->count].name);
  s->series[s->count++].value = value;
}

static void scrape(int port, struct scrape *s) {
  char family[200] = "", type[20] = "";
  s->count = 0;
  s->answer = ask_for(port, "GET", "/metrics");
  assert_int_equal(status_of(s->answer), 200);
  assert_non_null(strstr(s->answer, "text/plain; version=0.0.4"));
  for (const char *line = ask_body(s->answer), *next; *line; line = next) {
    const size_t n = strcspn(line, "\n");
    assert_int_equal(line[n], '\n');
    next = line + n + 1;
    if (!strncmp(line, "# HELP ", 7)) {
      assert_int_equal(sscanf(line + 7, "%199s", family), 1);
      type[0] = 0;
    } else if (!strncmp(line, "# TYPE ", 7)) {
      char again[200];
      assert_int_equal(sscanf(line + 7, "%199s %19s", again, type), 2);
      assert_string_equal(again, family);
      assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") || !strcmp(type, "histogram"));
      assert_true(strcmp(type, "counter") != 0 || !strcmp(family + strlen(family) - 6, "_total"));
    } else {
      scrape_line(s, line, n, family, !strcmp(type, "histogram"));
    }
  }
}

static double value_of(const struct scrape *s, const char *name) {
  for (int i = 0; i < s->count; i++)
    if (!strcmp(s->series[i].name, name)) return s->series[i].value;
  fail_msg("no %s", name);
  return 0;
}

/* The count of a histogram, whose buckets must be cumulative, with bounds that grow, up to +Inf. */
static double histogram_of(const struct scrape *s, const char *name, double *sum) {
  char prefix[200], line[220];
  double before = -1, last = 0, bound = -1;
  int buckets = 0;
  snprintf(prefix, sizeof prefix, "%s_bucket{le=\"", name);
  for (int i = 0; i < s->count; i++) {
    if (strncmp(s->series[i].name, prefix, strlen(prefix)) != 0) continue;
    before = bound;
    bound = strtod(s->series[i].name + strlen(prefix), NULL);
    assert_true(bound > before && s->series[i].value >= last);
    last = s->series[i].value;
    buckets++;
  }
  assert_true(buckets > 10 && isinf(bound));
  snprintf(line, sizeof line, "%s_count", name);
  assert_true(value_of(s, line) == last);
  snprintf(line, sizeof line, "%s_sum", name);
  *sum = value_of(s, line);
  return last;
}

/* The caches are counted again after a round: waits until these hold nothing. Leaves the last answer. */
static void scrape_empty(int port, struct scrape *s, const char *policy) {
  char bytes[100], tokens[100];
  snprintf(bytes, sizeof bytes, "winnow_policy_cache_bytes{policy=\"%s\"}", policy);
  snprintf(tokens, sizeof tokens, "winnow_policy_cache_tokens{policy=\"%s\"}", policy);
  for (int i = 0; i < 500; i++) {
    scrape(port, s);
    if (value_of(s, bytes) == 0 && value_of(s, tokens) == 0) return;
    free(s->answer);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  fail_msg("%s: not empty", policy);
}

static void test_histogram(void **state) {
  (void)state;
  struct wn_serve_counts counts[2] = {{0}};
  struct wn_text out = {0};
  static const double values[] = {0, 0.001, 0.0011, 2, 1e6};
  static const char *const names[] = {"a\"b\\c\nd", "e"};
  for (int i = 0; i < 5; i++) wn_histogram_add(&counts[0].times[WN_TIME_GAP], values[i]);
  counts[1].running = 3;
  wn_metrics_text(&out, counts, names, 2);
  static const char *const lines[] = {"_bucket{model=\"a\\\"b\\\\c\\nd\",le=\"0.001\"} 2",
                                      "_bucket{model=\"a\\\"b\\\\c\\nd\",le=\"0.0025\"} 3",
                                      "_bucket{model=\"a\\\"b\\\\c\\nd\",le=\"2.5\"} 4",
                                      "_bucket{model=\"a\\\"b\\\\c\\nd\",le=\"1000\"} 4",
                                      "_bucket{model=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 5",
                                      "_count{model=\"a\\\"b\\\\c\\nd\"} 5",
                                      "_count{model=\"e\"} 0"};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    char line[200];
    snprintf(line, sizeof line, "\nwinnow_inter_token_latency_seconds%s\n", lines[i]);
    if (!strstr(out.data, line)) fail_msg("no %s in %s", line, out.data);
  }
  assert_non_null(strstr(out.data, "\nwinnow_answers_running{model=\"e\"} 3\n"));
  wn_free(out.data);
}

static void test_times(void **state) {
  (void)state;
  static const char *const times[] = {"winnow_time_to_first_token_seconds", "winnow_inter_token_latency_seconds",
                                      "winnow_request_queue_time_seconds", "winnow_e2e_request_latency_seconds"};
  static const double counts[] = {2, 9 + 3 * 4, 3, 3};
  struct place p;
  struct scrape *s = malloc(sizeof *s);
  double sum[4];
  open_place(&p, &(wn_server_options){.slots = 4});
  scrape(p.port, s);
  for (int i = 0; i < 4; i++) assert_true(histogram_of(s, times[i], &sum[i]) == 0 && sum[i] == 0);
  free(s->answer);
  free(post(p.port, "/v1/completions", "{\"prompt\":\"The water\",\"max_tokens\":10}"));
  free(post(p.port, "/v1/completions", "{\"prompt\":\"The water\",\"max_tokens\":5,\"n\":3,\"seed\":1}"));
  free(post(p.port, "/v1/embeddings", "{\"input\":\"The water\"}")); /* has no tokens */
  wait_for(p.port, "requests", 0);
  scrape_empty(p.port, s, "none");
  for (int i = 0; i < 4; i++) {
    const double count = histogram_of(s, times[i], &sum[i]);
    if (count != counts[i]) fail_msg("%s: %g, expected %g", times[i], count, counts[i]);
    assert_true(sum[i] > 0);
  }
  /* a request takes at least the time to its first token, and that at least the time in the queue */
  assert_true(sum[3] >= sum[0] && sum[0] > 0 && sum[3] >= sum[2]);
  free(s->answer);
  free(s);
  close_place(&p);
}

/* The gauges while two requests with different policies are being answered, as seen from outside. */
static void test_policies(void **state) {
  (void)state;
  static const char *const bodies[] = {
      "{\"prompt\":\"a\",\"max_tokens\":3900,\"stream\":true}",
      "{\"prompt\":\"a\",\"max_tokens\":3900,\"stream\":true,\"winnow\":{\"budgets\":7,"
      "\"policy\":\"h2o\"}}"};
  struct place p;
  struct scrape *s = malloc(sizeof *s);
  int sockets[2];
  bool seen = false;
  open_place_of(&p, 4000, NULL);
  for (int i = 0; i < 2; i++) {
    char *request = request_of("POST", "/v1/completions", bodies[i], NULL);
    sockets[i] = ask_connect(p.port);
    assert_int_equal(send(sockets[i], request, strlen(request), MSG_NOSIGNAL), strlen(request));
    free(request);
  }
  for (int i = 0; i < 500 && !seen; i++) {
    scrape(p.port, s);
    const double none = value_of(s, "winnow_policy_cache_tokens{policy=\"none\"}"),
                 h2o = value_of(s, "winnow_policy_cache_tokens{policy=\"h2o\"}");
    assert_true(h2o <= 7);
    seen = none > 20 && h2o == 7;
    if (seen) {
      const double a = value_of(s, "winnow_policy_cache_bytes{policy=\"none\"}"),
                   b = value_of(s, "winnow_policy_cache_bytes{policy=\"h2o\"}");
      assert_true(a > 10 * b && b > 0 && a + b == value_of(s, "winnow_cache_bytes"));
      assert_true(value_of(s, "winnow_policy_cache_tokens{policy=\"window\"}") == 0);
    }
    free(s->answer);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  assert_true(seen);
  close(sockets[0]), close(sockets[1]);
  wait_for(p.port, "requests", 0);
  scrape_empty(p.port, s, "h2o");
  assert_true(histogram_of(s, "winnow_e2e_request_latency_seconds", &(double){0}) == 0); /* nobody waited for the end */
  assert_true(value_of(s, "winnow_requests_cancelled_total") == 2);
  free(s->answer);
  free(s);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_histogram), cmocka_unit_test(test_times),
                                     cmocka_unit_test(test_policies)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
