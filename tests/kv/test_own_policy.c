/* A policy given at run time as a function (wn_own_policy): knorm, h2o, tova and selective written as such functions
 * give the logits of the built-in ones to the bit, token by token, in pieces and over whole sequences. What a function
 * sees is what it asked for, in order of position. Failures and bad structs are refused by name. */
#include "prune/bench.h"

#include <math.h>

#include "kv/policy.h"
#include "policies.h"

enum { LENGTH = 60, LAYERS = 2 };

struct seen {
  int calls, failing;
  int64_t groups;
  wn_policy policy;
  unsigned needs;
  double score; /* given instead, if not 0 */
};

/* Scores by definition, from the arrays alone. */
static double score_of(const struct seen *seen, const wn_policy_view *v, int64_t group, int64_t j) {
  double score = 0;
  const int64_t at = group * v->count + j;
  if (seen->policy == WN_POLICY_SELECTIVE) return v->selections[at];
  if (seen->policy == WN_POLICY_H2O || seen->policy == WN_POLICY_TOVA) return -v->sums[at];
  for (int64_t head = 0; head < v->heads; head++) {
    const float *k = v->keys + ((group * v->heads + head) * v->count + j) * v->head_size;
    double square = 0;
    for (int64_t d = 0; d < v->head_size; d++) square += (double)k[d] * (double)k[d];
    score += sqrt(square);
  }
  return score;
}

static bool scored(void *user, const wn_policy_view *v) {
  struct seen *seen = user;
  seen->calls++;
  if (seen->failing && seen->calls >= seen->failing) return false;
  assert_int_equal(v->keys != NULL, (seen->needs & WN_OWN_KEYS) != 0);
  assert_int_equal(v->values != NULL, (seen->needs & WN_OWN_VALUES) != 0);
  assert_int_equal(v->sums != NULL, (seen->needs & WN_OWN_SUMS) != 0);
  assert_int_equal(v->selections != NULL, (seen->needs & WN_OWN_SELECTIONS) != 0);
  assert_true(v->layer >= 0 && v->layer < LAYERS && v->count < v->budget + 1 && v->head_size > 0);
  if (v->groups > seen->groups) seen->groups = v->groups;
  for (int64_t r = 0; r < v->sequences * v->groups; r++)
    for (int64_t j = 0; j < v->count; j++) {
      const int32_t at = v->positions[r * v->count + j];
      assert_true(at >= 0 && at < v->position && (j == 0 || at > v->positions[r * v->count + j - 1]));
      v->scores[r * v->count + j] = seen->score != 0 ? seen->score : score_of(seen, v, r, j);
    }
  return true;
}

static const struct given {
  wn_policy policy;
  unsigned needs;
  int64_t sinks, rows;
  bool per_kv_head;
} given[] = {{WN_POLICY_KNORM, WN_OWN_KEYS, 0, 0, false},
             {WN_POLICY_KNORM, WN_OWN_KEYS | WN_OWN_VALUES, 0, 0, true},
             {WN_POLICY_H2O, WN_OWN_SUMS, 0, 0, false},
             {WN_POLICY_TOVA, WN_OWN_SUMS, 0, 1, true},
             {WN_POLICY_SELECTIVE, WN_OWN_SELECTIONS | WN_OWN_SUMS, 1, 0, false}};

static void tokens_of(int32_t ids[LENGTH]) {
  for (int i = 0; i < LENGTH; i++) ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, (uint64_t)i, 9, VOCAB);
}

static void logits_of(const struct bench *b, const wn_budgets *budgets, float *single, float *pieces, float *whole) {
  int32_t ids[LENGTH];
  wn_session *s;
  tokens_of(ids);
  must(b->ctx, wn_session_create(b->ctx, b->model,
                                 WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = budgets), &s));
  for (int t = 0; t < LENGTH; t++) must(b->ctx, wn_session_feed(b->ctx, s, ids + t, 1, 0, single + t * VOCAB));
  wn_session_reset(s);
  must(b->ctx, wn_session_feed(b->ctx, s, ids, LENGTH, 16, pieces));
  wn_session_destroy(s);
  must(b->ctx,
       wn_model_logits(b->ctx, b->model, ids, 1, LENGTH, WN_OPTIONS(wn_logits_options, .budgets = budgets), whole));
}

