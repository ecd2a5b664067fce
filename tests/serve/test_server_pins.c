/* Conversations under budgets: usage says what is left of each message, and pinned messages stay whole. */
#include "serve/place.h"

#define MARKS                                                                                                          \
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"                           \
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define SAY(role, text, more) "{\"role\":\"" role "\",\"content\":\"" text "\"" more "}"
#define SYSTEM SAY("system", "be brief and kind", "")
#define LONG "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"

/* A message of usage.winnow.messages. */
struct told {
  char role[16];
  int tokens;
  double kept;
  bool pinned;
};

/* Asks for a chat, and fills told [most]. Returns how many. */
static int ask_told(const struct place *p, const char *fields, struct told *told, int most, json_int_t *seen) {
  char body[2000];
  snprintf(body, sizeof body, "{\"temperature\":0,\"max_tokens\":4,\"logit_bias\":{\"33\":100},%s}", fields);
  char *answer = post(p->port, "/v1/chat/completions", body);
  if (status_of(answer) != 200) fail_msg("%s", answer);
  json_t *j = json_of(answer), *usage = json_object_get(j, "usage");
  const json_t *list = json_object_get(json_object_get(usage, "winnow"), "messages"), *one;
  size_t i;
  *seen = json_integer_value(json_object_get(usage, "total_tokens")) - 1; /* the last one drawn was not read */
  assert_true(json_array_size(list) <= (size_t)most);
  json_array_foreach(list, i, one) {
    snprintf(told[i].role, sizeof told[i].role, "%s", json_string_value(json_object_get(one, "role")));
    told[i].tokens = (int)json_integer_value(json_object_get(one, "tokens"));
    told[i].kept = json_number_value(json_object_get(one, "kept"));
    told[i].pinned = json_is_true(json_object_get(one, "pinned"));
  }
  const int n = (int)json_array_size(list);
  json_decref(j);
  free(answer);
  return n;
}

static void expect_refused(const struct place *p, const char *fields, const char *text) {
  char body[2000];
  snprintf(body, sizeof body, "{\"max_tokens\":4,%s}", fields);
  char *answer = post(p->port, "/v1/chat/completions", body);
  if (status_of(answer) != 400 || !strstr(answer, text)) fail_msg("%s, expected 400 with %s", answer, text);
  free(answer);
}

/* A window of 24 tokens keeps the last ones, so what is left of each message is known. */
static void test_told(void **state) {
  (void)state;
  struct place p;
  struct told told[4];
  json_int_t seen;
  open_chat(&p, MARKS, NULL);
  const int n =
      ask_told(&p, "\"messages\":[" SYSTEM "," SAY("user", LONG, "") "],\"winnow\":{\"window\":24}", told, 4, &seen);
  assert_int_equal(n, 3);
  assert_string_equal(told[0].role, "system");
  assert_string_equal(told[1].role, "user");
  assert_string_equal(told[2].role, "assistant");
  int after = 0, tokens = 0;
  for (int i = 0; i < n; i++) tokens += told[i].tokens;
  assert_int_equal(tokens, seen);
  for (int i = n; i-- > 0;) {
    const int left = 24 - after < 0 ? 0 : 24 - after;
    assert_true(told[i].tokens > 0 && !told[i].pinned);
    assert_true(fabs(told[i].kept - (told[i].tokens < left ? told[i].tokens : left)) < 1e-9);
    after += told[i].tokens;
  }
  assert_true(told[0].kept == 0 && after > 24);
  /* without budgets nothing is told, or all is kept */
  assert_int_equal(ask_told(&p, "\"messages\":[" SYSTEM "," SAY("user", LONG, "") "]", told, 4, &seen), 0);
  assert_int_equal(
      ask_told(&p, "\"messages\":[" SYSTEM "," SAY("user", LONG, "") "],\"winnow\":{\"tau\":0}", told, 4, &seen), 3);
  for (int i = 0; i < 3; i++) assert_true(told[i].kept == told[i].tokens);
  close_place(&p);
}

/* Pinned in each form; what else stays is what the window leaves. */
static void test_pinned(void **state) {
  (void)state;
  static const struct {
    const char *pin, *own; /* winnow.pin; of the second message */
    int first, second;     /* is the message pinned? */
  } rows[] = {{"\"system\"", "", 1, 0},
              {"0", "", 1, 0},
              {"[1]", "", 0, 1},
              {"[\"system\", 1]", "", 1, 1},
              {"[\"system\", 1]", ",\"pin\":false", 1, 0},
              {"null", ",\"pin\":true", 0, 1}};
  struct place p;
  struct told told[5];
  json_int_t seen;
  char fields[1500];
  for (int server = 0; server < 2; server++) {
    open_chat(&p, MARKS, &(wn_server_options){.pin_system = server, .prefix_memory = 1 << 24});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      snprintf(fields, sizeof fields,
               "\"messages\":[" SYSTEM
               ",{\"role\":\"user\",\"content\":\"the second one\"%s}," SAY("assistant", "yes", "") "," SAY(
                   "user", LONG " " LONG, "") "],\"winnow\":{\"policy\":\"knorm\",\"budgets\":40,\"pin\":%s}",
               rows[i].own, rows[i].pin);
      assert_int_equal(ask_told(&p, fields, told, 5, &seen), 5);
      const bool first = rows[i].first || (server && !strcmp(rows[i].pin, "null"));
      double kept = 0;
      int tokens = 0;
      for (int k = 0; k < 5; k++) kept += told[k].kept, tokens += told[k].tokens;
      assert_true(tokens > 40 && fabs(kept - 40) < 0.1);
      assert_int_equal(told[0].pinned, first);
      assert_int_equal(told[1].pinned, rows[i].second);
      if (first) assert_true(told[0].kept == told[0].tokens);
      if (rows[i].second) assert_true(told[1].kept == told[1].tokens);
    }
    close_place(&p);
  }
}

