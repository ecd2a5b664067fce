/* Keys and their labels, keys that are replaced while requests run, and the access log: its lines, what hostile texts
 * become in them, clients that leave, and a reader of lines that is slow. */
#include "serve/place.h"

#include "serve/access.h"
#include "serve/keys.h"

/* The lines that a server has logged. */
struct lines {
  pthread_mutex_t lock;
  pthread_cond_t go;
  char *text;
  size_t bytes;
  bool stuck;
};

static void on_lines(void *user, const char *lines, size_t bytes) {
  struct lines *x = user;
  pthread_mutex_lock(&x->lock);
  assert_int_equal(strlen(lines), bytes);
  assert_int_equal(lines[bytes - 1], '\n');
  x->text = realloc(x->text, x->bytes + bytes + 1);
  memcpy(x->text + x->bytes, lines, bytes + 1);
  x->bytes += bytes;
  while (x->stuck) pthread_cond_wait(&x->go, &x->lock);
  pthread_mutex_unlock(&x->lock);
}

static void lines_open(struct lines *x) {
  *x = (struct lines){.text = strdup("")};
  pthread_mutex_init(&x->lock, NULL);
  pthread_cond_init(&x->go, NULL);
}

static void lines_close(struct lines *x) {
  pthread_cond_destroy(&x->go);
  pthread_mutex_destroy(&x->lock);
  free(x->text);
}

