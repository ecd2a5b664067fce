/* Position biases, and attention without a causal mask (encoder rows, cross attention): T5's buckets, forward against
 * the plain formula, selections against their definition, gradients against finite differences, every instruction set
 * against the reference, padding without effect, refusals. */
#include "support.h"

#include <math.h>
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "attention/registry.h"
#include "ops/attention.h"
#include "ops/term/buckets.h"
#include "winnow/attention.h"
#include "ops/isa_context.h"

/* ---- buckets ---- */

/* The first distance of each bucket that covers more than one, as PyTorch computes T5's formula. */
static void buckets_are_those_of_t5(void **unused) {
  (void)unused;
  static const int one_way[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113, 100000};
  static const int both_ways[] = {8, 12, 16, 23, 32, 46, 64, 91, 100000};
  static const int other[] = {6, 10, 15, 24, 37, 58, 100000}; /* 24 buckets in both directions, up to 90 */
  for (int x = 0, b = 15; x < 99999; x++) {
    if (x == one_way[b - 15]) b++;
    assert_int_equal(buckets_of(x, 32, 128, false), x < 16 ? x : b);
    assert_int_equal(buckets_of(-x, 32, 128, false), 0);
  }
  for (int x = 0, b = 7, c = 5; x < 99999; x++) {
    if (x == both_ways[b - 7]) b++;
    if (x == other[c - 5]) c++;
    assert_int_equal(buckets_of(x, 32, 128, true), x < 8 ? x : b);
    assert_int_equal(buckets_of(x, 24, 90, true), x < 6 ? x : c);
    if (x == 0) continue;
    assert_int_equal(buckets_of(-x, 32, 128, true), 16 + (x < 8 ? x : b));
    assert_int_equal(buckets_of(-x, 24, 90, true), 12 + (x < 6 ? x : c));
  }
}

/* ---- one call ---- */

struct shape {
  int64_t B, Tq, Tk, H, Hkv, D, n, farthest;
  bool counts;
  double dropout;
};

/* Arrays in double; float copies for the call. */
enum { Q, K, V, TABLE, DY, INPUTS, Y = INPUTS, DQ, DK, DV, DTABLE, LSE, ARRAYS };
struct bench {
  struct shape s;
  struct wn_attention a;
  int64_t n[ARRAYS];
  double *x[ARRAYS];
  void *data[ARRAYS]; /* of dtype */
  int32_t counts[8];
  wn_dtype dtype;
};

static void bench_make(struct bench *t, const struct shape *s, wn_dtype dtype, uint64_t seed) {
  *t = (struct bench){.s = *s, .dtype = dtype};
  const int64_t q = s->B * s->Tq * s->H * s->D, k = s->B * s->Tk * s->Hkv * s->D, table = s->n * s->H + 1;
  const int64_t n[ARRAYS] = {q, k, k, table, q, q, q, k, k, table, s->B * s->H * s->Tq};
  for (int i = 0; i < ARRAYS; i++) {
    t->n[i] = n[i];
    t->x[i] = malloc((size_t)n[i] * sizeof(double));
    t->data[i] = calloc((size_t)n[i], sizeof(double));
    for (int64_t j = 0; j < n[i]; j++)
      t->x[i][j] = (double)(float)wn_random_normal(seed, WN_STREAM_TEST, (uint64_t)i, (uint64_t)j);
  }
  t->a = (struct wn_attention){.B = s->B, .Tq = s->Tq, .Tk = s->Tk, .H = s->H, .Hkv = s->Hkv, .D = s->D, .open = true};
  struct wn_attention *a = &t->a;
  a->scale = 0.6 / sqrt((double)s->D);
  a->s_q = a->s_y = (struct wn_stride){s->Tq * s->H * s->D, s->H * s->D, s->D};
  a->s_k = a->s_v = (struct wn_stride){s->Tk * s->Hkv * s->D, s->Hkv * s->D, s->D};
  a->q = t->data[Q], a->k = t->data[K], a->v = t->data[V], a->dy = t->data[DY], a->y = t->data[Y];
  a->dq = t->data[DQ], a->dk = t->data[DK], a->dv = t->data[DV], a->lse = t->data[LSE];
  if (s->n)
    a->map[a->maps++] = (struct wn_score_map){.kind = wn_mechanism_buckets.score,
                                              .number = {(double)s->farthest},
                                              .n = s->n,
                                              .stride = s->H,
                                              .theta = t->data[TABLE],
                                              .dtheta = t->data[DTABLE]};
  a->dropout.p = s->dropout, a->dropout.seed = 3, a->dropout.stream = 9;
  if (!s->counts) return;
  a->key_count = t->counts;
  for (int64_t b = 0; b < s->B; b++) t->counts[b] = (int32_t)(b == 2 ? 0 : s->Tk - (b == 1 ? s->Tk / 2 : 0));
}

