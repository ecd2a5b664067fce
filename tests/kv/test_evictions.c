/* Evictions of whole sequences against the rule carried out one token at a time, in double, on one attention call's
 * arrays: every policy, every option of selective attention, documents, grouped heads, biases, score maps, any budget,
 * budgets of single key-value heads; on ref in both precisions and on the cpu backend. Also: a budget of the length or
 * more evicts nothing, and what is refused. */
#include "support.h"

#include <math.h>
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "ops/attention.h"

static wn_context *ctx;

static double number(const void *x, wn_dtype dtype, int64_t i) {
  return dtype == WN_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* Room for an array of n normal numbers that are the same in both precisions. */
static void *normal(wn_dtype dtype, int64_t n, uint64_t seed, uint64_t salt) {
  void *x = malloc((size_t)n * sizeof(double));
  for (int64_t i = 0; i < n; i++) {
    const float v = (float)wn_random_normal(seed, WN_STREAM_TEST, salt, (uint64_t)i);
    if (dtype == WN_F64)
      ((double *)x)[i] = (double)v;
    else
      ((float *)x)[i] = v;
  }
  return x;
}

struct call {
  struct wn_attention a;
  void *x[8];
  int32_t doc[3 * 200];
};

static uint64_t draws;
static int mapped; /* calls with score maps */
static int64_t pick(uint64_t seed, int64_t n) {
  return (int64_t)wn_random_below(seed, WN_STREAM_TEST, 78, draws++, (uint64_t)n);
}

static void call_make(struct call *c, wn_dtype dtype, uint64_t seed, bool selective) {
  static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 3}, {6, 2}};
  memset(c, 0, sizeof *c);
  draws = 0;
  const int64_t *of = heads[pick(seed, 4)];
  struct wn_attention *a = &c->a;
  *a = (struct wn_attention){.B = 1 + pick(seed, 3), .H = of[0], .Hkv = of[1], .D = 4 + pick(seed, 20)};
  a->Tq = a->Tk = 1 + pick(seed, seed % 3 ? 60 : 200);
  const int64_t T = a->Tk, D = a->D, H = a->H, Hkv = a->Hkv;
  a->scale = 1 / sqrt((double)D);
  a->s_q = (struct wn_stride){T * (H * D + 3), H * D + 3, D}; /* as a layer has them, or heads first */
  a->s_k = pick(seed, 2) ? (struct wn_stride){T * Hkv * D, D, T * D} : (struct wn_stride){T * Hkv * D, Hkv * D, D};
  a->s_y = (struct wn_stride){T * H * D, H * D, D};
  a->s_v = a->s_k;
  a->q = c->x[0] = normal(dtype, a->B * T * (H * D + 3), seed, 1);
  a->k = c->x[1] = normal(dtype, a->B * T * Hkv * D, seed, 2);
  a->v = c->x[2] = normal(dtype, a->B * T * Hkv * D, seed, 3);
  a->y = c->x[3] = normal(dtype, a->B * T * H * D, seed, 4);
  if (pick(seed, 2)) {
    for (int64_t i = 0, first = 0; i < a->B * T; i++) {
      if (i % T == 0) first = 0;
      if (pick(seed, 30) == 0) first = i % T;
      c->doc[i] = (int32_t)first;
    }
    a->doc_start = c->doc;
  }
  if (pick(seed, 3) == 0) {
    a->bias.n = 2 + pick(seed, 7), a->bias.farthest = a->bias.n / 2 + 1 + pick(seed, 40);
    a->bias.table = c->x[7] = normal(dtype, a->bias.n * H, seed, 8);
  }
  if (pick(seed, 3) == 0) {
    wn_attention_config config;
    struct wn_attention terms = {.H = H, .Hkv = Hkv};
    const char *text = pick(seed, 2) ? "{\"alibi\":true}" : "{\"alibi\":true,\"softcap\":{\"cap\":1.5}}";
    assert_ok(ctx, wn_attention_config_parse(ctx, text, &config));
    wn_attention_terms(&config, -1, D, &terms);
    a->maps = terms.maps;
    memcpy(a->map, terms.map, sizeof a->map);
    mapped++;
  }
  if (!selective) return;
  a->sel.on = true;
  const int64_t G = a->sel.groups = pick(seed, 2) ? Hkv : 1;
  a->sel.head = (int)pick(seed, H / G);
  a->sel.relu = pick(seed, 4) > 0, a->sel.protect_first = pick(seed, 3) > 0, a->sel.protect_self = pick(seed, 3) > 0;
  a->sel.shift = pick(seed, 3) > 0, a->sel.bilinear = pick(seed, 3) == 0;
  if (a->sel.bilinear) {
    a->sel.s_sq = (struct wn_stride){T * G * D, G * D, D}, a->sel.s_sk = (struct wn_stride){T * G * D, D, T * D};
    a->sel.sq = c->x[4] = normal(dtype, a->B * T * G * D, seed, 5);
    a->sel.sk = c->x[5] = normal(dtype, a->B * T * G * D, seed, 6);
  }
  if (pick(seed, 2)) {
    a->relative.P = pick(seed, 2) ? T : 1 + T / 2;
    if (a->relative.P < T) a->window = a->relative.P;
    a->relative.p = c->x[6] = normal(dtype, a->relative.P * D, seed, 7);
  }
}
static void call_clear(struct call *c) {
  for (int i = 0; i < 8; i++) free(c->x[i]);
}

