/* Pinned tokens (wn_session_pin): whatever the policy, the method and the protocol, no group of heads ever lacks one,
 * and what else stays is what the policy says. Random texts, pieces, budgets and pins. */
#include "model/models.h"

#include "decode/session_once.h"
#include "decode/snapshot.h"
#include "kv/policy.h"
#include "support.h"
#include "policies.h"

enum { V = 13, L = 2, HKV = 2, MOST = 96, K = 24 };

static wn_model *model_with(wn_context *ctx, const char *attention) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .attention = attention};
  wn_model_config c = model_case_config(&k);
  c.context = MOST, c.layers = L;
  return model_of(ctx, &c, WN_F32);
}

static void random_text(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

static wn_session *session_with(wn_context *ctx, wn_model *model, const char *policy, const char *options,
                                const char *budget) {
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  if (!wn_budgets_named(policy, &b)) assert_int_equal(wn_policy_find(NULL, policy, &b.policy), WN_OK);
  if (*options) OK(ctx, wn_budgets_set(ctx, options, &b));
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = MOST, .budgets = &b), &s));
  wn_budgets_clear(&b);
  return s;
}

/* Every head holds every pinned position that was fed, and no layer more than it may. */
static void check_held(wn_context *ctx, const wn_session *s, const uint8_t *pinned, const char *what, int number) {
  int32_t heads[MOST];
  for (int64_t l = 0; l < L; l++) {
    OK(ctx, wn_session_held(ctx, s, 0, l, heads));
    for (int64_t i = 0; i < s->position; i++)
      if (pinned[i] && heads[i] != HKV)
        fail_msg("%s, case %d: layer %lld lost the pinned token %lld of %lld", what, number, (long long)l, (long long)i,
                 (long long)s->position);
  }
}

/* Pins up to three ranges of [0,n) that leave room in a budget of K. */
static void pin_some(wn_context *ctx, wn_session *s, uint64_t seed, int n, uint8_t *pinned) {
  int left = 14;
  memset(pinned, 0, MOST);
  for (int i = 0; i < 3; i++) {
    const int first = (int)wn_random_below(seed, WN_STREAM_TEST, 5, (uint64_t)i, (uint64_t)n);
    int count = 1 + (int)wn_random_below(seed, WN_STREAM_TEST, 6, (uint64_t)i, 7);
    if (count > n - first) count = n - first;
    if (count > left) count = left;
    if (count == 0) return;
    left -= count;
    OK(ctx, wn_session_pin(ctx, s, first, count));
    memset(pinned + first, 1, (size_t)count);
  }
}

static void run_case(wn_context *ctx, wn_model *model, const char *policy, const char *options, int number) {
  const uint64_t seed = (uint64_t)number * 131 + 7;
  const int n = 40 + (int)wn_random_below(seed, WN_STREAM_TEST, 1, 0, 40);
  const int prompt = 8 + (int)wn_random_below(seed, WN_STREAM_TEST, 1, 1, (uint64_t)n - 8);
  char budget[16], what[160];
  uint8_t pinned[MOST];
  int32_t ids[MOST];
  snprintf(budget, sizeof budget, "%d", K);
  snprintf(what, sizeof what, "%s %s", policy, options);
  random_text(seed, ids, n);
  wn_session *s = session_with(ctx, model, policy, options, budget);
  pin_some(ctx, s, seed, prompt, pinned);
  if (s->once) /* KVzip's request, which other methods do not read */
    OK(ctx, wn_session_repeat_ids(ctx, s, (int32_t *const[]){ids, ids, ids}, (const size_t[]){2, 2, 1}));
  for (int done = 0, piece; done < n; done += piece) {
    piece = 1 + (int)wn_random_below(seed, WN_STREAM_TEST, 7, (uint64_t)done, number % 2 ? 3 : 40);
    if (done < prompt && piece > prompt - done) piece = prompt - done;
    if (piece > n - done) piece = n - done;
    OK(ctx, wn_session_feed(ctx, s, ids + done, piece, 0, NULL));
    if (done + piece == prompt) OK(ctx, wn_session_compress(ctx, s));
    check_held(ctx, s, pinned, what, number);
  }
  wn_session_destroy(s);
}

