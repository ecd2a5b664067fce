/* Policies are entries in a table. The built-in ones have the expected numbers and names. A policy that exists only in
 * this file, registered as docs/adding-a-policy.md describes, evicts the same tokens in whole sequences, token by
 * token, in pieces of a prompt and in a comparison of policies. A policy that needs something nobody provides is
 * refused by name. */
#include "prune/bench.h"

#include <math.h>

#include "attention/registry.h"
#include "decode/session.h"
#include "kv/evictions.h"
#include "policies.h"

enum { LENGTH = 77, LAYERS = 2 };

static void test_registry(void **state) {
  (void)state;
  static const char *const names[WN_POLICY_COUNT] = {"selective", "h2o",    "tova",  "streaming", "window",
                                                     "random",    "snapkv", "knorm", "keydiff",   "gates"};
  assert_true(wn_policy_count() >= WN_POLICY_COUNT && wn_policy_count() <= WN_POLICY_MAX);
  for (int p = 0; p < wn_policy_count(); p++) {
    wn_policy found = -1;
    if (p < WN_POLICY_COUNT) assert_string_equal(wn_policy_name(p), names[p]);
    assert_string_equal(wn_policy_at(p)->name, wn_policy_name(p));
    assert_true(wn_policy_find(NULL, wn_policy_name(p), &found) == WN_OK && found == p);
    assert_true(strlen(wn_policy_at(p)->summary) > 10);
    assert_int_equal(wn_policy_at(p)->selective, (wn_policy_row(p)->needs & WN_POLICY_SELECTIONS) != 0);
  }
  wn_policy none = 7;
  assert_int_not_equal(wn_policy_find(NULL, "lru", &none), WN_OK);
  assert_int_equal(none, 7);
  assert_null(wn_policy_at(wn_policy_count()));
  assert_null(wn_policy_at(-1));
  assert_string_equal(wn_policy_name(-1), "?");
}

/* ---- this file's policies ---- */

/* Sums that decay: note = note / 2 + sum, with one sink and the three most recent tokens. */
static int64_t fading_sinks(const wn_budgets *b, int64_t K) {
  (void)b;
  return K > 1 ? 1 : 0;
}
static int64_t fading_recent(const wn_budgets *b, int64_t K) {
  (void)b;
  return K < 3 ? K : 3;
}
static int64_t fading_notes(const wn_budgets *b) {
  (void)b;
  return 1;
}
static void fading_follow(const struct wn_policy_notes *n) {
  for (int64_t j = 0; j < n->count; j++) {
    if (n->dtype == WN_F64)
      ((double *)n->notes)[j] = ((double *)n->notes)[j] / 2 + ((const double *)n->sums)[j];
    else
      ((float *)n->notes)[j] = ((float *)n->notes)[j] / 2 + ((const float *)n->sums)[j];
  }
}
static void fading_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  wn_policy_read(h->notes, h->dtype, first, n, -1, out);
}

/* Uses selections and sums, also of neighbouring tokens, so it asks for the order of the tokens held. It has two notes:
 * sums over rows at even and at odd positions. */
static int64_t mixed_notes(const wn_budgets *b) {
  (void)b;
  return 2;
}
static void mixed_follow(const struct wn_policy_notes *n) {
  for (int64_t j = 0; j < n->count; j++) {
    const int64_t at = n->row % 2 * n->stride + j;
    if (n->dtype == WN_F64)
      ((double *)n->notes)[at] = ((const double *)n->sums)[j];
    else
      ((float *)n->notes)[at] = ((const float *)n->sums)[j];
  }
}
static double mixed_alone(const struct wn_policy_held *h, int64_t i) {
  const int64_t slot = h->order ? h->order[i] : i;
  return wn_number(h->F, slot, h->dtype) - wn_number(h->notes, slot, h->dtype) -
         wn_number(h->notes, h->stride + slot, h->dtype);
}
static void mixed_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  for (int64_t i = first; i < first + n; i++) {
    const int64_t slot = h->order ? h->order[i] : i;
    int64_t before = i - 1;
    while (before >= 0 && h->at[h->order ? h->order[before] : before] < 0) before--;
    assert_true(h->at[slot] < 0 || before < 0 || h->at[slot] > h->at[h->order ? h->order[before] : before]);
    out[i - first] = mixed_alone(h, i) + (before >= 0 ? mixed_alone(h, before) / 4 : 0);
  }
}