static void test_as_built_in(void **state) {
  (void)state;
  static float want[3][LENGTH * VOCAB], got[3][LENGTH * VOCAB];
  /* With QK-norm all keys would have one norm, up to rounding. */
  static const char *const grouped[] = {"model.heads=4", "model.kv_heads=2", "model.qk_norm=false"};
  struct bench standard, selecting;
  bench_init(&standard, grouped, 3);
  bench_init(&selecting, selective, 1);
  for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
    const struct given *g = &given[i];
    const struct bench *b = g->policy == WN_POLICY_SELECTIVE ? &selecting : &standard;
    int64_t tokens[LAYERS] = {7, 12};
    wn_budgets budgets;
    budgets_init(&budgets);
    budgets.layers = LAYERS, budgets.tokens = tokens, budgets.per_kv_head = g->per_kv_head;
    budgets.policy = g->policy, budgets.recent = 0;
    logits_of(b, &budgets, want[0], want[1], want[2]);
    struct seen seen = {.policy = g->policy, .needs = g->needs};
    const wn_own_policy own = {
        .size = sizeof own, .needs = g->needs, .sinks = g->sinks, .rows = g->rows, .score = scored, .user = &seen};
    budgets.policy = WN_POLICY_OWN, budgets.own = &own;
    logits_of(b, &budgets, got[0], got[1], got[2]);
    for (int way = 0; way < 3; way++) {
      const size_t n = way == 1 ? VOCAB : (size_t)LENGTH * VOCAB;
      for (size_t x = 0; x < n; x++) /* a prompt's pieces are blocks for built-in policies, and rows for others */
        if (way == 1 ? !(fabsf(got[way][x] - want[way][x]) <= 1e-5f) : got[way][x] != want[way][x])
          fail_msg("%s, way %d: logit %d is %g, expected %g", wn_policy_name(g->policy), way, (int)x,
                   (double)got[way][x], (double)want[way][x]);
    }
    const int evictions = (LENGTH - 7) + (LENGTH - 12);
    /* one call a layer and row in a session; one a group in whole sequences */
    assert_int_equal(seen.calls, evictions * (2 + (g->per_kv_head ? 2 : 1)));
    assert_int_equal(seen.groups, g->per_kv_head ? 2 : 1);
  }
  bench_clear(&selecting);
  bench_clear(&standard);
}

static void refused(const struct bench *b, const wn_own_policy *own, const char *text) {
  int64_t tokens[LAYERS] = {4, 4};
  wn_budgets budgets;
  budgets_init(&budgets);
  budgets.layers = LAYERS, budgets.tokens = tokens, budgets.policy = WN_POLICY_OWN, budgets.own = own;
  assert_true(wn_budgets_check(b->ctx, &budgets, wn_model_config_get(b->model)) != WN_OK);
  if (!strstr(wn_context_error(b->ctx), text)) fail_msg("%s, expected %s", wn_context_error(b->ctx), text);
}

static void test_refused(void **state) {
  (void)state;
  struct bench b;
  struct seen seen = {.policy = WN_POLICY_KNORM, .needs = WN_OWN_KEYS};
  const wn_own_policy good = {.size = sizeof good, .needs = WN_OWN_KEYS, .score = scored, .user = &seen};
  wn_own_policy bad = good;
  bench_init(&b, NULL, 0);
  refused(&b, NULL, "\"score\"");
  bad.score = NULL, refused(&b, &bad, "\"score\"");
  bad = good, bad.size--, refused(&b, &bad, "bytes");
  bad = good, bad.needs = 64, refused(&b, &bad, "0x40");
  bad = good, bad.needs = WN_OWN_SELECTIONS, refused(&b, &bad, "selective attention");
  bad = good, bad.rows = 257, refused(&b, &bad, "257");
  bad = good, bad.sinks = -1, refused(&b, &bad, "-1 sinks");
  int64_t tokens[LAYERS] = {4, 4};
  int32_t ids[LENGTH];
  static float logits[LENGTH * VOCAB];
  wn_budgets budgets, read;
  wn_session *s;
  tokens_of(ids);
  budgets_init(&budgets);
  budgets.layers = LAYERS, budgets.tokens = tokens, budgets.policy = WN_POLICY_OWN, budgets.own = &good;
  seen.failing = 3;
  must(b.ctx,
       wn_session_create(b.ctx, b.model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = &budgets), &s));
  assert_int_equal(wn_session_feed(b.ctx, s, ids, LENGTH, 0, logits), WN_ERR_CANCELLED);
  assert_non_null(strstr(wn_context_error(b.ctx), "its function failed in layer"));
  wn_session_destroy(s);
  seen.calls = 0;
  assert_int_equal(
      wn_model_logits(b.ctx, b.model, ids, 1, LENGTH, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits),
      WN_ERR_CANCELLED);
  assert_non_null(strstr(wn_context_error(b.ctx), "its function failed in layer"));
  assert_int_equal(seen.calls, 3);
  seen = (struct seen){.policy = WN_POLICY_KNORM, .needs = WN_OWN_KEYS, .score = NAN};
  assert_int_equal(
      wn_model_logits(b.ctx, b.model, ids, 1, LENGTH, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits),
      WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(b.ctx), "not a number"));
  assert_int_equal(wn_budgets_save(b.ctx, &budgets, "/nowhere/budgets.json"), WN_ERR_UNSUPPORTED);
  budgets.own = NULL;
  assert_int_equal(wn_attention_eviction_groups(&wn_model_config_get(b.model)->attention,
                                                &(wn_attention_arrays){.Hkv = 2}, &budgets),
                   1);
  budgets_init(&read);
  wn_policy none = 5;
  assert_int_not_equal(wn_policy_find(NULL, "own", &none), WN_OK);
  assert_int_equal(wn_budgets_set(b.ctx, "policy=own", &read), WN_ERR_CONFIG);
  assert_string_equal(wn_policy_name(WN_POLICY_OWN), "own");
  bench_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_built_in), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
