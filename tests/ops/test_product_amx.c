/* Products in AMX tiles on their own: every layout of a factor, and edges of every kind, under the tolerance rule: the
 * error against double sums of the rounded factors is at most twice that of sequential float sums. The same bits with
 * any number of threads, and nothing is read or written outside the arrays. Skipped by name on a processor without
 * tiles. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/backends.h"
#include "worst.h"
#include "backends/cpu/cpu.h"
#include "base/rng.h"
#include "tensor/bf16.h"
#include "winnow/context.h"

enum { BESIDE = 5, GUARD = -1234 };

/* A factor in memory: `lines` of `width` numbers, `ld` apart, surrounded by NaN. */
struct factor {
  struct wn_cpu_operand o;
  void *memory;
  int64_t kept, reduced;
};

static void factor_make(struct factor *f, int64_t kept, int64_t reduced, bool along, bool bf16, uint64_t which) {
  const int64_t lines = along ? kept : reduced, width = along ? reduced : kept, ld = width + BESIDE;
  const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
  *f = (struct factor){.kept = kept, .reduced = reduced, .memory = malloc((size_t)(lines * ld) * size)};
  assert_non_null(f->memory);
  for (int64_t i = 0; i < lines * ld; i++) {
    const float v = i % ld < width ? (float)wn_random_normal(7, WN_STREAM_TEST, which, (uint64_t)i) : NAN;
    if (bf16)
      ((uint16_t *)f->memory)[i] = i % ld < width ? wn_bf16_round(v) : 0x7fc0;
    else
      ((float *)f->memory)[i] = v;
  }
  f->o = (struct wn_cpu_operand){f->memory, ld, bf16, along};
}

/* Element (i, k) as multiplied. */
static float factor_at(const struct factor *f, int64_t i, int64_t k) {
  const int64_t at = f->o.along ? i * f->o.ld + k : k * f->o.ld + i;
  return wn_bf16_value(f->o.bf16 ? ((const uint16_t *)f->memory)[at] : wn_bf16_round(((const float *)f->memory)[at]));
}

struct shape {
  int64_t M, N, K;
};

/* Initial c: numbers if the product is added to it, and guards around it. */
static void c_fill(void *c, const struct shape *s, bool bf16) {
  const int64_t ld = s->N + BESIDE;
  for (int64_t i = 0; i < s->M * ld; i++) {
    const float v = i % ld < s->N ? (float)wn_random_normal(8, WN_STREAM_TEST, 0, (uint64_t)i) : (float)GUARD;
    if (bf16)
      ((uint16_t *)c)[i] = wn_bf16_round(v);
    else
      ((float *)c)[i] = v;
  }
}

static float c_at(const void *c, int64_t i, bool bf16) {
  return bf16 ? wn_bf16_value(((const uint16_t *)c)[i]) : ((const float *)c)[i];
}

