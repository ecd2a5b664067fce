/* Scratch is measured once, for the largest call, with evictions and, for training, dropout. A call with fewer
 * sequences or keys, without evictions, or for an evaluation between two steps never needs more, whichever path the
 * backend takes. */
#include "support.h"

#include "backends/backends.h"
#include "model/models.h"
#include "ops/attention.h"
#include "winnow/kv.h"
#include "policies.h"

static void test_fewer_keys_need_no_more(void **state) {
  (void)state;
  static const struct {
    int64_t strided, buffer, window, D;
    double density;
    bool selects;
  } rows[] = {{.strided = 11, .D = 16},
              {.strided = 5, .D = 16, .selects = true},
              {.strided = 4, .D = 6},
              {.buffer = 17, .density = 1.6, .D = 4},
              {.buffer = 3, .density = 0.7, .window = 90, .D = 32, .selects = true},
              {.strided = 3, .buffer = 40, .density = 2, .D = 16}};
  static const int64_t longest[] = {6, 63, 300, 1023}, queries[] = {1, 2, 100};
  static const int32_t evicted_at[1];
  wn_context *ctx = context_of("cpu", 1);
  struct wn_exec exec = {.ctx = ctx, .threads = 1, .dtype = WN_F32};
  assert_ok(ctx, wn_backend_of(ctx, &exec.backend));
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    for (int n = 0; n < 4 * 4 * 2; n++) { /* all rows, or a few; measured for training or not */
      struct wn_attention a = {.B = 1, .H = 2, .Hkv = 1, .D = rows[r].D, .strided = rows[r].strided};
      a.window = rows[r].window;
      a.root.on = rows[r].buffer > 0, a.root.buffer = rows[r].buffer, a.root.density = rows[r].density;
      a.sel.on = rows[r].selects;
      a.Tk = longest[n / 4 % 4];
      a.Tq = n % 4 < 3 ? queries[n % 4] : a.Tk;
      if (a.Tq > a.Tk) continue;
      const bool whole = a.Tq == a.Tk;
      a.slots.evicted_at = evicted_at;
      a.dropout.p = n / 16 ? 0.2f : 0;
      const size_t room = wn_op_attention_scratch(&exec, &a, false);
      a.dropout.p = 0;
      for (int64_t Tk = whole ? 1 : a.Tq; Tk <= longest[n / 4 % 4]; Tk++)
        for (int evicts = 0; evicts < 2; evicts++) {
          a.slots.evicted_at = evicts ? evicted_at : NULL;
          a.Tk = Tk;
          if (whole) a.Tq = Tk;
          const size_t need = wn_op_attention_scratch(&exec, &a, false);
          if (need > room)
            fail_msg("row %d: %lld rows of %lld keys%s need %zu bytes, those of %lld have %zu", (int)r, (long long)a.Tq,
                     (long long)Tk, evicts ? ", some evicted," : "", need, (long long)longest[n / 4 % 4], room);
        }
    }
  }
  wn_context_destroy(ctx);
}

static void test_fewer_sequences_need_no_more(void **state) {
  (void)state;
  static const int64_t heads[][2] = {{2, 1}, {4, 4}, {6, 2}};
  static const int64_t lengths[] = {1, 64, 100, 190, 250, 320, 449, 700};
  static float any[1];
  enum { MOST = 11, LENGTHS = sizeof lengths / sizeof *lengths };
  for (int threads = 1; threads <= 5; threads++) {
    wn_context *ctx = context_of("cpu", threads);
    struct wn_exec exec = {.ctx = ctx, .threads = threads, .dtype = WN_F32};
    assert_ok(ctx, wn_backend_of(ctx, &exec.backend));
    for (int n = 0; n < 3 * 3 * 2 * 2; n++) {
      struct wn_attention a = {.H = heads[n % 3][0], .Hkv = heads[n % 3][1], .D = 24};
      const bool backward = n / 9 % 2;
      a.open = n / 18;
      a.sel.on = n / 3 % 3 > 0, a.sel.groups = n / 3 % 3 == 2 ? a.Hkv : 1, a.sel.dstrength = a.sel.on ? any : NULL;
      size_t need[MOST + 1][LENGTHS];
      for (int64_t B = 1; B <= MOST; B++)
        for (int t = 0; t < LENGTHS; t++) {
          a.B = B, a.Tq = a.Tk = lengths[t];
          need[B][t] = wn_op_attention_scratch(&exec, &a, backward);
          if ((B > 1 && need[B][t] < need[B - 1][t]) || (t > 0 && need[B][t] < need[B][t - 1]))
            fail_msg(
                "%s on %d threads, %lld of %lld heads, %lld selections: %lld sequences of %lld need less than fewer",
                backward ? "backward" : "forward", threads, (long long)a.Hkv, (long long)a.H,
                (long long)(a.sel.on ? a.sel.groups : 0), (long long)B, (long long)lengths[t]);
        }
    }
    wn_context_destroy(ctx);
  }
}

/* One layer whose budget is never reached, next to one whose budget is. */
static void test_budgets_of_one_layer(void **state) {
  (void)state;
  static const char *const masks[] = {"{\"strided\":11}", "{\"sqrt\":{\"buffer\":17,\"density\":1.6}}"};
  for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
    enum { T = 7, V = 13 };
    wn_context *ctx = context_of("cpu", 1);
    wn_model_config c;
    wn_model_config_init(&c);
    c.vocab_size = V, c.context = T, c.layers = 2, c.width = 8, c.heads = 2, c.kv_heads = 1, c.head_size = 16;
    c.ffn_width = 5;
    assert_ok(ctx, wn_attention_config_parse(ctx, masks[i], &c.attention));
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_budgets budgets;
    budgets_init(&budgets);
    budgets.policy = WN_POLICY_WINDOW;
    assert_ok(ctx, wn_budgets_parse(ctx, &c, "2,7", &budgets));
    static const int32_t tokens[T] = {1, 5, 2, 9, 0, 12, 3};
    float logits[T * V], last[V];
    assert_ok(ctx,
              wn_model_logits(ctx, model, tokens, 1, T, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits));
    wn_session *s;
    assert_ok(ctx,
              wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = T, .budgets = &budgets), &s));
    assert_ok(ctx, wn_session_feed(ctx, s, tokens, T, 0, last));
    for (int v = 0; v < V; v++) assert_true(fabsf(last[v] - logits[(T - 1) * V + v]) <= 1e-4f * (1 + fabsf(last[v])));
    wn_session_destroy(s);
    wn_budgets_clear(&budgets);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_fewer_keys_need_no_more),
                                     cmocka_unit_test(test_fewer_sequences_need_no_more),
                                     cmocka_unit_test(test_budgets_of_one_layer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
