/* Attention calls of every kind under budgets, and the eviction rule carried out token by token in double. The
 * evictions found for whole sequences are compared with it. */
#ifndef TESTS_KV_SIMULATED_H
#define TESTS_KV_SIMULATED_H

#include "support.h"

#include <math.h>
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "ops/attention.h"
#include "policies.h"

static wn_context *ctx;

static double number(const void *x, wn_dtype dtype, int64_t i) {
  return dtype == WN_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* An array of n normal numbers that are exact in both precisions. */
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
  int32_t *doc;
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
  a->s_q = (struct wn_stride){T * (H * D + 3), H * D + 3, D}; /* a layer's layout, or heads first */
  a->s_k = pick(seed, 2) ? (struct wn_stride){T * Hkv * D, D, T * D} : (struct wn_stride){T * Hkv * D, Hkv * D, D};
  a->s_y = (struct wn_stride){T * H * D, H * D, D};
  a->s_v = a->s_k;
  a->q = c->x[0] = normal(dtype, a->B * T * (H * D + 3), seed, 1);
  a->k = c->x[1] = normal(dtype, a->B * T * Hkv * D, seed, 2);
  a->v = c->x[2] = normal(dtype, a->B * T * Hkv * D, seed, 3);
  a->y = c->x[3] = normal(dtype, a->B * T * H * D, seed, 4);
  if (pick(seed, 2)) {
    c->doc = malloc((size_t)(a->B * T) * sizeof *c->doc);
    for (int64_t i = 0, first = 0; i < a->B * T; i++) {
      if (i % T == 0) first = 0;
      if (pick(seed, 30) == 0) first = i % T;
      c->doc[i] = (int32_t)first;
    }
    a->doc_start = c->doc;
  }
  if (pick(seed, 3) == 0) {
    const int64_t n = 2 + pick(seed, 7), farthest = n / 2 + 1 + pick(seed, 40);
    c->x[7] = normal(dtype, n * H, seed, 8);
    a->map[a->maps++] = (struct wn_score_map){
        .kind = wn_mechanism_buckets.score, .number = {(double)farthest}, .n = n, .stride = H, .theta = c->x[7]};
  }
  if (pick(seed, 3) == 0) {
    wn_attention_config config;
    struct wn_attention terms = {.H = H, .Hkv = Hkv};
    const char *text = pick(seed, 2) ? "{\"alibi\":true}" : "{\"alibi\":true,\"softcap\":{\"cap\":1.5}}";
    assert_ok(ctx, wn_attention_config_parse(ctx, text, &config));
    wn_attention_terms(&config, -1, D, &terms);
    for (int64_t i = 0; i < terms.maps; i++) a->map[a->maps++] = terms.map[i];
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
  free(c->doc);
}

/* S of row i for key j, in selection g. */
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
  if (!a->sel.bilinear)
    sum = wn_score_logit(a, dtype == WN_F64, (struct wn_score_place){.h = head, .own = i, .j = j, .x = i - j}, sum);
  return a->sel.relu ? fmax(0, sum) : sum;
}

/* Adds to given[j] the attention weights of row i, over the heads of group g (of P), for the keys held. F: of each
 * selection. */
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
      logit =
          wn_score_logit(a, dtype == WN_F64, (struct wn_score_place){.h = head, .own = i, .j = j, .x = i - j}, logit);
      if (a->sel.on) logit -= F[head / (a->H / wn_selection_groups(a))][j];
      sum += e[j] = exp(logit);
    }
    for (int64_t j = 0; j <= i; j++) given[j] += e[j] / sum;
  }
}

/* Policy random: the number drawn for the token at a position of its document. */
static double lot(const wn_budgets *x, int64_t layer, int64_t group, int64_t position) {
  return wn_random_uniform(x->seed, WN_STREAM_EVICT, (uint64_t)layer << 32 | (uint64_t)group, (uint64_t)position);
}

/* SnapKV: the votes of rows i-w..i-1 for key j, pooled over its neighbours among the keys held. given[r]: row r's
 * attention weights. */
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