/* An option that no built-in policy has. */
static const struct wn_field fading_fields[] = {
    {"fading.option", WN_FIELD_INT, offsetof(wn_budgets, cache), 0, 9, NULL, "an option of this test"},
};
static const struct wn_policy_row fading = {
    .info = {.name = "fading", .summary = "a policy of this test", .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .fields = fading_fields,
    .field_count = 1,
    .sinks = fading_sinks,
    .recent = fading_recent,
    .score = fading_score,
    .notes = fading_notes,
    .follow = fading_follow,
};
static const struct wn_policy_row mixed = {
    .info = {.name = "mixed", .summary = "a policy of this test", .selective = true},
    .needs = WN_POLICY_SELECTIONS | WN_POLICY_SUMS,
    .score = mixed_score,
    .ordered = true,
    .notes = mixed_notes,
    .follow = mixed_follow,
};
static const struct wn_policy_row unserved = {
    .info = {.name = "unserved", .summary = "a policy of this test"},
    .needs = 1u << 9,
};
static wn_policy fading_policy, mixed_policy, unserved_policy;

/* ---- the same everywhere ---- */

/* The positions that the layers hold, in order: [LAYERS,groups,K]. */
static void held_of(const wn_session *s, int64_t K, int32_t *out) {
  for (int64_t l = 0; l < LAYERS; l++) {
    const struct wn_kv_cache *c = &s->caches[s->first[l]];
    int32_t order[LENGTH * 4];
    assert_true(s->first[l + 1] - s->first[l] == 1 && c->count == K);
    wn_kv_cache_order(c, order);
    for (int64_t p = 0; p < c->shape.groups; p++)
      for (int64_t j = 0; j < K; j++)
        out[(l * c->shape.groups + p) * K + j] = c->at[p * c->shape.capacity + order[p * K + j]];
  }
}

static void near(const char *what, const float *x, const float *y, int64_t n) {
  double top = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, fabs((double)x[i]));
  for (int64_t i = 0; i < n; i++)
    if (!(fabs((double)x[i] - (double)y[i]) <= 1e-5 * top))
      fail_msg("%s: logit %d is %g, expected %g", what, (int)i, (double)y[i], (double)x[i]);
}

static void everywhere(const struct bench *b, wn_policy policy, bool per_kv_head, int64_t K) {
  wn_budgets budgets;
  int64_t tokens[LAYERS] = {K, K};
  budgets_init(&budgets);
  budgets.policy = policy, budgets.layers = LAYERS, budgets.tokens = tokens, budgets.per_kv_head = per_kv_head;
  int32_t ids[CONTEXT], held[3][LAYERS * 4 * LENGTH];
  static float whole[LENGTH * VOCAB], found[VOCAB];
  for (int i = 0; i < CONTEXT; i++) ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, (uint64_t)i, 9, VOCAB);
  must(b->ctx, wn_budgets_check(b->ctx, &budgets, wn_model_config_get(b->model)));
  must(b->ctx,
       wn_model_logits(b->ctx, b->model, ids, 1, LENGTH, WN_OPTIONS(wn_logits_options, .budgets = &budgets), whole));
  memset(held, 0, sizeof held);
  for (int way = 0; way < 3; way++) { /* token by token; a prompt in pieces; at once */
    static const char *const names[] = {"token by token", "in pieces", "at once"};
    wn_session *s;
    must(b->ctx, wn_session_create(b->ctx, b->model,
                                   WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = &budgets), &s));
    for (int64_t t = 0; way == 0 && t < LENGTH; t++) {
      must(b->ctx, wn_session_feed(b->ctx, s, ids + t, 1, 0, found));
      near(names[way], whole + t * VOCAB, found, VOCAB);
    }
    if (way > 0) must(b->ctx, wn_session_feed(b->ctx, s, ids, LENGTH, way == 1 ? 11 : 0, found));
    near(names[way], whole + (LENGTH - 1) * VOCAB, found, VOCAB);
    held_of(s, K, held[way]);
    wn_session_destroy(s);
    assert_memory_equal(held[way], held[0], sizeof held[0]);
  }
}