static void check_one(wn_context *ctx, const struct shape *s, unsigned how) {
  const bool a_along = how & 1, a_bf16 = how & 2, b_along = how & 4, b_bf16 = how & 8, c_bf16 = how & 16;
  const bool add = !c_bf16 && (how & 32), biased = how & 64;
  const int64_t ld = s->N + BESIDE;
  struct factor a, b;
  factor_make(&a, s->M, s->K, a_along, a_bf16, 1);
  factor_make(&b, s->N, s->K, b_along, b_bf16, 2);
  float *bias = malloc((size_t)s->N * sizeof *bias);
  const size_t bytes = (size_t)(s->M * ld) * (c_bf16 ? sizeof(uint16_t) : sizeof(float));
  void *c = malloc(bytes), *first = malloc(bytes), *before = malloc(bytes);
  assert_true(bias && c && first && before);
  for (int64_t n = 0; n < s->N; n++) bias[n] = (float)wn_random_normal(9, WN_STREAM_TEST, 0, (uint64_t)n);
  c_fill(before, s, c_bf16);
  for (int threads = 1; threads <= 3; threads++) {
    const size_t scratch = wn_cpu_amx_scratch(threads, s->N, s->K, c_bf16);
    void *room = NULL;
    assert_int_equal(posix_memalign(&room, 64, scratch), 0);
    const struct wn_exec exec = {
        .ctx = ctx, .threads = threads, .dtype = WN_F32, .scratch = room, .scratch_bytes = scratch};
    memcpy(c, before, bytes);
    wn_cpu_product_amx(&exec, &(struct wn_cpu_amx_product){.M = s->M,
                                                           .N = s->N,
                                                           .K = s->K,
                                                           .a = a.o,
                                                           .b = b.o,
                                                           .add = add,
                                                           .c_bf16 = c_bf16,
                                                           .bias = biased ? bias : NULL,
                                                           .c = c,
                                                           .ldc = ld});
    free(room);
    if (threads == 1) memcpy(first, c, bytes);
    if (memcmp(first, c, bytes) != 0)
      fail_msg("%lld x %lld x %lld, how %u: %d threads differ from one", (long long)s->M, (long long)s->N,
               (long long)s->K, how, threads);
  }
  double error = 0, naive = 0, largest = 0;
  for (int64_t m = 0; m < s->M; m++) {
    for (int64_t n = 0; n < ld; n++) {
      const float got = c_at(c, m * ld + n, c_bf16);
      if (n >= s->N) {
        if (got != c_at(before, m * ld + n, c_bf16)) fail_msg("written beside c, how %u", how);
        continue;
      }
      double want = 0;
      float sum = 0;
      for (int64_t k = 0; k < s->K; k++) {
        const float x = factor_at(&a, m, k), y = factor_at(&b, n, k);
        want += (double)x * (double)y;
        sum += x * y;
      }
      if (biased) want += (double)bias[n], sum += bias[n];
      if (add) want += (double)c_at(before, m * ld + n, false), sum += c_at(before, m * ld + n, false);
      const double rounded = c_bf16 ? (double)wn_bf16_value(wn_bf16_round(sum)) : (double)sum;
      if (worse(fabs((double)got - want), error)) error = fabs((double)got - want);
      naive = fmax(naive, fabs(rounded - want));
      largest = fmax(largest, fabs(want));
    }
  }
  if (!(error <= 2 * naive + 4 * (double)FLT_EPSILON * largest))
    fail_msg("%lld x %lld x %lld, how %u: error %g, naive %g", (long long)s->M, (long long)s->N, (long long)s->K, how,
             error, naive);
  free(a.memory), free(b.memory), free(bias), free(c), free(first), free(before);
}

static void test_products(void **state) {
  (void)state;
  /* whole blocks; all sizes 1; edges of one tile, of two; deeper than is packed at a time; more columns; more rows than
   * columns, so that rows are divided */
  static const struct shape shapes[] = {{32, 32, 32},  {1, 1, 1},     {33, 17, 31},  {64, 96, 64},  {16, 48, 33},
                                        {47, 33, 800}, {5, 1400, 40}, {130, 20, 96}, {70, 40, 1600}};
  wn_context *ctx = NULL;
  if (!wn_cpu_has_amx()) skip();
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx),
                   WN_OK);
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (unsigned how = 0; how < 128; how++) check_one(ctx, &shapes[i], how);
  wn_context_destroy(ctx);
}

/* If a factor's rows are whole tiles they are multiplied in place, with the same bits as packed. */
static void test_rows_where_they_lie(void **state) {
  (void)state;
  enum { M = 64, N = 32, K = 64 };
  static uint16_t a[M * K], wide[M * (K + 3)], b[N * K];
  static float c[M * N], d[M * N];
  if (!wn_cpu_has_amx()) skip();
  for (int i = 0; i < M * K; i++) {
    a[i] = wn_bf16_round((float)wn_random_normal(1, WN_STREAM_TEST, 0, (uint64_t)i));
    wide[i / K * (K + 3) + i % K] = a[i];
  }
  for (int i = 0; i < N * K; i++) b[i] = wn_bf16_round((float)wn_random_normal(2, WN_STREAM_TEST, 0, (uint64_t)i));
  void *room = NULL;
  assert_int_equal(posix_memalign(&room, 64, wn_cpu_amx_scratch(1, N, K, false)), 0);
  const struct wn_exec exec = {.threads = 1, .dtype = WN_F32, .scratch = room};
  struct wn_cpu_amx_product x = {
      .M = M, .N = N, .K = K, .a = {a, K, true, true}, .b = {b, K, true, true}, .c = c, .ldc = N};
  wn_cpu_product_amx(&exec, &x);
  x.a = (struct wn_cpu_operand){wide, K + 3, true, true}, x.c = d;
  wn_cpu_product_amx(&exec, &x);
  assert_memory_equal(c, d, sizeof c);
  /* one row less, so that the last rows are packed */
  memset(d, 0, sizeof d);
  x.a = (struct wn_cpu_operand){a, K, true, true}, x.M = M - 1;
  wn_cpu_product_amx(&exec, &x);
  assert_memory_equal(c, d, (M - 1) * N * sizeof *c);
  free(room);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_rows_where_they_lie)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
