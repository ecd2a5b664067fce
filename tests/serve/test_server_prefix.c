/* The server's prefix cache: answers equal the library's, which knows no other prompt; what is reported about it; and
 * that it gives up its memory to answers. */
#include "serve/place.h"
#include "policies.h"

enum { LONG = 900 };

static char *prompt_text(int64_t count, uint64_t seed) {
  char *out = malloc((size_t)count + 1);
  for (int64_t i = 0; i < count; i++) out[i] = (char)('a' + wn_random_below(seed, WN_STREAM_TEST, 8, (uint64_t)i, 26));
  out[count] = 0;
  return out;
}

static json_int_t number_at(const char *answer, const char *a, const char *b) {
  json_t *j = json_of(answer);
  const json_t *x = json_object_get(json_object_get(json_object_get(j, "usage"), a), b);
  if (!json_is_integer(x)) fail_msg("no usage.%s.%s: %s", a, b, answer);
  const json_int_t out = json_integer_value(x);
  json_decref(j);
  return out;
}

static long long metric(int port, const char *name) {
  char *answer = ask_for(port, "GET", "/metrics"), line[100];
  snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(answer, line);
  if (!at) fail_msg("no metric %s", name);
  const long long out = atoll(at + strlen(line));
  free(answer);
  return out;
}

static char *complete(int port, const char *prompt, const char *more) {
  char *body;
  assert_true(asprintf(&body, "{\"prompt\":\"%s\",\"max_tokens\":20,\"temperature\":0.8,\"seed\":4%s}", prompt, more) >
              0);
  char *answer = post(port, "/v1/completions", body);
  free(body);
  return answer;
}

/* Sends a prompt's first `n` characters. The answer must be the library's, with this many tokens found in the cache. */
static void expect(const struct place *p, const char *text, int64_t n, const char *policy, const char *budget,
                   json_int_t cached) {
  char *prompt = strndup(text, (size_t)n), more[200] = "";
  struct written expected;
  wn_budgets b;
  budgets_init(&b);
  if (policy) assert_int_equal(wn_policy_find(NULL, policy, &b.policy), WN_OK);
  if (policy) OK(p->own, wn_budgets_parse(p->own, wn_model_config_get(p->same), budget, &b));
  if (policy) snprintf(more, sizeof more, ",\"winnow\":{\"budgets\":\"%s\",\"policy\":\"%s\"}", budget, policy);
  write_alone(p, prompt, 20, 0.8, 4, policy ? &b : NULL, &expected);
  char *answer = complete(p->port, prompt, more), *found = text_of(answer, 0);
  assert_string_equal(found, expected.text);
  assert_int_equal(number_at(answer, "prompt_tokens_details", "cached_tokens"), cached);
  assert_int_equal(number_at(answer, "winnow", "cached_tokens"), cached);
  wn_budgets_clear(&b);
  free(answer), free(found), free(prompt);
}

/* A growing conversation, and prompts that share their first 300 tokens. */
static void test_patterns(void **state) {
  (void)state;
  static const struct {
    const char *policy, *budget;
  } kinds[] = {{NULL, NULL}, {"h2o", "32"}, {"streaming", "40,64"}, {"snapkv", "48"}};
  struct place p;
  open_place_of(&p, LONG, &(wn_server_options){.prefix_memory = 1 << 26});
  char *text = prompt_text(800, 1);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    expect(&p, text, 200, kinds[k].policy, kinds[k].budget, 0);
    expect(&p, text, 260, kinds[k].policy, kinds[k].budget, 128);
    expect(&p, text, 600, kinds[k].policy, kinds[k].budget, 256);
    expect(&p, text, 800, kinds[k].policy, kinds[k].budget, 512);
    for (int i = 0; i < 3; i++) {
      char *other = prompt_text(700, (uint64_t)i + 20);
      memcpy(other, text, 300);
      expect(&p, other, 700, kinds[k].policy, kinds[k].budget, 256);
      free(other);
    }
  }
  assert_int_equal(metric(p.port, "winnow_prefix_prompts_total"), 28);
  assert_int_equal(metric(p.port, "winnow_prefix_hits_total"), 24);
  assert_int_equal(metric(p.port, "winnow_prefix_tokens_total"), 4 * (128 + 256 + 512 + 3 * 256));
  assert_true(metric(p.port, "winnow_prefix_bytes") > 0 && metric(p.port, "winnow_prefix_states") > 0);
  assert_int_equal(slot_number(p.port, "cache_bytes"), 0);
  free(text);
  close_place(&p);
}

