/* A session's own threshold gives the same bits as a model whose configuration has it. With WN_TAU_NONE
 * there is no threshold. */
#include "model/models.h"

#include "decode/snapshot.h"
#include "support.h"
#include "winnow/score.h"
#include "policies.h"

enum { V = 13, T = 40, CONTEXT = 64 };

static struct wn_model *model_with(wn_context *ctx, int k, const char *threshold) {
  wn_model_config c = model_case_config(&model_cases[k]);
  c.context = CONTEXT;
  c.recurrence = 0;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  if (threshold) OK(ctx, wn_model_set_attention(ctx, model, threshold));
  return model;
}

/* Logits of the prompt's last token and of the tokens that follow one by one. */
static void logits_of(wn_context *ctx, struct wn_model *model, wn_policy policy, const char *budget, double tau,
                      float *logits) {
  wn_budgets b;
  wn_session *s;
  int32_t ids[T];
  budgets_init(&b);
  b.policy = policy;
  if (budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  for (int i = 0; i < T; i++) ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 3, (uint64_t)i, V);
  const wn_session_options o = {
      .size = sizeof o, .sequences = 1, .capacity = T, .budgets = budget ? &b : NULL, .tau = tau};
  OK(ctx, wn_session_create(ctx, model, &o, &s));
  OK(ctx, wn_session_feed(ctx, s, ids, T - 4, 0, logits));
  for (int i = 0; i < 4; i++) OK(ctx, wn_session_feed(ctx, s, ids + T - 4 + i, 1, 0, logits + (i + 1) * V));
  wn_session_destroy(s);
  wn_budgets_clear(&b);
}

static void test_same_as_the_model(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *ctx = context_of("cpu", 1);
    struct wn_model *plain = model_with(ctx, k, NULL), *half = model_with(ctx, k, NULL);
    if (plain->config.attention.threshold.enabled || wn_model_set_attention(ctx, half, "threshold.tau=0.5") != WN_OK) {
      wn_model_destroy(plain), wn_model_destroy(half); /* these options cannot be combined */
      wn_context_destroy(ctx);
      continue;
    }
    const int32_t control[] = {3, 7};
    if (k % 2) OK(ctx, wn_model_set_control_tokens(ctx, plain, control, 2));
    if (k % 2) OK(ctx, wn_model_set_control_tokens(ctx, half, control, 2));
    for (wn_policy p = -1; p < wn_policy_count(); p++) {
      float expected[5 * V], found[5 * V];
      const char *budget = p < 0 ? NULL : "9";
      if (p >= 0 && (k % 3 != p % 3 || !wn_policy_suits(p, &plain->config.attention))) continue;
      const wn_policy policy = p < 0 ? 0 : p;
      logits_of(ctx, half, policy, budget, 0, expected);
      logits_of(ctx, plain, policy, budget, 0.5, found);
      if (memcmp(expected, found, sizeof found) != 0) fail_msg("%s, policy %d: tau", model_cases[k].name, p);
      logits_of(ctx, plain, policy, budget, 0, expected);
      if (memcmp(expected, found, sizeof found) == 0)
        fail_msg("%s, policy %d: tau does nothing", model_cases[k].name, p);
      logits_of(ctx, half, policy, budget, WN_TAU_NONE, found);
      if (memcmp(expected, found, sizeof found) != 0) fail_msg("%s, policy %d: no tau", model_cases[k].name, p);
      logits_of(ctx, plain, policy, budget, WN_TAU_NONE, found);
      if (memcmp(expected, found, sizeof found) != 0) fail_msg("%s, policy %d: none of none", model_cases[k].name, p);
    }
    wn_model_destroy(plain), wn_model_destroy(half);
    wn_context_destroy(ctx);
  }
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = model_with(ctx, 1, NULL);
  wn_session *s, *other;
  static const double wrong[] = {-2, 1.01, NAN, INFINITY};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const wn_session_options o = {.size = sizeof o, .sequences = 1, .tau = wrong[i]};
    assert_refused(ctx, wn_session_create(ctx, model, &o, &s), WN_ERR_ARGUMENT, "tau is");
  }
  wn_session_options o = {.size = sizeof o, .sequences = 1, .tau = 0.9, .cache = WN_CACHE_HALF};
  assert_refused(ctx, wn_session_create(ctx, model, &o, &s), WN_ERR_UNSUPPORTED, "a cache in half");
  o.cache = WN_CACHE_AUTO;
  OK(ctx, wn_session_create(ctx, model, &o, &s));
  o.tau = 0.8;
  OK(ctx, wn_session_create(ctx, model, &o, &other));
  const int32_t id = 1;
  struct wn_snapshot *x;
  OK(ctx, wn_session_feed(ctx, s, &id, 1, 0, NULL));
  assert_refused(ctx, wn_session_copy(ctx, other, s, NULL), WN_ERR_ARGUMENT, "threshold");
  OK(ctx, wn_snapshot_take(ctx, s, 1, &x));
  assert_true(wn_snapshot_suits(x, s) && !wn_snapshot_suits(x, other));
  wn_snapshot_destroy(x);
  wn_session_destroy(s), wn_session_destroy(other);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_the_model), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