/* S of row i on key j, in selection g. */
static double selection(const struct wn_attention *a, wn_dtype dtype, int64_t b, int64_t g, int64_t i, int64_t j,
                        int64_t first) {
  const int64_t head = g * (a->H / wn_selection_groups(a)) + a->sel.head, kv = head / (a->H / a->Hkv);
  double sum = 0;
  if (j > i || (a->sel.protect_self && j == i) || (a->sel.protect_first && j == first)) return 0;
  for (int64_t d = 0; d < a->D; d++) {
    if (a->sel.bilinear) {
      sum += number(a->sel.sq, dtype, b * a->sel.s_sq.b + i * a->sel.s_sq.t + g * a->sel.s_sq.h + d) *
             number(a->sel.sk, dtype, b * a->sel.s_sk.b + j * a->sel.s_sk.t + g * a->sel.s_sk.h + d);
      continue;
    }
    double key = number(a->k, dtype, b * a->s_k.b + j * a->s_k.t + kv * a->s_k.h + d);
    if (i - j < a->relative.P) key += number(a->relative.p, dtype, (i - j) * a->D + d);
    sum += number(a->q, dtype, b * a->s_q.b + i * a->s_q.t + head * a->s_q.h + d) * key;
  }
  sum *= a->scale;
  if (a->bias.n > 0 && !a->sel.bilinear)
    sum += number(a->bias.table, dtype, wn_position_bucket(i - j, a->bias.n, a->bias.farthest, false) * a->H + head);
  if (!a->sel.bilinear) sum = wn_score_one(a->map, a->maps, head, i - j, sum);
  return a->sel.relu ? fmax(0, sum) : sum;
}

/* given[j] += the weights of row i of the heads of group g (of P) on the keys held. F: of each selection. */
static void weigh(const struct wn_attention *a, wn_dtype dtype, int64_t b, int64_t g, int64_t P, int64_t i,
                  const bool *held, double F[6][200], double *given) {
  for (int64_t head = g * (a->H / P); head < (g + 1) * (a->H / P); head++) {
    double e[200] = {0}, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
      double logit = 0;
      if (!held[j] || (a->window > 0 && i - j >= a->window)) continue;
      for (int64_t d = 0; d < a->D; d++) {
        double key = number(a->k, dtype, b * a->s_k.b + j * a->s_k.t + head / (a->H / a->Hkv) * a->s_k.h + d);
        if (i - j < a->relative.P) key += number(a->relative.p, dtype, (i - j) * a->D + d);
        logit += number(a->q, dtype, b * a->s_q.b + i * a->s_q.t + head * a->s_q.h + d) * key;
      }
      logit *= a->scale;
      if (a->bias.n > 0)
        logit +=
            number(a->bias.table, dtype, wn_position_bucket(i - j, a->bias.n, a->bias.farthest, false) * a->H + head);
      logit = wn_score_one(a->map, a->maps, head, i - j, logit);
      if (a->sel.on) logit -= F[head / (a->H / wn_selection_groups(a))][j];
      sum += e[j] = exp(logit);
    }
    for (int64_t j = 0; j <= i; j++) given[j] += e[j] / sum;
  }
}