/* Several answers to a prompt read it once. Scored prompts are read whole. A stream reports the same. */
static void test_kinds_of_requests(void **state) {
  (void)state;
  struct place p;
  open_place_of(&p, LONG, &(wn_server_options){.prefix_memory = 1 << 26});
  char *text = prompt_text(400, 3), *other = prompt_text(400, 4), *alone[3];
  for (int i = 0; i < 3; i++) {
    char more[40];
    snprintf(more, sizeof more, ",\"seed\":%d", 4 + i);
    char *body;
    assert_true(asprintf(&body, "{\"prompt\":\"%s\",\"max_tokens\":20,\"temperature\":0.8%s}", other, more) > 0);
    char *answer = post(p.port, "/v1/completions", body);
    alone[i] = text_of(answer, 0);
    free(body), free(answer);
  }
  wn_server_stop(p.server);
  OK(p.ctx,
     wn_server_start(p.ctx, p.model, p.tok,
                     &(wn_server_options){.size = sizeof(wn_server_options), .prefix_memory = 1 << 26}, &p.server));
  p.port = wn_server_port(p.server);
  char *answer = complete(p.port, other, ",\"n\":3");
  for (int i = 0; i < 3; i++) {
    char *found = text_of(answer, i);
    assert_string_equal(found, alone[i]);
    free(found), free(alone[i]);
  }
  assert_int_equal(number_at(answer, "prompt_tokens_details", "cached_tokens"), 0);
  assert_int_equal(number_at(answer, "winnow", "cached_tokens"), 512);
  free(answer);
  answer = complete(p.port, other, ",\"echo\":true,\"logprobs\":1");
  assert_int_equal(number_at(answer, "prompt_tokens_details", "cached_tokens"), 0);
  free(answer);
  answer = complete(p.port, other, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
  assert_non_null(strstr(answer, "\"prompt_tokens_details\":{\"cached_tokens\":256}"));
  free(answer);
  char *prompts;
  assert_true(asprintf(&prompts, "{\"prompt\":[\"%s\",\"%s\"],\"max_tokens\":1}", text, other) > 0);
  answer = post(p.port, "/v1/completions", prompts);
  assert_int_equal(number_at(answer, "prompt_tokens_details", "cached_tokens"), 256);
  free(answer), free(prompts), free(text), free(other);
  close_place(&p);
}

/* Without memory nothing is kept. Kept states are dropped before an answer has to wait. */
static void test_gives_way(void **state) {
  (void)state;
  struct place p;
  char *text = prompt_text(600, 5);
  open_place_of(&p, LONG, NULL);
  expect(&p, text, 600, NULL, NULL, 0);
  expect(&p, text, 600, NULL, NULL, 0);
  assert_int_equal(metric(p.port, "winnow_prefix_bytes"), 0);
  char *answer = complete(p.port, text, "");
  const json_int_t cache = number_at(answer, "winnow", "cache_bytes");
  free(answer);
  close_place(&p);
  open_place_of(&p, LONG, &(wn_server_options){.prefix_memory = 1 << 26, .cache_memory = (uint64_t)cache * 3 / 2});
  expect(&p, text, 300, NULL, NULL, 0);
  expect(&p, text, 300, NULL, NULL, 256);
  assert_true(metric(p.port, "winnow_prefix_bytes") > 0);
  expect(&p, text, 600, NULL, NULL, 256); /* both fit */
  for (int i = 0; i < 4; i++) {           /* answers need the room: states are dropped */
    char *other = prompt_text(600, (uint64_t)i + 6);
    expect(&p, other, 600, NULL, NULL, 0);
    assert_true(metric(p.port, "winnow_prefix_bytes") <= cache * 3 / 2);
    free(other);
  }
  answer = complete(p.port, text, ",\"max_tokens\":280"); /* alone it fills the memory */
  assert_int_equal(status_of(answer), 400);               /* given twice */
  free(answer);
  char *body;
  assert_true(asprintf(&body, "{\"prompt\":\"%s\",\"max_tokens\":290}", text) > 0);
  answer = post(p.port, "/v1/completions", body);
  const json_int_t large = number_at(answer, "winnow", "cache_bytes");
  assert_true(large > cache && metric(p.port, "winnow_prefix_bytes") <= cache * 3 / 2 - large);
  free(answer), free(body), free(text);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_patterns),
      cmocka_unit_test(test_kinds_of_requests),
      cmocka_unit_test(test_gives_way),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
