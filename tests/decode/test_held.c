/* The tokens that wn_session_held reports are held: they are compared with what each policy must hold, and with the
 * logits of a model that sees only those tokens. */
#include "model/models.h"

#include "kv/policy.h"
#include "policies.h"
#include "support.h"

enum { B = 2, T = 40, V = 13, L = 2, HKV = 2, K = 9 };

static wn_model *rope_model(wn_context *ctx, const char *attention) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .attention = attention ? attention : "{}"};
  wn_model_config c = model_case_config(&k);
  c.context = T;
  return model_of(ctx, &c, WN_F32);
}

static void random_text(int32_t *ids) {
  for (int i = 0; i < B * T; i++) ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

/* held [B][L][T] */
struct held {
  int32_t heads[B][L][T];
};
static void held_of(wn_context *ctx, const wn_session *s, struct held *out) {
  memset(out, 0x55, sizeof *out);
  for (int b = 0; b < B; b++)
    for (int l = 0; l < L; l++) OK(ctx, wn_session_held(ctx, s, b, l, out->heads[b][l]));
}

static void feed(wn_context *ctx, wn_session *s, const int32_t *ids, int from, int n) {
  int32_t some[B * T];
  for (int b = 0; b < B; b++) memcpy(some + b * n, ids + b * T + from, (size_t)n * sizeof *some);
  OK(ctx, wn_session_feed(ctx, s, some, n, 0, NULL));
}

/* Every token while there is room, then exactly the budget: with the newest token, without any that was evicted before.
 * A prompt in one piece leaves the same tokens as one read token by token, and a copy holds the same as the original.
 */
static void test_policies(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *plain = rope_model(ctx, NULL), *selective = rope_model(ctx, "{\"selective\":{}}"),
           *selective_own = rope_model(ctx, "{\"selective\":{\"per_kv_head\":true}}");
  int32_t ids[B * T];
  random_text(ids);
  for (int p = 0; p < WN_POLICY_COUNT; p++) {
    for (int own = 0; own < 2; own++) {
      wn_model *model = p != WN_POLICY_SELECTIVE ? plain : own ? selective_own : selective;
      wn_budgets budgets;
      wn_session *one, *whole, *copy;
      struct held before = {{{{0}}}}, now, other;
      bool apart = false;
      budgets_init(&budgets);
      budgets.policy = p;
      budgets.per_kv_head = own;
      if (own && !wn_policy_at(p)->per_kv_head) continue;
      if (!wn_policy_suits(p, &wn_model_config_get(model)->attention)) continue; /* gates */
      OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "9,12", &budgets));
      OK(ctx,
         wn_session_create(ctx, model,
                           WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &budgets), &one));
      OK(ctx,
         wn_session_create(ctx, model,
                           WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &budgets), &whole));
      OK(ctx,
         wn_session_create(ctx, model,
                           WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &budgets), &copy));
      assert_int_equal(wn_session_held_bytes(one), 0);
      for (int t = 0; t < T; t++) {
        feed(ctx, one, ids, t, 1);
        held_of(ctx, one, &now);
        for (int b = 0; b < B; b++) {
          for (int l = 0; l < L; l++) {
            const int budget = l ? 12 : 9, full = t + 1 < budget ? t + 1 : budget;
            int sum = 0;
            for (int i = 0; i <= t; i++) {
              const int n = now.heads[b][l][i];
              sum += n;
              assert_true(own ? n >= 0 && n <= HKV : n == 0 || n == HKV);
              apart |= n == 1;
              if (i < t) assert_true(n <= before.heads[b][l][i]);
              if (p == WN_POLICY_WINDOW) assert_int_equal(n, i > t - budget ? HKV : 0);
              if (p == WN_POLICY_STREAMING) assert_int_equal(n, i < 4 || i > t - (budget - 4) ? HKV : 0);
            }
            assert_int_equal(sum, full * HKV);
            assert_int_equal(now.heads[b][l][t], HKV);
          }
        }
        before = now;
        assert_true(wn_session_held_bytes(one) <= wn_session_kv_bytes(one));
        assert_int_equal(wn_session_held_bytes(one) == wn_session_kv_bytes(one), t + 1 >= 12);
      }
      if (own) assert_true(apart); /* heads did choose differently */
      feed(ctx, whole, ids, 0, T);
      held_of(ctx, whole, &other);
      assert_memory_equal(&now, &other, sizeof now);
      OK(ctx, wn_session_copy(ctx, copy, one, NULL));
      held_of(ctx, copy, &other);
      assert_memory_equal(&now, &other, sizeof now);
      wn_session_destroy(one), wn_session_destroy(whole), wn_session_destroy(copy);
      wn_budgets_clear(&budgets);
    }
  }
  wn_model_destroy(plain), wn_model_destroy(selective), wn_model_destroy(selective_own);
  wn_context_destroy(ctx);
}