/* The loss that a comparison of policies reports is that of the logits under budgets. */
static void compared(const struct bench *b, wn_policy policy, int64_t K) {
  const wn_prune_subject subject = {.name = "model", .model = b->model};
  wn_prune_compare_options o;
  wn_prune_comparison c;
  wn_prune_compare_options_init(&o, sizeof o);
  o.subjects = &subject, o.subject_count = 1;
  o.data.path = b->search;
  o.tokens = &K, o.token_count = 1;
  o.policies = &policy, o.policy_count = 1;
  must(b->ctx, wn_prune_compare(b->ctx, &o, NULL, NULL, &c));
  assert_int_equal(c.count, 2);
  assert_int_equal(c.results[1].policy, policy);
  wn_budgets budgets;
  double loss = 0;
  uint64_t counted = 0;
  int64_t tokens[LAYERS] = {K, K};
  budgets_init(&budgets);
  budgets.policy = policy, budgets.layers = LAYERS, budgets.tokens = tokens;
  for (int64_t row = 0; row < ROWS; row++) {
    int32_t ids[CONTEXT + 1];
    static float logits[CONTEXT * VOCAB];
    for (int64_t i = 0; i < CONTEXT + 1; i++)
      ids[i] = (int32_t)wn_random_below(1, WN_STREAM_TEST, (uint64_t)(row * CONTEXT + i), 0, VOCAB);
    must(b->ctx, wn_model_logits(b->ctx, b->model, ids, 1, CONTEXT, WN_OPTIONS(wn_logits_options, .budgets = &budgets),
                                 logits));
    for (int64_t t = 0; t < CONTEXT; t++, counted++) {
      double sum = 0;
      for (int64_t v = 0; v < VOCAB; v++) sum += exp((double)logits[t * VOCAB + v]);
      loss += log(sum) - (double)logits[t * VOCAB + ids[t + 1]];
    }
  }
  assert_true(fabs(c.results[1].loss - loss / (double)counted) < 1e-5);
  assert_true(fabs(c.results[1].loss - c.results[0].loss) > 1e-5); /* something was evicted */
  wn_prune_comparison_clear(&c);
}

/* Copies of sessions, for example, need the same policy with the same options. This holds for new policies, too. */
static void test_same_options(void **state) {
  (void)state;
  static const char *const settings[] = {"sinks=5",         "cache_positions=true", "recent=0.4",
                                         "seed=9",          "snapkv.rows=7",        "snapkv.neighbours=1",
                                         "snapkv.pool=max", "fading.option=1",      "per_kv_head=true",
                                         "policy=h2o"};
  int64_t tokens[2] = {3, 4};
  wn_budgets x, y;
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    budgets_init(&x), budgets_init(&y);
    y.tokens = tokens, y.layers = 2;
    assert_true(wn_budgets_same_options(&x, &y));
    assert_int_equal(wn_budgets_set(NULL, settings[i], &y), WN_OK);
    if (wn_budgets_same_options(&x, &y)) fail_msg("%s makes no difference", settings[i]);
  }
}

static void test_registered(void **state) {
  (void)state;
  static const char *const grouped[] = {"model.heads=4", "model.kv_heads=2"};
  struct bench standard, selecting;
  bench_init(&standard, grouped, 2);
  bench_init(&selecting, selective, 1);
  for (int64_t K = 1; K < 40; K = 3 * K + 1) {
    everywhere(&standard, fading_policy, false, K);
    everywhere(&standard, fading_policy, true, K);
    everywhere(&selecting, fading_policy, false, K);
    everywhere(&selecting, mixed_policy, false, K);
  }
  compared(&standard, fading_policy, 13);
  compared(&selecting, mixed_policy, 9);
  bench_clear(&selecting);
  bench_clear(&standard);
}

static void names_it(const struct bench *b, wn_status status, wn_status expected) {
  assert_int_equal(status, expected);
  if (!strstr(wn_context_error(b->ctx), "policy \"unserved\" needs")) fail_msg("%s", wn_context_error(b->ctx));
}

