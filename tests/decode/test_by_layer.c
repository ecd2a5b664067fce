/* Contexts that are read layer by layer: what stays, the logits and what follows have the bits of a reading in pieces
 * and a compression; the peak is that of one layer and not of all; an interrupted and a failing reading leave the
 * session as it was. */
#include "model/models.h"

#include "decode/batch.h"
#include "policies.h"
#include "support.h"
#include "winnow/generate.h"

enum { N = 300, MORE = 12, ROOM = N + MORE, V_MOST = 64 };

static void random_text(uint64_t seed, int64_t vocab, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, (uint64_t)vocab);
}

static wn_model *model_like(wn_context *ctx, const struct model_case *k, wn_dtype dtype) {
  wn_model_config c = model_case_config(k);
  c.context = ROOM;
  return model_of(ctx, &c, dtype);
}

/* NULL: the model has no such policy, or refuses it. */
static wn_session *session_with(wn_context *ctx, wn_model *model, const char *policy, const char *options,
                                const char *budget, int64_t sequences) {
  wn_budgets b;
  wn_session *s = NULL;
  wn_budgets_init(&b, &wn_model_config_get(model)->attention);
  if (!wn_budgets_named(policy, &b)) assert_int_equal(wn_policy_find(NULL, policy, &b.policy), WN_OK);
  OK(ctx, wn_budgets_set(ctx, options, &b));
  OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  if (wn_session_create(ctx, model,
                        WN_OPTIONS(wn_session_options, .sequences = sequences, .capacity = ROOM, .budgets = &b),
                        &s) != WN_OK)
    s = NULL;
  wn_budgets_clear(&b);
  return s;
}

/* ids [sequences,n], cut where a reading by layers cuts. */
static wn_status read_in_pieces(wn_context *ctx, wn_session *s, const int32_t *ids, int n, float *logits) {
  int32_t piece[4 * 256];
  for (int done = 0, T; done < n; done += T) {
    T = (int)(wn_session_place_after(done) - done);
    if (T > n - done) T = n - done;
    for (int64_t b = 0; b < s->B; b++) memcpy(piece + b * T, ids + b * n + done, (size_t)T * sizeof *piece);
    WN_TRY(wn_session_feed(ctx, s, piece, T, 0, logits));
  }
  return wn_session_compress(ctx, s);
}

/* Both sessions hold the same and continue with the same bits. */
static void assert_same(wn_context *ctx, const char *what, wn_session *a, wn_session *b, const int32_t *more) {
  const wn_model_config *c = &a->model->config;
  int32_t at[2][ROOM];
  float logits[2][4 * V_MOST];
  for (int64_t row = 0; row < a->B; row++)
    for (int64_t l = 0; l < c->layers; l++)
      for (int64_t h = 0; h < c->kv_heads; h++) {
        int64_t count[2];
        OK(ctx, wn_session_kept(ctx, a, row, l, h, at[0], &count[0]));
        OK(ctx, wn_session_kept(ctx, b, row, l, h, at[1], &count[1]));
        if (count[0] != count[1] || memcmp(at[0], at[1], (size_t)count[0] * sizeof **at) != 0)
          fail_msg("%s: layer %d, head %d keeps other tokens", what, (int)l, (int)h);
      }
  if (wn_session_kv_bytes(a) != wn_session_kv_bytes(b)) fail_msg("%s: other bytes", what);
  for (int t = 0; t < MORE; t++) {
    int32_t next[4];
    for (int64_t row = 0; row < a->B; row++) next[row] = more[t];
    OK(ctx, wn_session_feed(ctx, a, next, 1, 0, logits[0]));
    OK(ctx, wn_session_feed(ctx, b, next, 1, 0, logits[1]));
    if (memcmp(logits[0], logits[1], (size_t)(a->B * c->vocab_size) * sizeof **logits) != 0)
      fail_msg("%s: other logits, %d tokens later", what, t + 1);
  }
}