static void test_refusals(void **state) {
  (void)state;
  struct place p;
  open_chat(&p, MARKS, NULL);
#define ASK "\"messages\":[" SYSTEM "," SAY("user", LONG, "") "],\"winnow\":"
  expect_refused(&p, ASK "{\"policy\":\"knorm\",\"budgets\":3,\"pin\":\"system\"}", "tokens are pinned");
  expect_refused(&p, ASK "{\"policy\":\"knorm\",\"budgets\":3,\"pin\":\"system\"}", "is 3 tokens");
  expect_refused(&p, ASK "{\"pin\":\"robot\"}", "winnow.pin: expected a role");
  expect_refused(&p, ASK "{\"pin\":2}", "number from 0 to 1");
  expect_refused(&p, ASK "{\"pin\":[[0]]}", "winnow.pin: expected a role");
  expect_refused(&p, "\"messages\":[" SAY("user", "a", ",\"pin\":1") "]", "\\\"pin\\\" is not served");
  char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"pin\":\"system\"}}");
  assert_true(status_of(answer) == 400 && strstr(answer, "winnow.pin"));
  free(answer);
  close_place(&p);
}

/* More messages than origins are numbered with, and a template that writes them in another order. */
static void test_owners(void **state) {
  (void)state;
  struct place p;
  struct told told[400];
  json_int_t seen;
  char *fields = malloc(40000), *at = fields + sprintf(fields, "\"max_tokens\":1,\"messages\":[");
  const wn_server_options o = {.context = 4000};
  for (int i = 0; i < 300; i++)
    at += sprintf(at, "%s{\"role\":\"%s\",\"content\":\"%d\"}", i ? "," : "", i % 2 ? "assistant" : "user", i);
  sprintf(at, "],\"winnow\":{\"budgets\":9,\"policy\":\"window\"}");
  open_chat(&p, "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_end|>", &o);
  char *body = malloc(41000);
  sprintf(body, "{%s}", fields);
  char *answer = post(p.port, "/v1/chat/completions", body);
  json_t *j = json_of(answer);
  const json_t *list = json_object_get(json_object_get(json_object_get(j, "usage"), "winnow"), "messages");
  assert_int_equal(json_array_size(list), 301);
  for (size_t i = 0; i < 300; i++) { /* the mark, and the digits, in one token or several */
    const json_int_t n = json_integer_value(json_object_get(json_array_get(list, i), "tokens"));
    assert_true(n >= 2 && n <= 4);
  }
  json_decref(j);
  free(answer), free(body), free(fields);
  close_place(&p);
  open_chat(&p,
            "{% for m in messages[1:] %}<|im_start|>{{ messages[0].content if loop.last }}{{ m.content }}{% endfor %}",
            NULL);
  const int n = ask_told(&p,
                         "\"messages\":[" SYSTEM "," SAY("user", LONG, "") "," SAY("assistant", "b", "") "," SAY(
                             "user", "c", "") "],\"winnow\":{\"budgets\":30,\"policy\":\"window\",\"pin\":\"system\"}",
                         told, 400, &seen);
  assert_int_equal(n, 5);
  assert_true(told[0].pinned && told[0].tokens >= 4 && told[0].kept == told[0].tokens && told[1].kept < told[1].tokens);
  close_place(&p);
}

/* The server's own budgets ask for owners of tokens, which a template that is applied does not use. */
static void test_applied(void **state) {
  (void)state;
  struct place p;
  wn_budgets budgets;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  const wn_model_config c = model_case_config(&k);
  wn_budgets_init(&budgets, &c.attention);
  OK(ctx, wn_policy_find(ctx, "window", &budgets.policy));
  OK(ctx, wn_budgets_parse(ctx, &c, "16", &budgets));
  const wn_server_options options = {.budgets = &budgets};
  open_chat(&p, MARKS, &options);
  char *answer = post(p.port, "/apply-template", "{\"messages\":[" SYSTEM "]}");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
  wn_budgets_clear(&budgets);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_applied), cmocka_unit_test(test_told),
                                     cmocka_unit_test(test_pinned), cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_owners)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
