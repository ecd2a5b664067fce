/* A loaded model gets another attention: it then equals a model created with it, in whole passes and in decoding. A
 * change that needs other parameters is refused. A threshold's control tokens are the same in both. */
#include "model/models.h"

#include "support.h"

enum { V = 13, T = 16 };

static wn_model_config config_of(const char *attention) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true, .attention = attention};
  return model_case_config(&k);
}

static void logits_of(wn_context *ctx, struct wn_model *model, const struct tokens *x, int64_t B, float *out) {
  OK(ctx, wn_model_logits(ctx, model, x->ids, B, T, NULL, out));
}

static void test_same_as_made(void **state) {
  (void)state;
  static const struct {
    const char *set[2], *attention;
  } cases[] = {
      {{"threshold.tau=0.6"}, "{\"threshold\":{\"tau\":0.6}}"},
      {{"sqrt.buffer=3", "sqrt.density=1.5"}, "{\"sqrt\":{\"buffer\":3,\"density\":1.5}}"},
      {{"window=4"}, "{\"window\":4}"},
      {{"selective=true"}, "{\"selective\":{}}"},
  };
  for (int backend = 0; backend < 2; backend++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      wn_context *ctx = context_of(backend ? "cpu" : "ref", 1);
      struct tokens x;
      float plain[2 * T * V], made[2 * T * V], set[2 * T * V];
      tokens_of(&x, 2, T, V, false);
      wn_model_config dense = config_of("{}"), other = config_of(cases[i].attention);
      struct wn_model *model = model_of(ctx, &dense, WN_F32), *like = model_of(ctx, &other, WN_F32);
      logits_of(ctx, model, &x, 2, plain);
      logits_of(ctx, like, &x, 2, made);
      for (int k = 0; k < 2 && cases[i].set[k]; k++) OK(ctx, wn_model_set_attention(ctx, model, cases[i].set[k]));
      logits_of(ctx, model, &x, 2, set);
      assert_memory_equal(set, made, sizeof set);
      assert_memory_not_equal(set, plain, sizeof set);
      wn_model_destroy(model);
      wn_model_destroy(like);
      wn_context_destroy(ctx);
    }
}

/* Dead keys: the cpu backend skips them up to the share that the context allows. */
static void test_dead_keys(void **state) {
  (void)state;
  enum { LONG = 512 };
  static const double shares[] = {-1, 6e-8, 0.5};
  int32_t ids[LONG];
  float *logits[3];
  for (int i = 0; i < LONG; i++) ids[i] = (i * 7 + i / 13) % V;
  for (int backend = 0; backend < 2; backend++) {
    wn_model_config c = config_of("{\"selective\":{}}");
    c.context = LONG;
    for (int i = 0; i < 3; i++) {
      const wn_context_options options = {
          .size = sizeof options, .backend = backend ? "cpu" : "ref", .threads = 1, .dead_keys = shares[i]};
      wn_context *ctx = NULL;
      OK(ctx, wn_context_create(&options, &ctx));
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      logits[i] = malloc(sizeof(float) * LONG * V);
      assert_non_null(logits[i]);
      OK(ctx, wn_model_logits(ctx, model, ids, 1, LONG, NULL, logits[i]));
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
    for (int i = 0; i < LONG * V; i++) assert_true(fabsf(logits[1][i] - logits[0][i]) < 2e-5f);
    assert_int_equal(memcmp(logits[2], logits[0], sizeof(float) * LONG * V) != 0, backend);
    for (int i = 0; i < 3; i++) free(logits[i]);
  }
}

static void context_dead_keys(const char *text, double option, wn_status expected, double share) {
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .backend = "ref", .threads = 1, .dead_keys = option};
  if (text) setenv("WINNOW_DEAD_KEYS", text, 1);
  assert_int_equal(wn_context_create(&options, &ctx), expected);
  unsetenv("WINNOW_DEAD_KEYS");
  if (expected == WN_OK) assert_true(ctx->dead_keys == share);
  wn_context_destroy(ctx);
}

/* The setting belongs to the run. The former key in a model's configuration is read and has no effect. */
static void test_dead_keys_setting(void **state) {
  (void)state;
  context_dead_keys(NULL, 0, WN_OK, 0x1p-24);
  context_dead_keys(NULL, -1, WN_OK, 0);
  context_dead_keys(NULL, 0.25, WN_OK, 0.25);
  context_dead_keys(NULL, 0.75, WN_ERR_ARGUMENT, 0);
  context_dead_keys("0", 0, WN_OK, 0);
  context_dead_keys("1e-6", 0, WN_OK, 1e-6);
  context_dead_keys("0", 0.25, WN_OK, 0.25);
  context_dead_keys("0.6", 0, WN_ERR_ARGUMENT, 0);
  context_dead_keys("none", 0, WN_ERR_ARGUMENT, 0);
  wn_attention_config with, without;
  wn_context *ctx = context_of("ref", 1);
  OK(ctx, wn_attention_config_parse(ctx, "{\"selective\":{\"negligible\":0}}", &with));
  OK(ctx, wn_attention_config_parse(ctx, "{\"selective\":{}}", &without));
  assert_memory_equal(&with, &without, sizeof with);
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"selective\":{\"negligible\":\"x\"}}", &with), WN_ERR_CONFIG,
                 "must be a number");
  wn_context_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_model_config c = config_of("{}");
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  const int32_t outside[] = {V};
  assert_refused(ctx, wn_model_set_attention(ctx, model, "sinks=2"), WN_ERR_CONFIG, "sink");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "relative=true"), WN_ERR_CONFIG, "parameters");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "span.limit=4"), WN_ERR_CONFIG, "span");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "treshold.tau=0.5"), WN_ERR_CONFIG, "threshold");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "threshold.tau=1.5"), WN_ERR_CONFIG, "tau");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "threshold.tau"), WN_ERR_ARGUMENT, "threshold.tau");
  assert_refused(ctx, wn_model_set_attention(ctx, model, "bidirectional=true"), WN_ERR_CONFIG, "bidirectional");
  assert_false(model->config.attention.threshold.enabled);
  assert_refused(ctx, wn_model_set_control_tokens(ctx, model, outside, 1), WN_ERR_ARGUMENT, "vocabulary");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void compare(const float *found, const float *expected, int64_t n, const char *what) {
  for (int64_t i = 0; i < n; i++)
    if (!(fabsf(found[i] - expected[i]) < 2e-5f))
      fail_msg("%s: logit %d is %g, expected %g", what, (int)i, (double)found[i], (double)expected[i]);
}