static const char *const policies[] = {"streaming", "window",     "random",       "knorm",          "keydiff",
                                       "h2o",       "tova",       "snapkv",       "selective",      "lagkv",
                                       "expected",  "observed",   "leverage",     "compactor",      "rkv",
                                       "pyramidkv", "ada-snapkv", "ada-expected", "critical-snapkv"};
enum { POLICIES = sizeof policies / sizeof *policies };

/* Of n tokens of each sequence. False: the model refuses the policy. */
static bool check(wn_context *ctx, wn_model *model, const char *name, const char *policy, const char *options,
                  int64_t sequences, int n) {
  int32_t ids[4 * N], more[MORE];
  float logits[2][4 * V_MOST];
  char what[256];
  wn_session *pieces = session_with(ctx, model, policy, options, "25%", sequences), *layers;
  if (!pieces) return false;
  layers = session_with(ctx, model, policy, options, "25%", sequences);
  snprintf(what, sizeof what, "%s: %s, %s, %d sequences", name, policy, options, (int)sequences);
  random_text((uint64_t)n, model->config.vocab_size, ids, (int)sequences * n);
  random_text(5, model->config.vocab_size, more, MORE);
  assert_true(model->config.vocab_size <= V_MOST);
  if (wn_session_reads_by_layer(layers) != (sequences == 1 || layers->budgets.allot < WN_ALLOT_ADA))
    fail_msg("%s: is read in pieces, or is not", what);
  if (read_in_pieces(ctx, pieces, ids, n, logits[0]) != WN_OK) {
    assert_int_not_equal(wn_session_read_context(ctx, layers, ids, n, logits[1]), WN_OK);
    wn_session_destroy(pieces), wn_session_destroy(layers);
    return false;
  }
  for (int again = 0; again < 2; again++) {
    OK(ctx, wn_session_read_context(ctx, layers, ids, n, logits[1]));
    if (memcmp(logits[0], logits[1], (size_t)(sequences * model->config.vocab_size) * sizeof **logits) != 0)
      fail_msg("%s: other logits", what);
    if (again == 0) wn_session_reset(layers);
  }
  assert_same(ctx, what, pieces, layers, more);
  wn_session_destroy(pieces), wn_session_destroy(layers);
  return true;
}

/* Every model of the tests, with a policy or method after the other, and several sequences. */
static void test_models(void **state) {
  (void)state;
  int checked = 0, number = 0;
  for (size_t m = 0; m < sizeof model_cases / sizeof *model_cases; m++) {
    wn_context *ctx = context_of("cpu", 1 + (int)(m % 2));
    wn_model *model = model_like(ctx, &model_cases[m], WN_F32);
    for (int p = 0; p < 8; p++, number++)
      checked += check(ctx, model, model_cases[m].name, policies[number % POLICIES],
                       number % 3 ? "when=prompt,snapkv.rows=8" : "when=hold,snapkv.rows=8", 1 + number % 2 * 2,
                       number % 5 ? N : 1 + number % 200);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
  assert_true(checked > number / 3);
}

/* Every policy and method with the models that it is made for, in the three backends of the host and in double. */
static void test_policies(void **state) {
  (void)state;
  static const struct {
    const char *backend;
    wn_dtype dtype;
    int threads;
  } on[] = {{"cpu", WN_F32, 1}, {"cpu", WN_F32, 2}, {"ref", WN_F32, 1}, {"ref", WN_F64, 1}, {"guard", WN_F32, 1}};
  static const struct model_case kinds[] = {
      {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .attention = "{}"},
      {.position = WN_POS_LEARNED, .ffn = WN_FFN_GELU, .kv_heads = 4, .attention = "{\"selective\":{}}"}};
  for (size_t i = 0; i < sizeof on / sizeof *on; i++)
    for (int kind = 0; kind < 2; kind++) {
      wn_context *ctx = context_of(on[i].backend, on[i].threads);
      wn_model *model = model_like(ctx, &kinds[kind], on[i].dtype);
      int checked = 0;
      for (int p = 0; p < POLICIES; p++)
        checked += check(ctx, model, on[i].backend, policies[p], "when=prompt,snapkv.rows=8", 1, i < 2 ? N : 140);
      assert_true(checked >= (kind ? 9 : POLICIES - 1));
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
}

/* One layer in full, what stays of the others, and the residual stream: less than the caches of all layers. */
static void test_peak(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .attention = "{}"};
  wn_model_config c = model_case_config(&k);
  enum { L = 12, T = 1024, K = 128 };
  c.context = T, c.layers = L;
  wn_model *model = model_of(ctx, &c, WN_F32);
  static int32_t ids[T];
  wn_budgets b;
  wn_session *s;
  wn_memory_info before, after;
  random_text(3, c.vocab_size, ids, T);
  wn_budgets_init(&b, NULL);
  assert_int_equal(wn_policy_find(NULL, "knorm", &b.policy), WN_OK);
  b.when = WN_WHEN_PROMPT;
  OK(ctx, wn_budgets_parse(ctx, &c, "128", &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = T, .budgets = &b), &s));
  const size_t each = wn_session_kv_bytes(s) / (L * 64), stream = T * (size_t)c.width * sizeof(float);
  wn_memory_peak_reset();
  wn_memory_info_get(&before);
  OK(ctx, wn_session_read_context(ctx, s, ids, T, NULL));
  wn_memory_info_get(&after);
  const size_t peak = wn_session_peak_bytes(s), most = each * (T + K * L) + stream;
  assert_true(peak > each * T + stream && peak <= most && most < each * T * L / 2);
  assert_int_equal(wn_session_kv_bytes(s), each * K * L);
  /* what was really allocated: the caches' growth, and a layer's scores */
  assert_true(after.peak_bytes - before.live_bytes < most + each * T);
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, ids, T, 0, NULL));
  OK(ctx, wn_session_compress(ctx, s));
  assert_true(wn_session_peak_bytes(s) >= each * T * L);
  wn_session_destroy(s);
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* ---- what goes wrong ---- */