/* knorm and keydiff of key j, over the key-value heads of group g of P, from their definitions. */
static double by_keys(const struct wn_attention *a, wn_dtype dtype, const wn_budgets *x, int64_t b, int64_t g,
                      int64_t P, const bool *held, int64_t i, int64_t j) {
  double score = 0;
  for (int64_t kv = g * (a->Hkv / P); kv < (g + 1) * (a->Hkv / P); kv++) {
    double norm = 0, sum[24] = {0}, product = 0, square = 0;
    const int64_t base = b * a->s_k.b + kv * a->s_k.h;
    for (int64_t d = 0; d < a->D; d++) norm += pow(number(a->k, dtype, base + j * a->s_k.t + d), 2);
    if (x->policy == WN_POLICY_KNORM) {
      score += sqrt(norm);
      continue;
    }
    for (int64_t n = 0; n < i; n++) {
      double other = 0;
      for (int64_t d = 0; held[n] && d < a->D; d++) other += pow(number(a->k, dtype, base + n * a->s_k.t + d), 2);
      for (int64_t d = 0; held[n] && d < a->D; d++)
        sum[d] += number(a->k, dtype, base + n * a->s_k.t + d) / sqrt(other);
    }
    for (int64_t d = 0; d < a->D; d++) {
      product += sum[d] * number(a->k, dtype, base + j * a->s_k.t + d);
      square += sum[d] * sum[d];
    }
    score += (double)(float)(product / sqrt(square) / sqrt(norm));
  }
  return score;
}

/* The rule, token by token: a key is held from its own row until it is evicted. Returns the number of evictions. */
static int64_t simulate(const struct wn_attention *a, wn_dtype dtype, const wn_budgets *x, int64_t layer, int64_t b,
                        int64_t g, int32_t *evicted_at, double *margin) {
  const int64_t T = a->Tk, K = x->heads > 0 ? x->head_tokens[layer * x->heads + g] : x->tokens[layer];
  const int64_t P = wn_policy_groups(x, a->Hkv, wn_selection_groups(a)), recent = (int64_t)(x->recent * (double)K);
  const bool snapkv = x->policy == WN_POLICY_SNAPKV;
  const bool weights = snapkv || x->policy == WN_POLICY_H2O || x->policy == WN_POLICY_TOVA;
  const bool keys = x->policy == WN_POLICY_KNORM || x->policy == WN_POLICY_KEYDIFF;
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
        if (held[j] && keys) score = by_keys(a, dtype, x, b, g, P, held, i, j);
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
    /* With the shift, a row's selections count from the next row on. */
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

/* Where a case runs. */
struct place {
  const struct wn_backend *backend;
  wn_dtype dtype;
  int threads;
};

static int ragged;
static int64_t check_at(const struct place *places, int count, wn_policy policy, uint64_t seed) {
  int64_t evictions = 0;
  for (const struct place *where = places; where < places + count; where++) {
    const wn_dtype dtype = where->dtype;
    struct call c;
    const bool weights = policy == WN_POLICY_H2O || policy == WN_POLICY_TOVA || policy == WN_POLICY_SNAPKV;
    call_make(&c, dtype, seed, policy == WN_POLICY_SELECTIVE || (weights && seed % 2));
    int64_t tokens[2] = {1, 1 + pick(seed, pick(seed, 2) ? c.a.Tk : 6)};
    wn_budgets x;
    budgets_init(&x);
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
    assert_ok(ctx, find(where->backend, dtype, where->threads, &x, 1, &c.a, got));
    /* Float rounding may decide between scores that are otherwise equal. */
    if (margin > 5e-6 || dtype == WN_F64)
      for (int64_t i = 0; i < n; i++)
        if (want[i] != got[i])
          fail_msg(
              "%s, seed %llu, backend %s: key %lld of row %lld goes at %d, expected %d (T %lld, K %lld, margin %g)",
              wn_policy_name(policy), (unsigned long long)seed, where->backend->name, (long long)(i % T),
              (long long)(i / T), got[i], want[i], (long long)T, (long long)tokens[1], margin);
    free(want);
    free(got);
    call_clear(&c);
  }
  return evictions;
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

#endif