static void bench_clear(struct bench *t) {
  for (int i = 0; i < ARRAYS; i++) free(t->x[i]), free(t->data[i]);
}

static double value(const struct bench *t, int which, int64_t i) {
  return t->dtype == WN_F64 ? ((double *)t->data[which])[i] : (double)((float *)t->data[which])[i];
}

/* Runs forward, or backward as well. isa -1: the reference. */
static void call(struct bench *t, int isa, int threads, bool backward) {
  for (int i = 0; i <= DTABLE; i++)
    for (int64_t j = 0; j < t->n[i] && (i < INPUTS || (i == DTABLE && backward)); j++) {
      const double v = i == DTABLE ? 0 : t->x[i][j];
      if (t->dtype == WN_F64)
        ((double *)t->data[i])[j] = v;
      else
        ((float *)t->data[i])[j] = (float)v;
    }
  struct wn_exec e = {.ctx = ctx,
                      .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                      .threads = threads,
                      .dtype = t->dtype};
  for (int back = 0; back <= backward; back++) {
    e.scratch_bytes = wn_op_attention_scratch(&e, &t->a, back);
    e.scratch = aligned_alloc(WN_ALIGN, (e.scratch_bytes + WN_ALIGN) / WN_ALIGN * WN_ALIGN);
    assert_non_null(e.scratch);
    memset(e.scratch, 0xff, e.scratch_bytes);
    const wn_status status = back ? wn_op_attention_backward(&e, &t->a) : wn_op_attention_forward(&e, &t->a);
    if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
    free(e.scratch);
  }
}