static void test_unserved(void **state) {
  (void)state;
  struct bench b;
  wn_budgets budgets;
  wn_session *s;
  int64_t tokens[LAYERS] = {4, 4};
  const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float logits[8 * VOCAB];
  bench_init(&b, NULL, 0);
  budgets_init(&budgets);
  budgets.policy = unserved_policy, budgets.layers = LAYERS, budgets.tokens = tokens;
  names_it(&b, wn_budgets_check(b.ctx, &budgets, wn_model_config_get(b.model)), WN_ERR_UNSUPPORTED);
  names_it(&b,
           wn_session_create(b.ctx, b.model, WN_OPTIONS(wn_session_options, .capacity = 8, .budgets = &budgets), &s),
           WN_ERR_UNSUPPORTED);
  names_it(&b, wn_model_logits(b.ctx, b.model, ids, 1, 8, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits),
           WN_ERR_UNSUPPORTED);
  const wn_prune_subject subject = {.name = "model", .model = b.model};
  wn_prune_compare_options o;
  wn_prune_comparison c;
  wn_prune_compare_options_init(&o, sizeof o);
  o.subjects = &subject, o.subject_count = 1, o.data.path = b.search;
  o.tokens = tokens, o.token_count = 1, o.policies = &unserved_policy, o.policy_count = 1;
  names_it(&b, wn_prune_compare(b.ctx, &o, NULL, NULL, &c), WN_ERR_UNSUPPORTED);
  /* A single attention call, which no configuration check has seen. */
  float x[4 * 8] = {0};
  const struct wn_backend *backend;
  must(b.ctx, wn_backend_of(b.ctx, &backend));
  const struct wn_attention a = {.B = 1,
                                 .Tq = 8,
                                 .Tk = 8,
                                 .H = 1,
                                 .Hkv = 1,
                                 .D = 4,
                                 .scale = 1,
                                 .q = x,
                                 .k = x,
                                 .v = x,
                                 .s_q = {32, 4, 4},
                                 .s_k = {32, 4, 4},
                                 .s_v = {32, 4, 4}};
  int32_t evicted_at[8];
  struct wn_exec exec = {.ctx = b.ctx, .backend = backend, .threads = 1, .dtype = WN_F32};
  names_it(&b, wn_evictions_find(&exec, &budgets, 0, &a, evicted_at), WN_ERR_UNSUPPORTED);
  bench_clear(&b);
}

static int begin(void **state) {
  (void)state;
  wn_policy again;
  const bool fine = wn_policy_register(&fading, &fading_policy) && wn_policy_register(&mixed, &mixed_policy) &&
                    wn_policy_register(&unserved, &unserved_policy) && !wn_policy_register(&fading, &again);
  return fine ? 0 : -1;
}

/* The policy gates: a key-value head counts by the mean of what its gates leave, since its token and up to the newest
 * one held, and heads add up. */
static void test_gates(void **state) {
  (void)state;
  enum { N = 5, HEADS = 2, GATES = 3 };
  const int32_t at[N] = {0, 2, 3, 5, 8};
  float numbers[HEADS][GATES][N];
  double want[N] = {0}, got[N];
  for (int i = 0; i < HEADS * GATES * N; i++) (&numbers[0][0][0])[i] = -(float)((i * 7) % 11);
  for (int h = 0; h < HEADS; h++)
    for (int r = 0; r < GATES; r++)
      for (int j = 0; j < N; j++) /* minus the newest token's sum less the key's */
        want[j] += ((double)numbers[h][r][j] - (double)numbers[h][r][N - 1]) / GATES;
  const struct wn_score_map map = {.kind = wn_mechanism_forget.score, .gates = GATES};
  const struct wn_policy_rows rows = {.data = numbers, .head = GATES * N, .token = 1};
  const struct wn_policy_held held = {
      .row = 9, .count = N, .at = at, .heads = HEADS, .numbers = 1, .number = {{&map, rows, N}}};
  wn_policy_row(WN_POLICY_GATES)->score(&held, 1, N - 1, got + 1);
  for (int j = 1; j < N; j++) assert_true(fabs(got[j] - want[j]) < 1e-12);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_registry), cmocka_unit_test(test_registered),
                                     cmocka_unit_test(test_same_options), cmocka_unit_test(test_unserved),
                                     cmocka_unit_test(test_gates)};
  return cmocka_run_group_tests(tests, begin, NULL);
}