/* The line of number i, once it is there; every line must be an object of printable ASCII. */
static json_t *line_at(struct lines *x, int i) {
  for (int tries = 0; tries < 500; tries++) {
    pthread_mutex_lock(&x->lock);
    const char *at = x->text;
    for (int k = 0; k < i && at; k++) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    const char *end = at ? strchr(at, '\n') : NULL;
    char *line = end ? strndup(at, (size_t)(end - at)) : NULL;
    pthread_mutex_unlock(&x->lock);
    if (line) {
      for (const char *c = line; *c; c++) assert_true(*c >= ' ' && *c < 0x7f);
      json_t *out = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
      if (!out) fail_msg("not JSON: %s", line);
      free(line);
      return out;
    }
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  fail_msg("no line %d: %s", i, x->text);
  return NULL;
}

/* "k": v of a line as text. */
static void expect(const json_t *line, const char *key, const char *expected) {
  char *found = json_dumps(json_object_get(line, key), JSON_ENCODE_ANY);
  if (!found || strcmp(found, expected) != 0)
    fail_msg("%s: %s, expected %s", key, found ? found : "not there", expected);
  free(found);
}

static double number(const json_t *line, const char *key) {
  assert_true(json_is_number(json_object_get(line, key)));
  return json_number_value(json_object_get(line, key));
}

static void test_lines(void **state) {
  (void)state;
  struct place p;
  struct lines x;
  lines_open(&x);
  open_place(&p, &(wn_server_options){.access = on_lines, .access_user = &x, .api_key = "one # Ann\ntwo", .name = "m"});
  static const char *const key = "Authorization: Bearer one\r\n";
  const double began = (double)time(NULL);
  char *request =
      request_of("POST", "/v1/completions", "{\"prompt\":\"The water\",\"max_tokens\":5,\"n\":2,\"seed\":1}", key);
  char *answer = ask(p.port, request);
  json_t *body = json_of(answer), *line = line_at(&x, 0);
  assert_string_equal(json_string_value(json_object_get(line, "id")), json_string_value(json_object_get(body, "id")));
  expect(line, "method", "\"POST\"");
  expect(line, "path", "\"/v1/completions\"");
  expect(line, "status", "200");
  expect(line, "key", "\"Ann\"");
  expect(line, "model", "\"m\"");
  expect(line, "prompt_tokens", "9");
  expect(line, "cached_tokens", "0");
  expect(line, "completion_tokens", "10");
  expect(line, "finish_reason", "\"length\"");
  expect(line, "client_gone", "false");
  assert_int_equal(json_object_size(line), 14);
  assert_true(number(line, "first_token_seconds") > 0 &&
              number(line, "seconds") >= number(line, "first_token_seconds"));
  struct tm t = {0};
  int milliseconds;
  assert_int_equal(sscanf(json_string_value(json_object_get(line, "time")), "%d-%d-%dT%d:%d:%d.%3dZ", &t.tm_year,
                          &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, &milliseconds),
                   7);
  t.tm_year -= 1900, t.tm_mon--;
  assert_true(fabs((double)timegm(&t) - began) < 60);
  json_decref(line), json_decref(body);
  free(answer), free(request);
  request = request_of("GET", "/v1/models/%0a%22%c2%9b%ff\\", "",
                       "Authorization: Bearer two\r\n"); /* a C1 control; no UTF-8 */
  free(ask(p.port, request)), free(request);
  line = line_at(&x, 1);
  assert_string_equal(json_string_value(json_object_get(line, "path")), "/v1/models/\n\"\xC2\x9B\xEF\xBF\xBD\\");
  expect(line, "status", "404");
  expect(line, "key", "\"line 2\"");
  expect(line, "id", "null");
  expect(line, "completion_tokens", "null");
  expect(line, "first_token_seconds", "null");
  json_decref(line);
  request = request_of("POST", "/v1/completions", "{}", "Authorization: Bearer three\r\n");
  free(ask(p.port, request)), free(request);
  line = line_at(&x, 2);
  expect(line, "status", "401");
  expect(line, "key", "null");
  json_decref(line);
  request = request_of("POST", "/v1/completions", "{\"prompt\":1}", key);
  free(ask(p.port, request)), free(request);
  line = line_at(&x, 3);
  expect(line, "status", "400");
  json_decref(line);
  assert_null(strstr(x.text, "three"));
  close_place(&p);
  lines_close(&x);
}

/* A response's id lets who knows it read the response. */
static void test_responses(void **state) {
  (void)state;
  struct place p;
  struct lines x;
  char path[200];
  lines_open(&x);
  open_chat(&p, "{% for m in messages %}{{ m.content }}{% endfor %}",
            &(wn_server_options){.access = on_lines, .access_user = &x});
  char *answer = post(p.port, "/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":3}");
  json_t *body = json_of(answer), *line = line_at(&x, 0);
  const char *id = json_string_value(json_object_get(body, "id")),
             *logged = json_string_value(json_object_get(line, "id"));
  assert_true(strlen(id) == 5 + 32 && strlen(logged) == 5 + 16 && !strncmp(id, logged, 5 + 16));
  json_decref(line);
  snprintf(path, sizeof path, "/v1/responses/%s", id);
  free(answer);
  answer = ask_for(p.port, "GET", path);
  assert_int_equal(status_of(answer), 200);
  line = line_at(&x, 1);
  path[strlen("/v1/responses/") + 5 + 16] = 0;
  assert_string_equal(json_string_value(json_object_get(line, "path")), path);
  assert_null(strstr(x.text, id));
  json_decref(line), json_decref(body);
  free(answer);
  close_place(&p);
  lines_close(&x);
}

static int begin(int port, const char *body) {
  char *request = request_of("POST", "/v1/completions", body, NULL);
  const int s = ask_connect(port);
  assert_int_equal(send(s, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  free(request);
  return s;
}

static void test_gone(void **state) {
  (void)state;
  struct place p;
  struct lines x;
  lines_open(&x);
  open_place_of(&p, 4000, &(wn_server_options){.access = on_lines, .access_user = &x, .slots = 1, .timeout = 3});
  for (int stream = 0; stream < 2; stream++) {
    const int s = begin(p.port, stream ? "{\"prompt\":\"a\",\"max_tokens\":3900,\"stream\":true}"
                                       : "{\"prompt\":\"a\",\"max_tokens\":3900}");
    wait_for(p.port, "running", 1);
    close(s);
    wait_for(p.port, "requests", 0);
  }
  int found = 0, i = 0;
  for (; found < 2; i++) { /* among the lines of /slots */
    json_t *line = line_at(&x, i);
    if (!strcmp(json_string_value(json_object_get(line, "path")), "/v1/completions")) {
      expect(line, "client_gone", "true");
      expect(line, "finish_reason", "\"cancelled\"");
      expect(line, "prompt_tokens", "1");
      assert_true(number(line, "completion_tokens") < 3900);
      found++;
    }
    json_decref(line);
  }
  free(ask_read(begin(p.port, "{\"prompt\":\"a\",\"max_tokens\":3900,\"n\":100}")));
  json_t *line = NULL;
  do {
    json_decref(line);
    line = line_at(&x, i++);
  } while (strcmp(json_string_value(json_object_get(line, "path")), "/v1/completions") != 0);
  expect(line, "finish_reason", "\"timeout\"");
  expect(line, "status", "504");
  expect(line, "client_gone", "false");
  json_decref(line);
  close_place(&p);
  lines_close(&x);
}

/* While the reader of lines is stuck the server answers; what was dropped is counted, and no line is cut. */
static void test_slow_reader(void **state) {
  (void)state;
  enum { REQUESTS = 3000 };
  struct lines x;
  struct wn_access_log *log;
  wn_context *ctx = context_of("cpu", 1);
  char path[300];
  lines_open(&x);
  OK(ctx, wn_access_log_start(ctx, on_lines, &x, &log));
  x.stuck = true;
  memset(path, 'a', sizeof path);
  path[sizeof path - 1] = 0;
  for (int i = 0; i < REQUESTS; i++) {
    struct wn_access *a = wn_access_open(log, "GET", path), *held = wn_access_hold(a);
    wn_access_job(held, &(struct wn_access_job){.id = "x", .model = "m", .end = "stop"});
    wn_access_close(a, 200, 0, false);
  }
  pthread_mutex_lock(&x.lock);
  x.stuck = false;
  pthread_cond_signal(&x.go);
  pthread_mutex_unlock(&x.lock);
  wn_access_log_stop(log);
  json_int_t lines = 0, dropped = 0;
  for (const char *at = x.text; *at; at = strchr(at, '\n') + 1) lines++;
  for (int i = 0; i < lines; i++) {
    json_t *line = line_at(&x, i);
    const json_int_t more = json_integer_value(json_object_get(line, "dropped"));
    if (!more) assert_int_equal(json_string_length(json_object_get(line, "path")), WN_ACCESS_PATH - 1);
    dropped += more ? more - 1 : 0; /* that line itself is no request's */
    json_decref(line);
  }
  assert_true(dropped > 100);
  assert_int_equal(lines + dropped, REQUESTS);
  wn_context_destroy(ctx);
  lines_close(&x);
}

static bool admits(struct wn_keys *keys, const char *header, const char *expected) {
  char label[WN_KEY_LABEL];
  const bool admitted = wn_keys_admit(keys, header, label);
  if (admitted && strcmp(label, expected) != 0) fail_msg("%s: label \"%s\", expected \"%s\"", header, label, expected);
  return admitted;
}

static void test_keys(void **state) {
  (void)state;
  struct wn_keys keys;
  wn_context *ctx = context_of("cpu", 1);
  char longest[WN_KEY_BYTES + 9] = "";
  wn_keys_open(&keys);
  assert_true(admits(&keys, NULL, ""));
  OK(ctx, wn_keys_set(ctx, &keys, "# the keys\r\n\r\n a \nb c#d\t#  Eve  \r\nlast # \n"));
  assert_true(admits(&keys, "Bearer  a", "line 3") && admits(&keys, "Bearer b c#d", "Eve"));
  assert_true(admits(&keys, "Bearer last", "line 5"));
  static const char *const others[] = {NULL,
                                       "",
                                       "Bearer",
                                       "Bearer ",
                                       "a",
                                       "bearer b c#d",
                                       "Bearer b c#",
                                       "Bearer b c#dd",
                                       "Bearer las",
                                       "Bearer lastlast",
                                       "Bearer # the keys",
                                       "Bearer b c"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(admits(&keys, others[i], ""));
  memset(longest, 'k', WN_KEY_BYTES + 1);
  assert_refused(ctx, wn_keys_set(ctx, &keys, longest), WN_ERR_ARGUMENT,
                 "line 1 of the keys: a key has 1 to 256 bytes");
  assert_refused(ctx, wn_keys_set(ctx, &keys, "x # X\n\nx\n"), WN_ERR_ARGUMENT,
                 "line 3 of the keys: the key labelled \"X\"");
  static const char *const none[] = {"", "\n", "# a", "  # a\n\t\n"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    assert_refused(ctx, wn_keys_set(ctx, &keys, none[i]), WN_ERR_ARGUMENT, "there is no key");
  assert_true(admits(&keys, "Bearer last", "line 5")); /* the old ones have stayed */
  longest[WN_KEY_BYTES] = 0;
  OK(ctx, wn_keys_set(ctx, &keys, longest));
  assert_false(admits(&keys, "Bearer last", ""));
  wn_keys_close(&keys);
  wn_context_destroy(ctx);
}

/* A key is exchanged during an answer, which goes on. */
static void test_exchange(void **state) {
  (void)state;
  struct place p;
  open_place_of(&p, 4000, &(wn_server_options){.api_key = "old"});
  char *request = request_of("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1500,\"stream\":true}",
                             "Authorization: Bearer old\r\n");
  const int s = ask_connect(p.port);
  char first;
  assert_int_equal(send(s, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  assert_int_equal(read(s, &first, 1), 1); /* the answer has begun */
  assert_int_equal(wn_server_set_keys(p.own, p.server, "#"), WN_ERR_ARGUMENT);
  OK(p.own, wn_server_set_keys(p.own, p.server, "new"));
  char *again = ask(p.port, request);
  assert_int_equal(status_of(again), 401);
  free(again), free(request);
  request =
      request_of("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", "Authorization: Bearer new\r\n");
  again = ask(p.port, request);
  assert_int_equal(status_of(again), 200);
  free(again), free(request);
  char *whole = ask_read(s);
  assert_non_null(strstr(whole, "data: [DONE]"));
  free(whole);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys),  cmocka_unit_test(test_exchange),
                                     cmocka_unit_test(test_lines), cmocka_unit_test(test_responses),
                                     cmocka_unit_test(test_gone),  cmocka_unit_test(test_slow_reader)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
