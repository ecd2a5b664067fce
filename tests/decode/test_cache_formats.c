/* Caches in q8_0 and q4_0: their bytes; logits near those of floats; the same bits whatever the number of sequences and
 * threads, in copies and after snapshots, under every policy and protocol; the methods read what is stored; the
 * reference and the cpu backend agree; what cannot be served is refused by name. */
#include "model/models.h"

#include "decode/session.h"
#include "decode/snapshot.h"
#include "support.h"
#include "winnow/generate.h"
#include "policies.h"

enum { V = 13, HEAD = 32, PROMPT = 70, STEPS = 6, CONTEXT = 96 };

static wn_model *model_with(wn_context *ctx, const char *attention, int64_t head_size) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .attention = attention ? attention : "{}"};
  wn_model_config c = model_case_config(&k);
  c.context = CONTEXT, c.head_size = head_size;
  return model_of(ctx, &c, WN_F32);
}

/* NULL budget: none. name: a policy or a combination. */
static wn_session *session_with(wn_context *ctx, wn_model *model, const char *name, const char *options,
                                const char *budget, int64_t sequences, wn_cache_format format) {
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  if (budget && !wn_budgets_named(name, &b)) assert_int_equal(wn_policy_find(NULL, name, &b.policy), WN_OK);
  if (budget && options) OK(ctx, wn_budgets_set(ctx, options, &b));
  if (budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  const wn_session_options o = {
      .size = sizeof o, .sequences = sequences, .capacity = CONTEXT, .budgets = budget ? &b : NULL, .cache = format};
  OK(ctx, wn_session_create(ctx, model, &o, &s));
  wn_budgets_clear(&b);
  return s;
}

static int32_t token_of(int sequence, int t) {
  return (int32_t)wn_random_below(21, WN_STREAM_TEST, (uint64_t)sequence, (uint64_t)t, V);
}

static void read_prompt(wn_context *ctx, wn_session *s, int sequences) {
  int32_t ids[3 * PROMPT];
  for (int i = 0; i < sequences * PROMPT; i++) ids[i] = token_of(i / PROMPT, i % PROMPT);
  OK(ctx, wn_session_feed(ctx, s, ids, PROMPT, 0, NULL));
}

/* Steps of all sequences; the logits of sequence 0, all of them. */
static void go_on(wn_context *ctx, wn_session *s, int sequences, float out[STEPS][V]) {
  float logits[3 * V];
  int32_t ids[3];
  for (int t = 0; t < STEPS; t++) {
    for (int b = 0; b < sequences; b++) ids[b] = token_of(b, PROMPT + t);
    OK(ctx, wn_session_feed(ctx, s, ids, 1, 0, logits));
    memcpy(out[t], logits, sizeof out[t]);
  }
}

static double apart(float x[STEPS][V], float y[STEPS][V]) {
  double most = 0;
  for (int i = 0; i < STEPS * V; i++) most = fmax(most, fabs((double)(&x[0][0])[i] - (double)(&y[0][0])[i]));
  return most;
}

static const struct kind {
  const char *attention, *name, *options, *budget;
} kinds[] = {
    {NULL, NULL, NULL, NULL},
    {NULL, "window", NULL, "20"},
    {NULL, "streaming", "sinks=2", "20"},
    {NULL, "h2o", NULL, "20"},
    {NULL, "h2o", "when=\"every\",every=8", "20"},
    {NULL, "tova", "per_kv_head=true", "20"},
    {NULL, "random", NULL, "20"},
    {NULL, "snapkv", NULL, "20"},
    {NULL, "snapkv", "when=\"prompt\",per_kv_head=true", "20"},
    {NULL, "snapkv", "when=\"hold\"", "20"},
    {NULL, "knorm", NULL, "20"},
    {NULL, "knorm", "when=\"prompt\"", "20"},
    {NULL, "keydiff", "per_kv_head=true", "20"},
    {NULL, "keydiff", "when=\"hold\"", "20"},
    {NULL, "expected", "when=\"prompt\"", "20"},
    {NULL, "pyramidkv", "when=\"prompt\"", "20"},
    {NULL, "ada-snapkv", "when=\"prompt\"", "20"},
    {"{\"selective\":{}}", "selective", NULL, "20"},
    {"{\"selective\":{\"per_kv_head\":true}}", "selective", NULL, "12:20"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The bits that a session gives: alone; as the first of three; in a copy; from a snapshot. */
static void check_kind(wn_context *ctx, wn_context *one, const struct kind *k, wn_cache_format format) {
  static float alone[STEPS][V], other[STEPS][V], floats[STEPS][V];
  wn_model *model = model_with(ctx, k->attention, HEAD), *same = model_with(one, k->attention, HEAD);
  const char *name = k->name ? k->name : "everything";
  wn_session *s = session_with(ctx, model, k->name, k->options, k->budget, 1, format),
             *copy = session_with(ctx, model, k->name, k->options, k->budget, 1, format);
  const bool compresses = s->budgets.when == WN_WHEN_PROMPT || s->budgets.when == WN_WHEN_HOLD;
  /* Several sequences under "every" have other bits than one, in floats too; "ada" takes one at a time. */
  const bool single =
      s->budgets.layers > 0 && (s->budgets.allot > WN_ALLOT_PYRAMID || s->budgets.when == WN_WHEN_EVERY);
  struct wn_snapshot *x = NULL;
  read_prompt(ctx, s, 1);
  if (!compresses) OK(ctx, wn_snapshot_take(ctx, s, PROMPT, &x));
  if (compresses) OK(ctx, wn_session_compress(ctx, s));
  if (!compresses) OK(ctx, wn_session_copy(ctx, copy, s, NULL));
  go_on(ctx, s, 1, alone);
  if (!compresses) {
    go_on(ctx, copy, 1, other);
    if (memcmp(alone, other, sizeof alone) != 0) fail_msg("%s: a copy gives other bits", name);
    OK(ctx, wn_snapshot_restore(x, PROMPT, copy));
    go_on(ctx, copy, 1, other);
    if (memcmp(alone, other, sizeof alone) != 0) fail_msg("%s: a snapshot gives other bits", name);
    wn_snapshot_destroy(x);
  }
  wn_session_destroy(copy);
  for (int n = 1; n <= (single ? 1 : 3); n += 2) { /* one thread, one and three sequences */
    wn_session *z = session_with(one, same, k->name, k->options, k->budget, n, format);
    read_prompt(one, z, n);
    if (compresses) OK(one, wn_session_compress(one, z));
    go_on(one, z, n, other);
    if (memcmp(alone, other, sizeof alone) != 0) fail_msg("%s: %d sequences and one thread give other bits", name, n);
    wn_session_destroy(z);
  }
  if (!k->name) {
    wn_session *z = session_with(ctx, model, NULL, NULL, NULL, 1, WN_CACHE_FLOAT);
    read_prompt(ctx, z, 1);
    go_on(ctx, z, 1, floats);
    /* a step of 4 bits is 127/7 of one of 8 */
    const double error = apart(alone, floats), most = format == WN_CACHE_Q8_0 ? 0.05 : 0.05 * 127 / 7;
    if (!(error > 0 && error < most)) fail_msg("%s: logits are %g apart", wn_cache_format_name(format), error);
    const size_t bytes = wn_session_kv_bytes(z), tokens = bytes / 8 / HEAD / 4; /* 2 layers, 2 heads, keys and values */
    assert_int_equal(tokens * 8 * HEAD * 4, bytes);
    assert_int_equal(wn_session_kv_bytes(s), tokens * 4 * (34 + (format == WN_CACHE_Q8_0 ? 34 : 18)));
    wn_session_destroy(z);
  }
  wn_session_destroy(s);
  wn_model_destroy(model), wn_model_destroy(same);
}

static void test_kinds(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2), *one = context_of("cpu", 1);
  for (int i = 0; i < KINDS; i++) {
    check_kind(ctx, one, &kinds[i], WN_CACHE_Q8_0);
    check_kind(ctx, one, &kinds[i], WN_CACHE_Q4_0);
  }
  wn_context_destroy(ctx), wn_context_destroy(one);
}

/* Without eviction the two backends attend to the same tokens; only the order of sums differs. */
static void test_backends(void **state) {
  (void)state;
  static float of[2][STEPS][V];
  for (int f = 0; f < 3; f++) {
    static const wn_cache_format formats[] = {WN_CACHE_HALF, WN_CACHE_Q8_0, WN_CACHE_Q4_0};
    for (int n = 0; n < 2; n++) {
      wn_context *ctx = context_of(n ? "ref" : "cpu", 2);
      wn_model *model = model_with(ctx, NULL, HEAD);
      wn_session *s = session_with(ctx, model, NULL, NULL, NULL, 1, formats[f]);
      read_prompt(ctx, s, 1);
      go_on(ctx, s, 1, of[n]);
      wn_session_destroy(s);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
    /* A number on the edge between two steps of a block may fall on either side: then by a step of its row. */
    const double error = apart(of[0], of[1]);
    if (!(error < (f < 2 ? 0.02 : 0.2))) fail_msg("%s: logits are %g apart", wn_cache_format_name(formats[f]), error);
  }
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_with(ctx, NULL, 48);
  wn_session *s = NULL;
  wn_session_options o = {.size = sizeof o, .sequences = 1, .cache = WN_CACHE_Q8_0};
  assert_refused(ctx, wn_session_create(ctx, model, &o, &s), WN_ERR_UNSUPPORTED,
                 "a cache in q8_0 cannot be combined with heads that are not a multiple of 32");
  o.cache = WN_CACHE_Q4_0;
  assert_refused(ctx, wn_session_create(ctx, model, &o, &s), WN_ERR_UNSUPPORTED, "a cache in q4_0");
  o.cache = WN_CACHE_HALF;
  OK(ctx, wn_session_create(ctx, model, &o, &s));
  wn_session_destroy(s);
  wn_model_destroy(model);
  model = model_with(ctx, "{\"strided\":4}", HEAD);
  o.cache = WN_CACHE_Q8_0;
  assert_refused(ctx, wn_session_create(ctx, model, &o, &s), WN_ERR_UNSUPPORTED, "cannot be combined with strided");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_backends),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