/* Random: the lot of the token at a position of its document. */
static double lot(const wn_budgets *x, int64_t layer, int64_t group, int64_t position) {
  return wn_random_uniform(x->seed, WN_STREAM_EVICT, (uint64_t)layer << 32 | (uint64_t)group, (uint64_t)position);
}

/* SnapKV: the votes of rows i-w..i-1 for key j, pooled over its neighbours among the keys held. given[r]: the weights
 * of row r. */
static double voted(const wn_budgets *x, double given[200][200], const bool *held, int64_t first, int64_t i,
                    int64_t j) {
  double pooled = 0;
  const int64_t reach = x->snapkv.neighbours;
  for (int64_t n = j - reach; n <= j + reach; n++) {
    double vote = 0;
    if (n < first || n >= i || !held[n]) continue;
    for (int64_t r = i - x->snapkv.rows; r < i; r++)
      if (r >= first) vote += given[r][n];
    pooled = x->snapkv.pool == WN_POOL_MAX ? fmax(pooled, vote) : pooled + vote / (double)(2 * reach + 1);
  }
  return pooled;
}

/* The rule, token by token: a key is held from its row on until it goes. Returns the evictions. */
static int64_t simulate(const struct wn_attention *a, wn_dtype dtype, const wn_budgets *x, int64_t layer, int64_t b,
                        int64_t g, int32_t *evicted_at, double *margin) {
  const int64_t T = a->Tk, K = x->heads > 0 ? x->head_tokens[layer * x->heads + g] : x->tokens[layer];
  const int64_t P = wn_policy_groups(x, a->Hkv, wn_selection_groups(a)), recent = (int64_t)(x->recent * (double)K);
  const bool snapkv = x->policy == WN_POLICY_SNAPKV;
  const bool weights = snapkv || x->policy == WN_POLICY_H2O || x->policy == WN_POLICY_TOVA;
  static double given[200][200];
  double F[200] = {0}, scores[200], selected[6][200];
  bool held[200] = {false};
  int64_t count = 0, evictions = 0;
  for (int64_t j = 0; j < T; j++) evicted_at[j] = WN_EVICTED_NEVER;
  for (int64_t i = 0; i < T; i++) {
    const int64_t first = a->doc_start ? a->doc_start[b * T + i] : 0;
    if (i == first) memset(held, 0, sizeof held), memset(selected, 0, sizeof selected), count = 0;
    if (count == K) {
      int64_t which = -1;
      double next = -INFINITY;
      for (int64_t j = first; j < i; j++) {
        double score = 0;
        bool stays = false;
        if (x->policy == WN_POLICY_SELECTIVE) score = F[j], stays = j == first && count > 1;
        if (x->policy == WN_POLICY_WINDOW) score = -(double)j;
        if (x->policy == WN_POLICY_STREAMING)
          score = -(double)j, stays = j - first < (x->sinks < K - 1 ? x->sinks : K - 1);
        if (x->policy == WN_POLICY_RANDOM) score = lot(x, layer, g, j - first);
        if (weights) score = x->policy == WN_POLICY_H2O && j > i - recent ? -INFINITY : -F[j];
        if (snapkv && held[j])
          score = j > i - (int64_t)fmin((double)x->snapkv.rows, (double)(K / 2)) ? -INFINITY
                                                                                 : -voted(x, given, held, first, i, j);
        if (!held[j] || stays) continue;
        if (x->policy != WN_POLICY_SELECTIVE && !weights) F[j] = score;
        scores[j] = weights ? score : F[j];
        if (which < 0 || score > scores[which])
          next = which < 0 ? next : fmax(next, scores[which]), which = j;
        else
          next = fmax(next, score);
      }
      if (next < scores[which]) *margin = fmin(*margin, scores[which] - next);
      held[which] = false;
      evicted_at[which] = (int32_t)i;
      count--, evictions++;
    }
    held[i] = true, F[i] = 0, count++;
    for (int64_t j = first; x->policy == WN_POLICY_SELECTIVE && j <= i; j++)
      if (held[j]) F[j] += selection(a, dtype, b, g, i, j, first);
    if (x->policy == WN_POLICY_TOVA || snapkv) memset(F, 0, sizeof F);
    /* With the shift a row's selections count from the next one on. */
    if (weights && a->sel.shift) weigh(a, dtype, b, g, P, i, held, selected, F);
    for (int64_t n = 0; weights && a->sel.on && n < wn_selection_groups(a); n++)
      for (int64_t j = first; j <= i; j++) selected[n][j] += selection(a, dtype, b, n, i, j, first);
    if (weights && !a->sel.shift) weigh(a, dtype, b, g, P, i, held, selected, F);
    memcpy(given[i], F, sizeof F);
  }
  return evictions;
}