static const char *const PROTOCOLS[] = {"when=always", "when=prompt", "when=hold", "when=every,every=9"};

static void every_policy_keeps_what_is_pinned(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *plain = model_with(ctx, "{}"), *selective = model_with(ctx, "{\"selective\": {\"per_kv_head\": true}}");
  wn_model *gates = model_with(ctx, "{\"forget\": {\"per_query_head\": true},"
                                    "\"write\": {\"window\": 2, \"keys\": true, \"hidden\": 3}}");
  for (int p = 0; p < wn_policy_count(); p++)
    for (int w = 0; w < 4; w++)
      for (int heads = 0; heads < 2; heads++)
        for (int number = 0; number < 6; number++) {
          const wn_policy_info *info = wn_policy_at(p);
          char options[96];
          if (heads && !info->per_kv_head) continue;
          snprintf(options, sizeof options, "%s%s", PROTOCOLS[w], heads ? ",per_kv_head=true" : "");
          wn_model *model = info->selective ? selective : strcmp(info->name, "gates") ? plain : gates;
          run_case(ctx, model, info->name, options, number);
        }
  wn_model_destroy(plain), wn_model_destroy(selective), wn_model_destroy(gates);
  wn_context_destroy(ctx);
}

static void every_method_keeps_what_is_pinned(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *model = model_with(ctx, "{}");
  static const char *const allots[] = {"allot=uniform", "allot=ada", "allot=tau,tau=-0.1,window=4"};
  for (int i = 0; wn_budgets_named_at(i); i++)
    for (int w = 1; w < 3; w++)
      for (int a = 0; a < 3; a++)
        for (int number = 0; number < 4; number++) {
          char options[128];
          snprintf(options, sizeof options, "%s,%s", PROTOCOLS[w], allots[a]);
          run_case(ctx, model, wn_budgets_named_at(i), options, number);
        }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A prefix that is pinned is what a policy's own first tokens are: streaming with n sinks. */
static void a_pinned_beginning_is_a_sink(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *model = model_with(ctx, "{}");
  int32_t ids[MOST], own[MOST], pinned[MOST];
  int64_t count, other;
  random_text(5, ids, 70);
  for (int step = 0; step < 2; step++) {
    wn_session *a = session_with(ctx, model, "streaming", "sinks=9", "20");
    wn_session *b = session_with(ctx, model, "streaming", "sinks=0", "20");
    float x[V], y[V];
    OK(ctx, wn_session_pin(ctx, b, 0, 9));
    OK(ctx, wn_session_feed(ctx, a, ids, 70, step ? 1 : 0, x));
    OK(ctx, wn_session_feed(ctx, b, ids, 70, step ? 1 : 0, y));
    assert_memory_equal(x, y, sizeof x);
    OK(ctx, wn_session_kept(ctx, a, 0, 1, 0, own, &count));
    OK(ctx, wn_session_kept(ctx, b, 0, 1, 0, pinned, &other));
    assert_int_equal(count, other);
    assert_memory_equal(own, pinned, (size_t)count * sizeof *own);
    wn_session_destroy(a), wn_session_destroy(b);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Of what is not pinned the policy's own order decides: one token after the other leaves, the oldest at first. */
static void others_leave_in_the_policys_order(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *model = model_with(ctx, "{}");
  int32_t ids[MOST], at[MOST], wanted[MOST];
  int64_t count;
  random_text(6, ids, 60);
  for (int step = 0; step < 2; step++) {
    wn_session *s = session_with(ctx, model, "window", "", "16");
    OK(ctx, wn_session_pin(ctx, s, 3, 2));
    OK(ctx, wn_session_pin(ctx, s, 20, 5));
    OK(ctx, wn_session_feed(ctx, s, ids, 60, step ? 1 : 0, NULL));
    OK(ctx, wn_session_kept(ctx, s, 0, 0, 0, at, &count));
    int n = 0;
    for (int i = 3; i < 5; i++) wanted[n++] = i;
    for (int i = 20; i < 25; i++) wanted[n++] = i;
    for (int i = 51; i < 60; i++) wanted[n++] = i;
    assert_int_equal(count, 16);
    assert_memory_equal(at, wanted, sizeof *at * 16);
    wn_session_destroy(s);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void pins_that_leave_no_room_are_refused(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *model = model_with(ctx, "{}");
  wn_session *s = session_with(ctx, model, "window", "", "16");
  assert_int_equal(wn_session_pin(ctx, s, 0, 16), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "16 tokens are pinned"));
  assert_non_null(strstr(wn_context_error(ctx), "budget of layer 0 is 16"));
  OK(ctx, wn_session_pin(ctx, s, 0, 15));
  assert_int_equal(wn_session_pin(ctx, s, 40, 1), WN_ERR_ARGUMENT); /* and nothing has changed */
  OK(ctx, wn_session_pin(ctx, s, 3, 4));
  assert_int_equal(wn_session_pin(ctx, s, -1, 4), WN_ERR_ARGUMENT);
  assert_int_equal(wn_session_pin(ctx, s, MOST - 3, 4), WN_ERR_ARGUMENT);
  wn_session_destroy(s);
  s = session_with(ctx, model, "streaming", "cache_positions=true", "16");
  assert_int_equal(wn_session_pin(ctx, s, 0, 3), WN_ERR_UNSUPPORTED);
  wn_session_destroy(s);
  /* a share of the text is known where the text ends */
  s = session_with(ctx, model, "window", "when=prompt,share=0.25", "16");
  int32_t ids[MOST];
  random_text(7, ids, 40);
  OK(ctx, wn_session_pin(ctx, s, 0, 12));
  OK(ctx, wn_session_feed(ctx, s, ids, 40, 0, NULL));
  assert_int_equal(wn_session_compress(ctx, s), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "12"));
  OK(ctx, wn_session_feed(ctx, s, ids, 20, 0, NULL)); /* it goes on, and more text has a larger share */
  OK(ctx, wn_session_compress(ctx, s));
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Copies and snapshots know the pins; states of other pins are not taken. */
static void copies_know_the_pins(void **state) {
  wn_context *ctx = make_context();
  (void)state;
  wn_model *model = model_with(ctx, "{}");
  int32_t ids[MOST];
  uint8_t pinned[MOST] = {0};
  memset(pinned + 5, 1, 6);
  random_text(8, ids, 80);
  wn_session *a = session_with(ctx, model, "knorm", "", "16"), *b = session_with(ctx, model, "knorm", "", "16");
  struct wn_snapshot *shot;
  OK(ctx, wn_session_pin(ctx, a, 5, 6));
  OK(ctx, wn_session_feed(ctx, a, ids, 30, 0, NULL));
  OK(ctx, wn_snapshot_take(ctx, a, 30, &shot));
  assert_false(wn_snapshot_suits(shot, b));
  OK(ctx, wn_session_copy(ctx, b, a, NULL));
  OK(ctx, wn_session_feed(ctx, b, ids, 40, 0, NULL));
  check_held(ctx, b, pinned, "copy", 0);
  wn_session_reset(b);
  OK(ctx, wn_session_pin(ctx, b, 5, 6));
  OK(ctx, wn_session_pin(ctx, b, 50, 2)); /* later than the state */
  assert_true(wn_snapshot_suits(shot, b));
  OK(ctx, wn_snapshot_restore(shot, 30, b));
  memset(pinned + 50, 1, 2);
  OK(ctx, wn_session_feed(ctx, b, ids, 40, 0, NULL));
  check_held(ctx, b, pinned, "snapshot", 0);
  wn_snapshot_destroy(shot);
  wn_session_destroy(a), wn_session_destroy(b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_policy_keeps_what_is_pinned),   cmocka_unit_test(every_method_keeps_what_is_pinned),
      cmocka_unit_test(a_pinned_beginning_is_a_sink),        cmocka_unit_test(others_leave_in_the_policys_order),
      cmocka_unit_test(pins_that_leave_no_room_are_refused), cmocka_unit_test(copies_know_the_pins),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
