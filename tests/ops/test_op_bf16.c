/* Operations on bf16 arrays, and products with precision bf16, under the tolerance rule: the error against the double
 * reference on the same numbers is at most twice that of a naive float computation that also rounds what it stores to
 * bf16, plus a few units in the last place of the largest value. For every set of arrays that can be bf16, with every
 * instruction set, with and without tiles (AMX). Without AVX512_BF16 the products are those of rounded floats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "isa.h"
#include "op_law.h"

#include "backends/cpu/cpu.h"
#include "naive.h"

static wn_context *reference;

static void check_set(const struct op_case *c, unsigned set, wn_context *ctx, const struct wn_backend *backend,
                      const char *who) {
  struct bench want, naive, got, again;
  bench_make_mixed(&want, c, WN_F64, WN_BF16, 0);
  bench_make_mixed(&naive, c, WN_F32, WN_BF16, 0);
  law_run(&want, reference, wn_backend_ref(), 1);
  law_run(&naive, reference, wn_backend_naive(), 1);
  for (int threads = 1; threads <= 3; threads++) {
    bench_make_mixed(&got, c, WN_F32, WN_BF16, set);
    law_run(&got, ctx, backend, threads);
    law_compare(&got, &want, &naive, who);
    bench_make_mixed(&again, c, WN_F32, WN_BF16, set);
    law_run(&again, ctx, backend, threads);
    for (int i = 0; i < got.count; i++)
      for (int64_t k = 0; k < elements(&got.a[i]); k++)
        if (array_get(&got, i, k) != array_get(&again, i, k)) fail_msg("%s: two runs differ", case_name(c));
    bench_clear(&got);
    bench_clear(&again);
  }
  bench_clear(&want);
  bench_clear(&naive);
}

static void check_backend(const char *name, const char *isa) {
  wn_context *ctx = NULL;
  if (!context_with_isa(name, isa, 3, &ctx)) skip();
  const struct wn_backend *backend = NULL;
  assert_int_equal(wn_backend_of(ctx, &backend), WN_OK);
  int checked = 0;
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    const unsigned all = law_bf16_arrays(&op_cases[i]);
    for (unsigned set = 0; set <= all; set++) {
      if (!law_serves(&op_cases[i], set, all)) continue;
      check_set(&op_cases[i], set, ctx, backend, isa ? isa : name);
      checked++;
    }
  }
  assert_true(checked > 100);
  wn_context_destroy(ctx);
}

/* The widest set comes first: once a process has asked oneDNN for AVX2, it never gets more. */
static void test_avx512(void **state) {
  (void)state;
  check_backend("cpu", "avx512");
}
/* As on a processor with AVX512_BF16 but without tiles. */
static void test_without_tiles(void **state) {
  (void)state;
  if (!wn_cpu_has_amx()) skip();
  wn_cpu_deny_amx(true);
  check_backend("cpu", "avx512");
  wn_cpu_deny_amx(false);
}
static void test_avx2(void **state) {
  (void)state;
  check_backend("cpu", ISA_OF_EIGHT);
}
static void test_ref(void **state) {
  (void)state;
  check_backend("ref", NULL);
}

/* Floats are rounded to bf16 before they are multiplied: the same result as when they were rounded beforehand. */
static void test_rounds_what_it_multiplies(void **state) {
  (void)state;
  static const char *const isas[] = {"avx512", ISA_OF_EIGHT, "ref"};
  enum { M = 37, N = 33, K = 70 };
  for (size_t s = 0; s < sizeof isas / sizeof *isas; s++) {
    wn_context *ctx = NULL;
    if (!context_with_isa(NULL, isas[s], 2, &ctx)) continue;
    const struct wn_backend *backend = NULL;
    assert_int_equal(wn_backend_of(ctx, &backend), WN_OK);
    static float x[2][M * K], w[2][N * K], dy[2][M * N], y[2][M * N], dx[2][M * K], dw[2][N * K];
    memset(dw, 0, sizeof dw);
    for (int i = 0; i < 2; i++) {
      struct {
        float *p;
        int n;
      } in[] = {{x[i], M * K}, {w[i], N * K}, {dy[i], M * N}};
      for (int a = 0; a < 3; a++)
        for (int k = 0; k < in[a].n; k++) {
          const float v = (float)wn_random_normal(3, WN_STREAM_TEST, (uint64_t)a, (uint64_t)k);
          in[a].p[k] = i ? wn_bf16_value(wn_bf16_round(v)) : v;
        }
      const struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = WN_F32, .precision = WN_BF16};
      struct wn_linear a = {.M = M, .N = N, .K = K, .x = x[i], .ldx = K, .w = w[i], .y = y[i], .ldy = N};
      a.dy = dy[i], a.lddy = N, a.dx = dx[i], a.lddx = K, a.dw = dw[i];
      assert_int_equal(run_linear(e, &a, false), WN_OK);
      assert_int_equal(run_linear(e, &a, true), WN_OK);
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(dw[0], dw[1], sizeof dw[0]);
    wn_context_destroy(ctx);
  }
}

static void refused(const struct wn_linear *a, wn_dtype dtype, wn_dtype precision, const char *text) {
  const struct wn_exec e = {
      .ctx = reference, .backend = wn_backend_ref(), .threads = 1, .dtype = dtype, .precision = precision};
  assert_int_equal(wn_op_linear_forward(&e, a), WN_ERR_UNSUPPORTED);
  if (!strstr(wn_context_error(reference), text)) fail_msg("\"%s\" lacks \"%s\"", wn_context_error(reference), text);
}

static void test_refusals(void **state) {
  (void)state;
  double room[64] = {0};
  const struct wn_linear a = {
      .M = 2, .N = 2, .K = 2, .x = room, .ldx = 2, .w = room + 8, .y = room + 16, .ldy = 2, .dy = room + 24, .lddy = 2};
  struct wn_linear b = a;
  refused(&a, WN_F64, WN_BF16, "precision BF16 with dtype F64");
  refused(&a, WN_F32, WN_F16, "precision F16 with dtype F32");
  b.x_type = WN_BF16;
  refused(&b, WN_F32, WN_F32, "arrays of BF16 need the precision BF16");
  b.x_type = WN_F16;
  refused(&b, WN_F32, WN_BF16, "x_type is F16");
  b = a, b.y_type = WN_BF16, b.accumulate = true;
  refused(&b, WN_F32, WN_BF16, "cannot be added to");
  b = a, b.rows_apart = true;
  refused(&b, WN_F32, WN_BF16, "rows apart");
  struct wn_norm n = {.rows = 1, .groups = 1, .width = 2, .x = room, .ldx = 2, .gain = room + 8, .y = room + 16};
  n.ldy = 2, n.x_type = WN_BF16;
  const struct wn_exec e = {.ctx = reference, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  assert_int_equal(wn_op_norm_forward(&e, &n), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(reference), "its y is BF16"));
  const struct wn_act act = {.type = WN_F64, .M = 1, .F = 2, .x = room, .y = room};
  assert_int_equal(wn_op_act_forward(&e, &act), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(reference), "type is F64"));
}

static int setup(void **state) {
  (void)state;
  return wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref", .threads = 1},
                           &reference) == WN_OK
             ? 0
             : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(reference);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_avx512),
                                     cmocka_unit_test(test_without_tiles),
                                     cmocka_unit_test(test_avx2),
                                     cmocka_unit_test(test_ref),
                                     cmocka_unit_test(test_rounds_what_it_multiplies),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