static wn_status find(const struct wn_backend *backend, wn_dtype dtype, int threads, const wn_budgets *x, int64_t layer,
                      const struct wn_attention *a, int32_t *evicted_at) {
  struct wn_exec exec = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = dtype};
  exec.scratch_bytes = wn_evictions_scratch(&exec, x, a);
  exec.scratch = aligned_alloc(WN_ALIGN, exec.scratch_bytes + WN_ALIGN);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  const wn_status status = wn_evictions_find(&exec, x, layer, a, evicted_at);
  free(exec.scratch);
  return status;
}

static int ragged;
static int64_t check(wn_policy policy, uint64_t seed) {
  int64_t evictions = 0;
  for (int where = 0; where < 3; where++) {
    const wn_dtype dtype = where == 0 ? WN_F64 : WN_F32;
    struct call c;
    enum wn_isa isa;
    const bool weights = policy == WN_POLICY_H2O || policy == WN_POLICY_TOVA || policy == WN_POLICY_SNAPKV;
    call_make(&c, dtype, seed, policy == WN_POLICY_SELECTIVE || (weights && seed % 2));
    assert_ok(ctx, wn_cpu_select_isa(ctx, &isa));
    int64_t tokens[2] = {1, 1 + pick(seed, pick(seed, 2) ? c.a.Tk : 6)};
    wn_budgets x;
    wn_budgets_init(&x);
    x.policy = policy, x.layers = 2, x.tokens = tokens, x.seed = seed, x.sinks = pick(seed, 5);
    x.per_kv_head = pick(seed, 2) && !(weights && c.a.sel.on && wn_selection_groups(&c.a) != c.a.Hkv);
    int64_t of_heads[2 * 6];
    if (wn_policy_groups(&x, c.a.Hkv, wn_selection_groups(&c.a)) == c.a.Hkv && pick(seed, 2)) {
      x.heads = c.a.Hkv, x.head_tokens = of_heads;
      for (int64_t h = 0; h < 2 * x.heads; h++) of_heads[h] = 1 + pick(seed, c.a.Tk + 2);
      ragged++;
    }
    if (policy == WN_POLICY_SNAPKV) {
      x.snapkv.rows = 1 + pick(seed, 12), x.snapkv.neighbours = pick(seed, 4);
      x.snapkv.pool = pick(seed, 2) ? WN_POOL_MAX : WN_POOL_MEAN;
    }
    if (policy == WN_POLICY_H2O) x.recent = (double)pick(seed, 5) / 4;
    const int64_t T = c.a.Tk, P = wn_policy_groups(&x, c.a.Hkv, wn_selection_groups(&c.a)), n = c.a.B * P * T;
    int32_t *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
    double margin = INFINITY;
    for (int64_t g = 0; g < c.a.B * P; g++)
      evictions += simulate(&c.a, dtype, &x, 1, g / P, g % P, want + g * T, &margin);
    const struct wn_backend *backend = where == 2 ? wn_backend_cpu(isa) : wn_backend_ref();
    assert_ok(ctx, find(backend, dtype, 1 + where % 2, &x, 1, &c.a, got));
    /* Float's rounding may turn a choice between scores that are equal but for it. */
    if (margin > 5e-6 || where == 0)
      for (int64_t i = 0; i < n; i++)
        if (want[i] != got[i])
          fail_msg(
              "%s, seed %llu, backend %s: key %lld of row %lld goes at %d, expected %d (T %lld, K %lld, margin %g)",
              wn_policy_name(policy), (unsigned long long)seed, backend->name, (long long)(i % T), (long long)(i / T),
              got[i], want[i], (long long)T, (long long)tokens[1], margin);
    free(want);
    free(got);
    call_clear(&c);
  }
  return evictions;
}

