/* Terms of an attention call that a backend may not serve. A mechanism that only this test has brings a term that
 * nobody serves: every backend, view and policy must refuse it in one line that names both. Also, each mechanism's
 * entry names the terms that it turns on. */
#include "isa.h"
#include "mechanisms.h"
#include "own_mechanism.h"

#include "attention/derive.h"
#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/sparse.h"
#include "decode/session.h"
#include "kv/evictions.h"

#define TERM "a term of the test"

static const struct wn_score_kind kind = {.name = TERM};
static const struct wn_field field = OWN_FIELD("test");
static void fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)config, (void)layer, (void)head_size;
  out->map[out->maps++].kind = &kind;
}
static const struct wn_mechanism mechanism = OWN_MECHANISM("test", field, .score = &kind, .fill = fill);

static wn_context *ctx;

static wn_context *context_of(const char *backend) {
  wn_context *made = NULL;
  if (wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = backend, .threads = 2},
                        &made) != WN_OK)
    fail_msg("%s", wn_context_error(made));
  return made;
}

static wn_attention_config parsed(const char *text) {
  wn_attention_config config;
  assert_int_equal(wn_attention_config_parse(NULL, text, &config), WN_OK);
  return config;
}

/* The call was refused, and the message names `who` and the term. */
static void refused(wn_status status, const char *who) {
  assert_int_equal(status, WN_ERR_UNSUPPORTED);
  const char *text = wn_context_error(ctx);
  if (!strstr(text, who) || !strstr(text, TERM)) fail_msg("\"%s\" does not name \"%s\" and \"%s\"", text, who, TERM);
}

static const float x[4 * 300 * 8];
static float out[4 * 300 * 8];
static void arrays(wn_attention_arrays *a, int64_t T) {
  *a = (wn_attention_arrays){
      .B = 1, .T = T, .H = 4, .Hkv = 4, .D = 8, .dtype = WN_F32, .q = x, .k = x, .v = x, .y = out};
}

static void backends(void **state) {
  (void)state;
  const wn_attention_config config = parsed("{\"test\":true}");
  for (const char *const *name = wn_backend_names(); *name; name++)
    for (int64_t T = 1; T <= 300; T += 299) {
      if (!strcmp(*name, "cuda")) continue; /* tests/cuda/test_cuda_terms.c */
      ctx = context_of(*name);
      wn_attention_arrays a;
      char who[64];
      snprintf(who, sizeof who, "backend %s", *name);
      arrays(&a, T);
      refused(wn_attention_run(ctx, &config, &a), who);
      struct wn_attention op;
      assert_ok(ctx, wn_attention_call(ctx, &config, &a, &op));
      struct wn_exec exec = {.ctx = ctx, .threads = 1, .dtype = WN_F32};
      assert_ok(ctx, wn_backend_of(ctx, &exec.backend));
      refused(wn_op_attention_backward(&exec, &op), who);
      op.sel = (__typeof__(op.sel)){.on = true, .relu = true, .shift = true, .dead_share = 0x1p-24};
      assert_false(wn_dead_keys_wanted(&op));
      const struct wn_attention_plan plan = {.a = &op};
      op.strided = 4;
      assert_false(wn_sparse_may(&plan, false));
      op.maps = 0;
      assert_true(wn_sparse_may(&plan, false)); /* it was the term that was refused */
      op.strided = 0;
      assert_int_equal(wn_dead_keys_wanted(&op), T > 1);
      wn_context_destroy(ctx);
    }
}

static void policies(void **state) {
  (void)state;
  ctx = context_of("ref");
  const wn_attention_config config = parsed("{\"test\":true,\"selective\":true}");
  static int32_t evicted_at[300];
  int64_t tokens = 9;
  for (int p = 0; p < WN_POLICY_COUNT; p++) {
    wn_attention_arrays a;
    char who[64];
    arrays(&a, 300);
    const wn_budgets budgets = {.policy = (wn_policy)p, .layers = 1, .tokens = &tokens};
    snprintf(who, sizeof who, "policy \"%s\"", wn_policy_names[p]);
    refused(wn_attention_evictions(ctx, &config, &a, &budgets, evicted_at), who);
  }
  wn_context_destroy(ctx);
}