/* Fails at a layer the first time. */
static bool fails_once(void *user, const wn_policy_view *v) {
  int *left = user;
  for (int64_t i = 0; i < v->groups * v->count; i++) v->scores[i] = (float)((i * 7) % 13);
  return !(v->layer == 1 && (*left)-- > 0);
}

static void test_failure(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_like(ctx, &model_cases[1], WN_F32);
  int left = 1;
  wn_own_policy own = {.size = sizeof own, .needs = WN_OWN_KEYS, .score = fails_once, .user = &left};
  wn_budgets b;
  wn_session *s[2];
  int32_t ids[N], more[MORE];
  random_text(4, model->config.vocab_size, ids, N);
  random_text(5, model->config.vocab_size, more, MORE);
  wn_budgets_init(&b, NULL);
  b.policy = WN_POLICY_OWN, b.own = &own, b.per_kv_head = true, b.when = WN_WHEN_PROMPT;
  OK(ctx, wn_budgets_parse(ctx, &model->config, "40", &b));
  for (int i = 0; i < 2; i++) {
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = ROOM, .budgets = &b), &s[i]));
    OK(ctx, wn_session_pin(ctx, s[i], 3, 2));
  }
  assert_int_not_equal(wn_session_read_context(ctx, s[0], ids, N, NULL), WN_OK);
  assert_int_equal(left, 0);
  assert_int_equal(wn_session_position(s[0]), 0);
  OK(ctx, wn_session_read_context(ctx, s[0], ids, N, NULL)); /* pins included */
  OK(ctx, read_in_pieces(ctx, s[1], ids, N, NULL));
  assert_same(ctx, "after a failure", s[0], s[1], more);
  /* tokens that do not fit, and pins that leave no room, before anything is read */
  wn_session_reset(s[0]);
  assert_refused(ctx, wn_session_read_context(ctx, s[0], ids, ROOM + 1, NULL), WN_ERR_ARGUMENT, "do not fit");
  OK(ctx, wn_session_read_context(ctx, s[0], ids, 20, NULL));
  wn_session_destroy(s[0]), wn_session_destroy(s[1]);
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A generation reads a layer at a step. One that is cancelled or destroyed in between leaves an empty session. */
static void test_interruption(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_like(ctx, &model_cases[1], WN_F32);
  int32_t ids[N], drawn[2][MORE];
  wn_generate_options o;
  wn_generation *g;
  bool more = true;
  random_text(6, model->config.vocab_size, ids, N);
  wn_session *s = session_with(ctx, model, "snapkv", "when=prompt", "30", 1);
  wn_generate_options_init(&o, sizeof o);
  o.prompt = ids, o.prompt_count = N, o.max_tokens = MORE, o.sampling.temperature = 0, o.drawn = drawn[0];
  OK(ctx, wn_session_generate(ctx, s, &o, NULL));
  assert_true(wn_session_peak_bytes(s) > 0 && wn_session_position(s) == N + MORE - 1);
  for (int cancelled = 0; cancelled < 2; cancelled++) {
    wn_session_reset(s);
    OK(ctx, wn_generation_create(ctx, s, &o, &g));
    OK(ctx, wn_generation_step(ctx, g, &more));
    assert_true(more && wn_generation_result(g)->prompt_tokens == 0);
    if (cancelled) {
      wn_context_cancel(ctx);
      OK(ctx, wn_generation_step(ctx, g, &more));
      assert_true(!more && wn_generation_result(g)->end == WN_GENERATE_CANCELLED);
      wn_context_resume(ctx);
    }
    wn_generation_destroy(g);
    assert_int_equal(wn_session_position(s), 0);
    o.drawn = drawn[1];
    OK(ctx, wn_session_generate(ctx, s, &o, NULL));
    assert_memory_equal(drawn[0], drawn[1], sizeof drawn[0]);
  }
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A decoder with an encoder. */
static void test_encoder(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[0]);
  c.context = ROOM, c.encoder.layers = 2, c.encoder.context = 10;
  wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[N], more[MORE];
  wn_session *s[2];
  random_text(6, c.vocab_size, ids, N);
  random_text(5, c.vocab_size, more, MORE);
  for (int i = 0; i < 2; i++) {
    s[i] = session_with(ctx, model, "keydiff", "when=prompt", "30", 1);
    assert_non_null(s[i]);
    OK(ctx, wn_session_encode(ctx, s[i], ids + 20, NULL, 10));
  }
  OK(ctx, read_in_pieces(ctx, s[0], ids, N, NULL));
  OK(ctx, wn_session_read_context(ctx, s[1], ids, N, NULL));
  assert_same(ctx, "an encoder", s[0], s[1], more);
  wn_session_destroy(s[0]), wn_session_destroy(s[1]);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* kvzip reads twice: in pieces. */
static void test_in_pieces(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_like(ctx, &model_cases[1], WN_F32);
  int32_t ids[20];
  random_text(6, model->config.vocab_size, ids, 20);
  wn_session *s = session_with(ctx, model, "kvzip", "when=prompt", "9", 1);
  assert_true(s && !wn_session_reads_by_layer(s));
  assert_refused(ctx, wn_session_read_context(ctx, s, ids, 20, NULL), WN_ERR_ARGUMENT, "expected a tokenizer");
  wn_session_destroy(s);
  /* and so does a session that holds something, or that keeps all */
  s = session_with(ctx, model, "knorm", "when=prompt", "9", 1);
  OK(ctx, wn_session_feed(ctx, s, ids, 3, 0, NULL));
  assert_false(wn_session_reads_by_layer(s));
  OK(ctx, wn_session_read_context(ctx, s, ids + 3, 17, NULL));
  assert_int_equal(s->caches[0].count, 9);
  wn_session_destroy(s);
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = ROOM), &s));
  OK(ctx, wn_session_read_context(ctx, s, ids, 20, NULL));
  assert_int_equal(s->caches[0].count, 20);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_models),    cmocka_unit_test(test_policies),     cmocka_unit_test(test_peak),
      cmocka_unit_test(test_failure),   cmocka_unit_test(test_interruption), cmocka_unit_test(test_encoder),
      cmocka_unit_test(test_in_pieces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