static const struct shape shapes[] = {
    {1, 7, 7, 2, 2, 5, 8, 12, false, 0},        {3, 9, 6, 4, 2, 4, 0, 0, true, 0},
    {2, 5, 11, 2, 1, 3, 12, 10, true, 0.25},    {1, 1, 70, 2, 1, 16, 0, 0, false, 0},
    {2, 67, 67, 3, 3, 20, 32, 50, true, 0},     {3, 65, 130, 4, 2, 16, 0, 0, true, 0.2},
    {1, 140, 140, 2, 2, 33, 32, 128, false, 0}, {2, 1, 9, 2, 2, 8, 0, 0, true, 0},
    {1, 130, 3, 2, 1, 8, 4, 2, false, 0},       {2, 40, 1, 2, 2, 8, 0, 0, false, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- forward: the formula, written a second time ---- */

static void rows_see_all_keys_but_padding(void **unused) {
  (void)unused;
  for (int n = 0; n < SHAPES; n++) {
    if (shapes[n].dropout > 0) continue;
    struct bench t;
    bench_make(&t, &shapes[n], WN_F64, (uint64_t)n);
    call(&t, -1, 2, false);
    const struct shape *s = &t.s;
    for (int64_t b = 0; b < s->B; b++)
      for (int64_t h = 0; h < s->H; h++)
        for (int64_t i = 0; i < s->Tq; i++) {
          const int64_t keys = s->counts ? t.counts[b] : s->Tk, g = h / (s->H / s->Hkv);
          double sum = 0, want[64] = {0};
          for (int64_t j = 0; j < keys; j++) {
            double logit = 0;
            for (int64_t d = 0; d < s->D; d++)
              logit +=
                  t.x[Q][((b * s->Tq + i) * s->H + h) * s->D + d] * t.x[K][((b * s->Tk + j) * s->Hkv + g) * s->D + d];
            logit *= t.a.scale;
            if (s->n) logit += t.x[TABLE][buckets_of(i - j, s->n, s->farthest, true) * s->H + h];
            sum += exp(logit);
            for (int64_t d = 0; d < s->D; d++)
              want[d] += exp(logit) * t.x[V][((b * s->Tk + j) * s->Hkv + g) * s->D + d];
          }
          for (int64_t d = 0; d < s->D; d++) {
            const double got = value(&t, Y, ((b * s->Tq + i) * s->H + h) * s->D + d), w = keys ? want[d] / sum : 0;
            if (fabs(got - w) > 1e-12 * (1 + fabs(w))) fail_msg("shape %d: y is %.15g, expected %.15g", n, got, w);
          }
        }
    bench_clear(&t);
  }
}

/* ---- selection: F by definition ---- */

/* The logit of head h. */
static double logit_of(const struct bench *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  const struct shape *s = &t->s;
  const int64_t g = h / (s->H / s->Hkv);
  double sum = 0;
  for (int64_t d = 0; d < s->D; d++)
    sum += t->x[Q][((b * s->Tq + i) * s->H + h) * s->D + d] * t->x[K][((b * s->Tk + j) * s->Hkv + g) * s->D + d];
  sum *= t->a.scale;
  return s->n ? sum + t->x[TABLE][buckets_of(i - j, s->n, s->farthest, true) * s->H + h] : sum;
}

/* F[i,j] is summed directly over the rows k != i, and y follows from it. With every rule on and off, with padding, on
 * the reference and with every instruction set. One row selects one key far more than all others do, so for that row
 * the rest of the column's sum must keep its digits. */
static void selections_are_the_sum_over_the_other_rows(void **unused) {
  (void)unused;
  static const struct shape s = {3, 71, 71, 4, 2, 6, 12, 30, true, 0};
  enum { SOME = 5, LOUD = 40 };
  for (int rules = 0; rules < 16; rules++)
    for (int isa = -1; isa <= (int)best; isa++) {
      if (isa == WN_ISA_REF) continue;
      struct bench t;
      bench_make(&t, &s, isa < 0 ? WN_F64 : WN_F32, 77);
      for (int64_t d = 0; d < s.D; d++) { /* of head 1, which uses the keys of group 0 */
        t.x[Q][(LOUD * s.H + 1) * s.D + d] = 300;
        t.x[K][SOME * s.Hkv * s.D + d] = d ? 0.02 : -0.01;
      }
      float *F32 = calloc((size_t)(s.B * s.Tq * s.Tk), sizeof(double));
      t.a.scale *= 0.1;
      t.a.sel.on = true, t.a.sel.head = 1, t.a.sel.F = F32;
      t.a.sel.relu = rules & 1, t.a.sel.shift = rules & 2;
      t.a.sel.protect_first = rules & 4, t.a.sel.protect_self = rules & 8;
      call(&t, isa, 2, false);
      for (int64_t b = 0; b < s.B; b++) {
        const int64_t n = t.counts[b];
        static double S[71][71];
        for (int64_t k = 0; k < s.Tq; k++)
          for (int64_t j = 0; j < s.Tk; j++) {
            const bool no = k >= n || j >= n || (rules & 4 && j == 0) || (rules & 8 && j == k);
            S[k][j] = no ? 0 : logit_of(&t, b, 1, k, j);
            if (rules & 1 && S[k][j] < 0) S[k][j] = 0;
          }
        for (int64_t i = 0; i < s.Tq; i++) {
          double F[71] = {0}, sum[4] = {0}, y[4] = {0};
          for (int64_t j = 0; j < s.Tk; j++) {
            double size = 0;
            for (int64_t k = 0; k < s.Tq; k++)
              if (k != i || !(rules & 2)) F[j] += S[k][j], size += fabs(S[k][j]);
            const int64_t at = (b * s.Tq + i) * s.Tk + j;
            const double got = isa < 0 ? ((double *)F32)[at] : (double)F32[at];
            /* other rows' logits have rounding errors of their own, but not that of this row's 50 */
            if (!(fabs(got - F[j]) <= (isa < 0 ? 1e-12 * (1 + size) + 2e-14 : 1e-6 * size + 1e-7)))
              fail_msg("rules %d, isa %d, sequence %lld: F[%lld,%lld] is %.9g, expected %.9g", rules, isa, (long long)b,
                       (long long)i, (long long)j, got, F[j]);
          }
          for (int64_t h = 0; h < s.H; h++) {
            for (int64_t j = 0; j < n; j++) sum[h] += exp(logit_of(&t, b, h, i, j) - F[j]);
            for (int64_t j = 0; j < n; j++)
              y[h] +=
                  exp(logit_of(&t, b, h, i, j) - F[j]) / sum[h] * t.x[V][((b * s.Tk + j) * s.Hkv + h / 2) * s.D + 3];
            const double got = value(&t, Y, ((b * s.Tq + i) * s.H + h) * s.D + 3);
            if (!(fabs(got - y[h]) <= (isa < 0 ? 1e-11 : 3e-5)))
              fail_msg("rules %d, isa %d, sequence %lld, row %lld, head %lld: y is %.9g, expected %.9g", rules, isa,
                       (long long)b, (long long)i, (long long)h, got, y[h]);
          }
        }
      }
      free(F32);
      bench_clear(&t);
    }
}

/* ---- gradients ---- */

static double loss(struct bench *t) {
  double sum = 0;
  call(t, -1, 1, false);
  for (int64_t i = 0; i < t->n[Y]; i++) sum += value(t, Y, i) * t->x[DY][i];
  return sum;
}

static void gradients_are_those_of_differences(void **unused) {
  (void)unused;
  static const int pairs[][2] = {{Q, DQ}, {K, DK}, {V, DV}, {TABLE, DTABLE}};
  for (int n = 0; n < 4; n++) {
    struct bench t;
    bench_make(&t, &shapes[n], WN_F64, (uint64_t)n);
    call(&t, -1, 2, true);
    for (int p = 0; p < 4; p++)
      for (int k = 0; k < 12; k++) {
        const int64_t at =
            (int64_t)wn_random_below(7, WN_STREAM_TEST, (uint64_t)p, (uint64_t)k, (uint64_t)t.n[pairs[p][0]]);
        const double got = value(&t, pairs[p][1], at), h = 1e-6, kept = t.x[pairs[p][0]][at];
        t.x[pairs[p][0]][at] = kept + h;
        const double up = loss(&t);
        t.x[pairs[p][0]][at] = kept - h;
        const double want = (up - loss(&t)) / (2 * h);
        t.x[pairs[p][0]][at] = kept;
        if (fabs(got - want) > 1e-7 * (1 + fabs(want)))
          fail_msg("shape %d, array %d, element %lld: %.12g, differences give %.12g", n, pairs[p][0], (long long)at,
                   got, want);
      }
    bench_clear(&t);
  }
}

/* ---- the fused kernels ---- */

static void kernels_agree_with_the_reference(void **unused) {
  (void)unused;
  static const int outputs[] = {Y, LSE, DQ, DK, DV, DTABLE};
  for (int n = 0; n < SHAPES; n++) {
    struct bench want;
    bench_make(&want, &shapes[n], WN_F64, (uint64_t)n);
    call(&want, -1, 2, true);
    for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++)
      for (int threads = 1; threads <= 3; threads += 2) {
        struct bench got;
        bench_make(&got, &shapes[n], WN_F32, (uint64_t)n);
        call(&got, isa, threads, true);
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {
          double largest = 0;
          for (int64_t i = 0; i < want.n[outputs[o]]; i++)
            if (isfinite(value(&want, outputs[o], i))) largest = fmax(largest, fabs(value(&want, outputs[o], i)));
          for (int64_t i = 0; i < want.n[outputs[o]]; i++) {
            const double w = value(&want, outputs[o], i), g = value(&got, outputs[o], i);
            if (w == g) continue; /* also -inf */
            if (!(fabs(w - g) <= 3e-6 * largest + 1e-12))
              fail_msg("shape %d, isa %d, %d threads, array %d, element %lld: %.9g, expected %.9g", n, isa, threads,
                       outputs[o], (long long)i, g, w);
          }
        }
        bench_clear(&got);
      }
    bench_clear(&want);
  }
}

/* Keys from key_count on change nothing and get no gradient. */
static void padding_counts_for_nothing(void **unused) {
  (void)unused;
  const struct shape s = {2, 70, 75, 2, 1, 16, 8, 20, true, 0};
  for (int isa = -1; isa <= (int)best; isa++) {
    if (isa == WN_ISA_REF) continue;
    struct bench one, two;
    bench_make(&one, &s, WN_F32, 5);
    bench_make(&two, &s, WN_F32, 5);
    for (int64_t j = one.counts[1]; j < s.Tk; j++)
      for (int64_t d = 0; d < s.D; d++)
        for (int x = K; x <= V; x++) two.x[x][(s.Tk + j) * s.D + d] = 1e30;
    call(&one, isa, 2, true);
    call(&two, isa, 2, true);
    for (int x = Y; x < ARRAYS; x++)
      for (int64_t i = 0; i < one.n[x]; i++) assert_true(value(&one, x, i) == value(&two, x, i));
    for (int64_t j = one.counts[1]; j < s.Tk; j++)
      for (int64_t d = 0; d < s.D; d++) assert_true(value(&one, DK, (s.Tk + j) * s.D + d) == 0);
    bench_clear(&one);
    bench_clear(&two);
  }
}

/* ---- refusals ---- */

static void what_looks_back_is_refused(void **unused) {
  (void)unused;
  struct bench t;
  const struct shape s = {1, 4, 6, 2, 1, 4, 8, 12, true, 0};
  const int32_t documents[6] = {0};
  bench_make(&t, &s, WN_F64, 1);
  struct wn_exec e = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F64};
#define REFUSED(part, ...)                                                                                             \
  do {                                                                                                                 \
    struct wn_attention a = t.a;                                                                                       \
    __VA_ARGS__;                                                                                                       \
    assert_refused(ctx, wn_op_attention_forward(&e, &a), WN_ERR_ARGUMENT, part);                                       \
  } while (0)
  struct wn_attention other = t.a;
  other.sel.on = true;
  assert_refused(ctx, wn_op_attention_forward(&e, &other), WN_ERR_SHAPE, "select among 6 keys, expected the rows' own");
  REFUSED("f_in and f_out are for rows with causality", a.sel.on = true, a.Tk = 4, a.sel.f_out = a.y);
  REFUSED("serve the term \"window\"", a.window = 3);
  REFUSED("serve the term \"span\"", a.span.on = true);
  REFUSED("serve the term \"relative positions\"", a.relative.P = 9);
  REFUSED("serve the term \"sinks\"", a.sinks.n = 1);
  REFUSED("serve the term \"threshold\"", a.threshold.on = true);
  REFUSED("serve the term \"exclusive\"", a.exclusive.on = true);
  REFUSED("serve the term \"documents\"", a.doc_start = documents);
  REFUSED("key_count[0] is 7", t.counts[0] = 7);
  REFUSED("key_count is for open rows", a.Tq = 4, a.Tk = 6, a.open = false);
  REFUSED("map.theta", t.counts[0] = 6, a.map[0].theta = NULL);
  bench_clear(&t);
}