static void check_many(wn_policy policy, uint64_t seeds) {
  int64_t evictions = 0;
  for (uint64_t seed = 0; seed < seeds; seed++) evictions += check(policy, seed);
  assert_true(evictions > 1000);
}
static void test_weights(void **state) {
  (void)state;
  check_many(WN_POLICY_H2O, 32);
  check_many(WN_POLICY_TOVA, 32);
  for (uint64_t seed = 33; seed < 33 + 6 * 24; seed += 6) /* long ones, with selections */
    for (int h2o = 0; h2o < 2; h2o++) check(h2o ? WN_POLICY_H2O : WN_POLICY_TOVA, seed);
}

static void test_votes(void **state) {
  (void)state;
  check_many(WN_POLICY_SNAPKV, 40);
  assert_true(mapped > 20);
  for (uint64_t seed = 60; seed < 60 + 6 * 16; seed += 6) check(WN_POLICY_SNAPKV, seed);
}

static void test_selective(void **state) {
  (void)state;
  check_many(WN_POLICY_SELECTIVE, 60);
}
static void test_positions(void **state) {
  (void)state;
  check_many(WN_POLICY_WINDOW, 12);
  check_many(WN_POLICY_STREAMING, 16);
  check_many(WN_POLICY_RANDOM, 16);
  assert_true(ragged > 10);
}

static void test_nothing_goes(void **state) {
  (void)state;
  struct call c;
  call_make(&c, WN_F32, 3, true);
  const int64_t T = c.a.Tk, n = c.a.B * wn_selection_groups(&c.a) * T;
  int32_t *evicted_at = malloc((size_t)n * sizeof *evicted_at);
  const int64_t budgets[] = {T, T + 1, T + 2, INT64_MAX};
  for (int i = 0; i < 4 * WN_POLICY_COUNT; i++) {
    wn_budgets x;
    int64_t K = budgets[i % 4];
    wn_budgets_init(&x);
    x.policy = (wn_policy)(i / 4);
    x.layers = 1, x.tokens = &K;
    assert_false(wn_evictions_any(&x, 0, T));
    assert_ok(ctx, find(wn_backend_ref(), WN_F32, 2, &x, 0, &c.a, evicted_at));
    const int64_t P = wn_policy_groups(&x, c.a.Hkv, wn_selection_groups(&c.a));
    assert_true(c.a.B * P * T <= n);
    for (int64_t j = 0; j < c.a.B * P * T; j++) assert_int_equal(evicted_at[j], WN_EVICTED_NEVER);
  }
  free(evicted_at);
  call_clear(&c);
}