static void views(void **state) {
  (void)state;
  ctx = context_of("cpu");
  wn_attention_config config;
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"test\":true,\"bidirectional\":true}", &config), WN_ERR_CONFIG,
                 "bidirectional attention does not serve the term \"" TERM "\"");
  struct wn_attention op = {.B = 1, .Tq = 1, .Tk = 1, .H = 1, .Hkv = 1, .D = 1};
  op.map[op.maps++].kind = &kind;
  assert_string_equal(wn_call_lacks_traits(&op, WN_TRAIT_OPEN), TERM);
  assert_string_equal(wn_call_lacks_traits(&op, WN_TRAIT_HALF), TERM);

  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 11, c.context = 300, c.width = 16, c.layers = 1, c.heads = c.kv_heads = 2, c.head_size = 8;
  c.position = WN_POS_ROPE;
  c.attention = parsed("{\"test\":true}");
  struct wn_model *model;
  assert_ok(ctx, wn_model_create_dtype(ctx, &c, 1, WN_F32, &model));
  struct wn_session by_weights = {.model = model, .attention = c.attention, .budgets = {.policy = WN_POLICY_H2O}},
                    by_place = {.model = model,
                                .attention = c.attention,
                                .budgets = {.policy = WN_POLICY_STREAMING, .cache_positions = true}};
  assert_false(wn_session_takes_blocks(&by_weights));
  assert_false(wn_session_takes_cache_position_blocks(&by_place));
  wn_session *session = NULL;
  wn_session_options options = {.size = sizeof options, .sequences = 1, .cache = WN_CACHE_FLOAT};
  refused(wn_session_create(ctx, model, &options, &session), "backend cpu");
  /* A forward pass as in training and evaluation, and one by cache positions. */
  int64_t tokens = 9;
  const wn_budgets budgets = {.policy = WN_POLICY_STREAMING, .layers = 1, .tokens = &tokens, .cache_positions = true};
  for (int n = 0; n < 2; n++) {
    static int32_t ids[40], targets[40];
    const struct wn_workspace_options how = {.activation_dtype = WN_F32, .budgets = n ? &budgets : NULL};
    wn_workspace *ws = NULL;
    assert_ok(ctx, wn_workspace_create(ctx, model, 1, 40, &how, &ws));
    const struct wn_step step = {.budgets = n ? &budgets : NULL};
    const struct wn_batch batch = {.B = 1, .T = 40, .tokens = ids, .targets = targets};
    struct wn_step_result result;
    refused(wn_model_step(model, ws, &batch, &step, &result), "backend cpu");
    wn_workspace_destroy(ws);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* An entry's terms are exactly those that its settings can turn on. */
static void rows_name_their_terms(void **state) {
  (void)state;
  const struct wn_mechanism *own = wn_mechanism_of_test;
  wn_mechanism_of_test = NULL;
  mech_list(false);
  uint32_t seen = 0;
  for (int i = 0; i < mech_alone; i++) {
    struct wn_attention op = {.H = 4, .Hkv = 2};
    uint32_t named = 0;
    wn_attention_terms(&mech_cases[i].config, -1, 8, &op);
    for (int m = 0; m < wn_mechanism_count(); m++)
      if (wn_mechanism_at(m)->is_enabled(&mech_cases[i].config)) named |= wn_mechanism_at(m)->terms;
    seen |= wn_call_terms(&op);
    const uint32_t beside = wn_call_terms(&op) & WN_TERMS_OWN & ~named;
    if (beside) fail_msg("%s turns on \"%s\", which no row names", mech_cases[i].text, wn_terms_name(beside));
  }
  for (int m = 0; m < wn_mechanism_count(); m++) {
    const uint32_t never = wn_mechanism_at(m)->terms & ~seen & ~(uint32_t)WN_TERM_DROPOUT;
    if (never) fail_msg("no case of %s turns on \"%s\"", wn_mechanism_at(m)->name, wn_terms_name(never));
  }
  wn_mechanism_of_test = own;
}

/* A backend that says it keeps F to the bit between calls gives the same bits for a text in pieces as for one call. The
 * reference does not say so: its F within a call is in double. */
static void whole_selections(void **state) {
  (void)state;
  const struct {
    const char *backend, *isa;
  } places[] = {{"ref", NULL}, {"cpu", "ref"}, {"cpu", ISA_OF_EIGHT}, {"cpu", "avx512"}};
  enum { B = 2, T = 200, H = 4, D = 16, PIECE = 64 };
  const struct mech_case c = {.text = "selective", .config = parsed("{\"selective\":true}")};
  for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
    struct mech_place place;
    struct mech_bench m;
    float pieces[B * T * H * D], F[B * T] = {0};
    if (!mech_open(&place, places[n].backend, places[n].isa)) continue;
    mech_make(&m, &(struct mech_setup){.c = &c, .B = B, .Tq = T, .Tk = T, .H = H, .Hkv = H, .D = D, .seed = 3}, WN_F32);
    m.op.sel.dead_share = 0;
    assert_ok(place.ctx, mech_op(&place, &m, &m.op, false));
    for (int64_t at = 0; at < T; at += PIECE) {
      struct wn_attention op = wn_attention_of_rows(&m.op, WN_F32, at, at + PIECE < T ? PIECE : T - at);
      op.y = pieces + at * H * D;
      op.s_y = (struct wn_stride){T * H * D, H * D, D};
      op.sel.f_in = op.sel.f_out = F;
      op.sel.f_stride = T;
      assert_ok(place.ctx, mech_op(&place, &m, &op, false));
    }
    bool same = true;
    for (int64_t b = 0; b < B; b++)
      for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++)
          same = same && !memcmp((const float *)m.op.y + b * m.op.s_y.b + t * m.op.s_y.t + h * m.op.s_y.h,
                                 pieces + ((b * T + t) * H + h) * D, D * sizeof(float));
    if (same != place.backend->whole_selections)
      fail_msg("backend %s (%s): pieces %s the bits of one call", places[n].backend,
               places[n].isa ? places[n].isa : "its own", same ? "give" : "do not give");
    mech_clear(&m);
    mech_close(&place);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(backends),
      cmocka_unit_test(policies),
      cmocka_unit_test(views),
      cmocka_unit_test(rows_name_their_terms),
      cmocka_unit_test(whole_selections),
  };
  wn_mechanism_of_test = &mechanism;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