/* Attention reads exactly the tokens that are reported as held: changing a token changes the logits if and only if it
 * is held. The evictions of policy `random` do not depend on tokens, and with one layer an evicted token cannot reach
 * the logits. */
static void test_reaches_logits(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV};
  wn_model_config c = model_case_config(&k);
  c.context = T, c.layers = 1;
  wn_model *model = model_of(ctx, &c, WN_F32);
  wn_budgets budgets;
  wn_session *s;
  int32_t ids[B * T], heads[T];
  float logits[V], changed[V];
  int gone = 0;
  random_text(ids);
  budgets_init(&budgets);
  budgets.policy = WN_POLICY_RANDOM;
  OK(ctx, wn_budgets_parse(ctx, &c, "9", &budgets));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = T, .budgets = &budgets), &s));
  OK(ctx, wn_session_feed(ctx, s, ids, T, 0, logits));
  OK(ctx, wn_session_held(ctx, s, 0, 0, heads));
  for (int i = 0; i < T; i++) {
    const int32_t was = ids[i];
    ids[i] = (was + 1) % V;
    wn_session_reset(s);
    OK(ctx, wn_session_feed(ctx, s, ids, T, 0, changed));
    ids[i] = was;
    const bool same = !memcmp(logits, changed, sizeof logits);
    if (same != (heads[i] == 0)) fail_msg("position %d: held by %d heads, %s", i, heads[i], same ? "not seen" : "seen");
    gone += heads[i] == 0;
  }
  assert_int_equal(gone, T - 9);
  wn_session_destroy(s);
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Heads with their own budgets, layers that hold a window, and layers that hold everything. */
static void test_parts(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  int32_t ids[B * T];
  struct held held;
  wn_session *s;
  random_text(ids);
  wn_model *model = rope_model(ctx, "{\"window\":5,\"window_layers\":\"10\"}");
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
  for (int t = 0; t < T; t += 8) {
    feed(ctx, s, ids, t, 8);
    held_of(ctx, s, &held);
    for (int b = 0; b < B; b++) {
      for (int i = 0; i < t + 8; i++) {
        assert_int_equal(held.heads[b][0][i], i > t + 7 - 5 ? HKV : 0);
        assert_int_equal(held.heads[b][1][i], HKV);
      }
    }
  }
  wn_session_reset(s);
  assert_int_equal(wn_session_held_bytes(s), 0);
  wn_session_destroy(s);
  wn_model_destroy(model);
  model = rope_model(ctx, NULL);
  wn_budgets budgets;
  budgets_init(&budgets);
  OK(ctx, wn_budgets_set(ctx, "per_kv_head=true", &budgets));
  budgets.policy = WN_POLICY_TOVA;
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "9:4,40:6", &budgets));
  OK(ctx, wn_session_create(ctx, model,
                            WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &budgets), &s));
  feed(ctx, s, ids, 0, T);
  held_of(ctx, s, &held);
  for (int b = 0; b < B; b++) {
    int sums[L] = {0};
    for (int l = 0; l < L; l++)
      for (int i = 0; i < T; i++) sums[l] += held.heads[b][l][i];
    assert_int_equal(sums[0], 9 + 4);
    assert_int_equal(sums[1], 40 + 6);
    for (int i = 0; i < T; i++) assert_true(held.heads[b][1][i] >= 1); /* this layer's first head holds everything */
  }
  assert_refused(ctx, wn_session_held(ctx, s, B, 0, held.heads[0][0]), WN_ERR_ARGUMENT, "sequence 2");
  assert_refused(ctx, wn_session_held(ctx, s, 0, -1, held.heads[0][0]), WN_ERR_ARGUMENT, "layer -1");
  wn_session_destroy(s);
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_policies),
      cmocka_unit_test(test_reaches_logits),
      cmocka_unit_test(test_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