/* Control tokens in a whole pass and fed in pieces: alone, with windows, under a budget, and where each key-value head
 * holds tokens of its own (through its policy, its selections, or its own budget). */
static void test_control(void **state) {
  (void)state;
  static const char *const attentions[] = {"{\"threshold\":{\"tau\":0.4}}",
                                           "{\"threshold\":{\"tau\":0.4},\"window\":5,\"window_layers\":\"10\"}",
                                           "{\"threshold\":{\"tau\":0.4}}",
                                           "{\"threshold\":{\"tau\":0.4}}",
                                           "{\"threshold\":{\"tau\":0.4}}",
                                           "{\"threshold\":{\"tau\":0.4},\"selective\":{\"per_kv_head\":true}}",
                                           "{\"threshold\":{\"tau\":0.4},\"selective\":{\"per_kv_head\":true}}"};
  static const struct {
    wn_policy policy;
    bool per_kv_head, heads;
  } kinds[7] = {[2] = {.policy = WN_POLICY_STREAMING},
                [3] = {.policy = WN_POLICY_TOVA, .per_kv_head = true},
                [4] = {.policy = WN_POLICY_RANDOM, .per_kv_head = true, .heads = true},
                [5] = {.policy = WN_POLICY_SELECTIVE},
                [6] = {.policy = WN_POLICY_SELECTIVE, .heads = true}};
  const int32_t ids[] = {2, 5, 7};
  const int64_t pieces[] = {1, 6, 1, 1, 5, 2};
  int64_t tokens[2] = {6, 16}, of_heads[4] = {6, 4, 16, 5};
  for (int n = 0; n < 14; n++) {
    const int kind = n / 2;
    const bool budget = kind >= 2;
    wn_context *ctx = context_of(n & 1 ? "cpu" : "ref", kind >= 3 ? 2 : 1);
    wn_model_config c = config_of(attentions[kind]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    const wn_budgets budgets = {.policy = kinds[kind].policy,
                                .layers = 2,
                                .tokens = tokens,
                                .heads = kinds[kind].heads ? 2 : 0,
                                .head_tokens = kinds[kind].heads ? of_heads : NULL,
                                .per_kv_head = kinds[kind].per_kv_head,
                                .seed = 4,
                                .sinks = 2};
    struct tokens x;
    static float without[2 * T * V], with[2 * T * V], last[2 * V], expected[2 * V];
    tokens_of(&x, 2, T, V, false);
    OK(ctx, wn_model_logits(ctx, model, x.ids, 2, T, WN_OPTIONS(wn_logits_options, .budgets = budget ? &budgets : NULL),
                            without));
    OK(ctx, wn_model_set_control_tokens(ctx, model, ids, 3));
    OK(ctx, wn_model_logits(ctx, model, x.ids, 2, T, WN_OPTIONS(wn_logits_options, .budgets = budget ? &budgets : NULL),
                            with));
    assert_memory_not_equal(with, without, sizeof with);
    wn_session *s;
    OK(ctx,
       wn_session_create(
           ctx, model,
           WN_OPTIONS(wn_session_options, .sequences = 2, .capacity = T, .budgets = budget ? &budgets : NULL), &s));
    for (int64_t p = 0, at = 0; p < 6; at += pieces[p++]) {
      int32_t piece[2 * T];
      for (int64_t b = 0; b < 2; b++)
        memcpy(piece + b * pieces[p], x.ids + b * T + at, (size_t)pieces[p] * sizeof *piece);
      OK(ctx, wn_session_feed(ctx, s, piece, pieces[p], 0, last));
      for (int64_t b = 0; b < 2; b++)
        memcpy(expected + b * V, with + (b * T + at + pieces[p] - 1) * V, V * sizeof *expected);
      compare(last, expected, 2 * V, attentions[kind]);
    }
    wn_session_destroy(s);
    const int32_t kept = x.ids[3];
    for (int k = 0; k < 2; k++) { /* an id is also looked up among the control tokens */
      x.ids[3] = k ? -70000 : 90000000;
      assert_int_equal(wn_model_logits(ctx, model, x.ids, 2, T, NULL, with), WN_ERR_ARGUMENT);
      assert_non_null(strstr(wn_context_error(ctx), "ids[3]"));
    }
    x.ids[3] = kept;
    OK(ctx, wn_model_set_control_tokens(ctx, model, NULL, 0));
    OK(ctx, wn_model_logits(ctx, model, x.ids, 2, T, WN_OPTIONS(wn_logits_options, .budgets = budget ? &budgets : NULL),
                            with));
    assert_memory_equal(with, without, sizeof with);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_made), cmocka_unit_test(test_dead_keys),
                                     cmocka_unit_test(test_dead_keys_setting), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_control)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
