/* One request does not keep the others waiting: neither with many answers, nor with a cache that does not fit now or
 * never will, nor with long prompts. Every test has a long request under way, which would take far longer than the
 * test, and leaves it when the short one has been answered. */
#include "serve/place.h"

enum { LONG = 4000, PROMPTS = 48 };

/* Sends a request and does not wait. */
static int begin(int port, const char *body) {
  char *request = request_of("POST", "/v1/completions", body, NULL);
  const int s = ask_connect(port);
  assert_int_equal(send(s, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  free(request);
  return s;
}

static void expect_status(const struct place *p, const char *body, int status, const char *text) {
  char *answer = post(p->port, "/v1/completions", body);
  if (status_of(answer) != status || !strstr(answer, text)) fail_msg("expected %d, found %.300s", status, answer);
  free(answer);
}

static void leave(struct place *p, int s) {
  close(s);
  wait_for(p->port, "requests", 0);
  assert_int_equal(slot_number(p->port, "cache_bytes"), 0);
  close_place(p);
}

static json_int_t usage_of(const struct place *p, const char *body, const char *name) {
  char *answer = post(p->port, "/v1/completions", body);
  json_t *j = json_of(answer);
  const json_int_t n =
      json_integer_value(json_object_get(json_object_get(json_object_get(j, "usage"), "winnow"), name));
  json_decref(j);
  free(answer);
  return n;
}

/* Free slots go to the request that has the fewest. */
static void test_many_answers(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 2});
  const int s = begin(p.port, "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":128}");
  wait_for(p.port, "running", 2);
  expect_status(&p, "{\"prompt\":\"b\",\"max_tokens\":2}", 200, "");
  assert_true(slot_number(p.port, "waiting") > 1);
  leave(&p, s);
}

/* A small cache may pass large ones that wait, and one that can never fit is refused at once. */
static void test_memory(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  const json_int_t whole = usage_of(&p, "{\"prompt\":\"a\",\"max_tokens\":199}", "full_cache_bytes");
  close_place(&p);
  open_place(&p, &(wn_server_options){.cache_memory = (uint64_t)whole * 3 / 4});
  const int s = begin(p.port, "{\"prompt\":\"a\",\"max_tokens\":99,\"n\":128}"); /* one at a time fits */
  wait_for(p.port, "running", 1);
  expect_status(&p, "{\"prompt\":\"b\",\"max_tokens\":199}", 400, "the request's cache needs");
  assert_int_equal(slot_number(p.port, "requests"), 1); /* the first is still being answered */
  expect_status(&p, "{\"prompt\":\"b\",\"max_tokens\":2}", 200, "");
  assert_true(slot_number(p.port, "waiting") > 1);
  leave(&p, s);
}

/* A short prompt is read before long ones. */
static void test_long_prompts(void **state) {
  (void)state;
  struct place p;
  char *body = malloc(PROMPTS * (LONG + 10) + 100), *out = body + sprintf(body, "{\"max_tokens\":1,\"prompt\":[");
  for (int i = 0; i < PROMPTS; i++) {
    out += sprintf(out, "%s\"", i ? "," : "");
    for (int k = 0; k < LONG - 10; k++) *out++ = (char)('a' + (i + k * k) % 26);
    *out++ = '"';
  }
  strcpy(out, "]}");
  open_place_of(&p, LONG, &(wn_server_options){.slots = PROMPTS + 1});
  const int s = begin(p.port, body);
  free(body);
  wait_for(p.port, "running", PROMPTS);
  expect_status(&p, "{\"prompt\":\"b\",\"max_tokens\":2}", 200, "");
  assert_true(slot_number(p.port, "running") > PROMPTS / 2);
  leave(&p, s);
}

/* The cache has room for tokens that never come; usage counts what is held. */
static void test_usage(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  static const char *const ends =
      "{\"prompt\":\"The water\",\"max_tokens\":150,\"seed\":1,\"stop\":[\"\\ufffd\",\"a\",\"e\"]}";
  static const char *const kept = "{\"prompt\":\"The water\",\"max_tokens\":150,\"seed\":1,\"winnow\":{\"window\":10}}";
  const json_int_t full = usage_of(&p, ends, "full_cache_bytes"), cache = usage_of(&p, ends, "cache_bytes");
  if (cache != full) fail_msg("%lld, without eviction %lld", (long long)cache, (long long)full);
  assert_true(usage_of(&p, kept, "cache_bytes") < usage_of(&p, kept, "full_cache_bytes") / 10);
  close_place(&p);
}