/* The public function, called as `winnow op attention` does. */
static void public_call(void **unused) {
  (void)unused;
  wn_attention_config config;
  assert_ok(ctx, wn_attention_config_parse(ctx, "{\"bidirectional\":true}", &config));
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"bidirectional\":true,\"selective\":{\"mem\":{}}}", &config),
                 WN_ERR_CONFIG, "selective.mem goes with causal attention");
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"bidirectional\":true,\"sinks\":2}", &config), WN_ERR_CONFIG,
                 "bidirectional attention does not serve the term \"sinks\"");
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"bidirectional\":true,\"buckets\":{\"count\":6}}", &config),
                 WN_ERR_CONFIG, "multiple of 4");
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"buckets\":{\"farthest\":16}}", &config), WN_ERR_CONFIG,
                 "buckets.farthest is 16");
  assert_ok(ctx, wn_attention_config_parse(ctx, "{\"bidirectional\":true}", &config));
  const float q[2] = {0, 0}, k[3] = {0, 0, 0}, v[3] = {3, 6, 1000};
  const int32_t count[1] = {2};
  float y[2];
  wn_attention_arrays a = {
      .B = 1, .T = 2, .Tk = 3, .H = 1, .Hkv = 1, .D = 1, .dtype = WN_F32, .q = q, .k = k, .v = v, .y = y};
  a.key_count = count;
  assert_ok(ctx, wn_attention_run(ctx, &config, &a));
  assert_float_equal(y[0], 4.5, 1e-6);
  assert_float_equal(y[1], 4.5, 1e-6);
  wn_attention_config_init(&config);
  assert_refused(ctx, wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "bidirectional");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(buckets_are_those_of_t5),
      cmocka_unit_test(rows_see_all_keys_but_padding),
      cmocka_unit_test(selections_are_the_sum_over_the_other_rows),
      cmocka_unit_test(gradients_are_those_of_differences),
      cmocka_unit_test(kernels_agree_with_the_reference),
      cmocka_unit_test(padding_counts_for_nothing),
      cmocka_unit_test(what_looks_back_is_refused),
      cmocka_unit_test(public_call),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