static void attend(const struct wn_backend *backend, struct wn_attention *a) {
  struct wn_exec exec = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = WN_F32};
  exec.scratch_bytes = wn_op_attention_scratch(&exec, a, false);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes / WN_ALIGN + 1) * WN_ALIGN);
  assert_ok(ctx, wn_op_attention_forward(&exec, a));
  free(exec.scratch);
}

/* A head that keeps everything gives its outputs to the bit, whatever the others let go. */
static void test_one_head_keeps_all(void **state) {
  (void)state;
  enum wn_isa isa;
  int looked = 0;
  assert_ok(ctx, wn_cpu_select_isa(ctx, &isa));
  for (uint64_t seed = 0; seed < 24; seed++) {
    struct call c;
    call_make(&c, WN_F32, seed, false);
    const int64_t T = c.a.Tk, P = c.a.Hkv, n = c.a.B * T * c.a.H * c.a.D, share = c.a.H / P, D = c.a.D;
    if (P == 1 || T < 8) {
      call_clear(&c);
      continue;
    }
    wn_budgets x;
    wn_budgets_init(&x);
    int64_t most = T, of_heads[6];
    x.policy = WN_POLICY_TOVA, x.layers = 1, x.tokens = &most, x.per_kv_head = true;
    x.heads = P, x.head_tokens = of_heads;
    for (int64_t g = 0; g < P; g++) of_heads[g] = g == 1 ? T : 3;
    int32_t *evicted_at = malloc((size_t)(c.a.B * P * T) * sizeof *evicted_at);
    float *first = malloc((size_t)n * sizeof *first);
    for (int where = 0; where < 2; where++) {
      const struct wn_backend *backend = where ? wn_backend_cpu(isa) : wn_backend_ref();
      c.a.slots.evicted_at = NULL, c.a.slots.groups = 0;
      attend(backend, &c.a);
      memcpy(first, c.a.y, (size_t)n * sizeof *first);
      assert_ok(ctx, find(backend, WN_F32, 1, &x, 0, &c.a, evicted_at));
      c.a.slots.evicted_at = evicted_at, c.a.slots.groups = P;
      attend(backend, &c.a);
      const float *y = c.a.y;
      int64_t others = 0;
      for (int64_t i = 0; i < n; i++) {
        const bool same = memcmp(&y[i], &first[i], sizeof *y) == 0;
        if (i / D % c.a.H / share != 1)
          others += !same;
        else if (!same)
          fail_msg("seed %d on %s: output %lld is %a, %a without budgets", (int)seed, backend->name, (long long)i,
                   (double)y[i], (double)first[i]);
      }
      looked += others > 0;
    }
    free(first);
    free(evicted_at);
    call_clear(&c);
  }
  assert_true(looked >= 10);
}

static void test_refused(void **state) {
  (void)state;
  struct call c;
  call_make(&c, WN_F32, 5, false);
  int32_t *evicted_at = malloc((size_t)(c.a.B * c.a.Tk) * sizeof *evicted_at);
  int64_t tokens[1] = {2};
  wn_budgets x;
  wn_budgets_init(&x);
  x.layers = 1, x.tokens = tokens;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 0, &c.a, evicted_at), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "selective"));
  x.policy = WN_POLICY_STREAMING, x.cache_positions = true;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 0, &c.a, evicted_at), WN_ERR_UNSUPPORTED);
  x.policy = WN_POLICY_WINDOW;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 1, &c.a, evicted_at), WN_ERR_ARGUMENT);
  free(evicted_at);
  call_clear(&c);
}

static int setup(void **state) {
  (void)state;
  return wn_context_create(NULL, &ctx) == WN_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_selective),    cmocka_unit_test(test_positions),
                                     cmocka_unit_test(test_weights),      cmocka_unit_test(test_votes),
                                     cmocka_unit_test(test_nothing_goes), cmocka_unit_test(test_one_head_keeps_all),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