/* Answers of a server with drafts are those of one without, also several at a time; and some drafts are right. */
static void test_drafts(void **state) {
  (void)state;
  static const char *const bodies[] = {
      "{\"prompt\":\"abcabcabcabc\",\"max_tokens\":150,\"temperature\":0}",
      "{\"prompt\":\"abcabcabcabc\",\"max_tokens\":150,\"temperature\":0.3,\"seed\":5,\"n\":3}",
      "{\"prompt\":\"abcabcabcabc\",\"max_tokens\":50,\"temperature\":0,\"logprobs\":2,\"winnow\":{\"budgets\":9,"
      "\"policy\":\"h2o\"}}"};
  enum { BODIES = sizeof bodies / sizeof *bodies };
  json_t *choices[2][BODIES];
  json_int_t accepted = 0, rejected = 0;
  for (int k = 0; k < 2; k++) {
    struct place p;
    open_place(&p, &(wn_server_options){.slots = 3, .draft = k ? 7 : 0});
    for (int i = 0; i < BODIES; i++) {
      char *answer = post(p.port, "/v1/completions", bodies[i]);
      json_t *j = json_of(answer);
      json_t *details = json_object_get(json_object_get(j, "usage"), "completion_tokens_details");
      choices[k][i] = json_incref(json_object_get(j, "choices"));
      assert_non_null(choices[k][i]);
      accepted += json_integer_value(json_object_get(details, "accepted_prediction_tokens"));
      rejected += json_integer_value(json_object_get(details, "rejected_prediction_tokens"));
      if (k == 0) assert_int_equal(accepted + rejected, 0);
      json_decref(j);
      free(answer);
    }
    close_place(&p);
  }
  for (int i = 0; i < BODIES; i++) {
    if (!json_equal(choices[0][i], choices[1][i])) fail_msg("%s: another answer with drafts", bodies[i]);
    json_decref(choices[0][i]), json_decref(choices[1][i]);
  }
  assert_true(accepted > 20 && rejected > 0);
}

/* The bytes that a request needs, as its refusal says. */
static unsigned long long needs(int port, const char *more) {
  char body[200];
  unsigned long long bytes = 0;
  snprintf(body, sizeof body, "{\"prompt\":\"The water\",\"max_tokens\":50,\"temperature\":0%s}", more);
  char *answer = post(port, "/v1/completions", body), *at = strstr(answer, "cache needs ");
  if (!at || sscanf(at, "cache needs %llu bytes", &bytes) != 1) fail_msg("%s: %s", body, answer);
  free(answer);
  return bytes;
}

/* The cache of a draft model counts: a request is refused where both do not fit, and answered where they just do. */
static void test_draft_memory(void **state) {
  (void)state;
  static const char budget[] = ",\"winnow\":{\"budgets\":20,\"policy\":\"h2o\"}";
  unsigned long long bytes[2], under[2];
  wn_context *ctx = context_of("cpu", 1);
  wn_model *draft = bytes_model(ctx, CONTEXT);
  struct place p;
  for (int k = 0; k < 2; k++) {
    open_place(&p, &(wn_server_options){.draft = 3, .draft_model = k ? draft : NULL, .cache_memory = 1});
    bytes[k] = needs(p.port, ""), under[k] = needs(p.port, budget);
    close_place(&p);
  }
  assert_true(bytes[1] > 2 * bytes[0] && bytes[1] < 3 * bytes[0]); /* the same model with room for a few guesses more */
  assert_true(under[1] == under[0]);                               /* there are no drafts */
  for (int less = 1; less >= 0; less--) {
    open_place(&p, &(wn_server_options){.draft = 3, .draft_model = draft, .cache_memory = bytes[1] - (size_t)less});
    char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"The water\",\"max_tokens\":50,\"temperature\":0}");
    assert_int_equal(status_of(answer), less ? 400 : 200);
    free(answer);
    wait_for(p.port, "requests", 0);
    wait_for(p.port, "cache_bytes", 0);
    close_place(&p);
  }
  wn_model_destroy(draft);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_many_answers), cmocka_unit_test(test_memory),       cmocka_unit_test(test_long_prompts),
      cmocka_unit_test(test_drafts),       cmocka_unit_test(test_draft_memory), cmocka_unit_test(test_usage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
