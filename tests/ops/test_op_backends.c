/* The tolerance rule for every operation: a float backend's error against the double reference is at most twice that of
 * a naive computation in float, plus a few units in the last place of the largest value. The bytes between strided rows
 * do not change, two runs give the same bits, and scratch need not be cleared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "isa.h"
#include "op_law.h"

#include "naive.h"

static void run_case(struct bench *b, const struct op_case *c, wn_context *ctx, const struct wn_backend *backend,
                     int threads, wn_dtype dtype) {
  bench_make(b, c, dtype);
  law_run(b, ctx, backend, threads);
}

/* Expected and naive results, computed once for all backends. */
static struct bench expected[OP_CASE_COUNT], naive[OP_CASE_COUNT];
static wn_context *reference;

static int setup(void **state) {
  (void)state;
  if (wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref", .threads = 2},
                        &reference) != WN_OK)
    return -1;
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    run_case(&expected[i], &op_cases[i], reference, wn_backend_ref(), 1, WN_F64);
    run_case(&naive[i], &op_cases[i], reference, wn_backend_naive(), 1, WN_F32);
  }
  return 0;
}
static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < OP_CASE_COUNT; i++) bench_clear(&expected[i]), bench_clear(&naive[i]);
  wn_context_destroy(reference);
  return 0;
}

static void check_backend(const char *backend_name, const char *isa) {
  wn_context *ctx = NULL;
  if (!context_with_isa(backend_name, isa, 2, &ctx)) skip();
  const struct wn_backend *backend = NULL;
  assert_int_equal(wn_backend_of(ctx, &backend), WN_OK);
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    struct bench got, again;
    for (int threads = 1; threads <= 2; threads++) {
      run_case(&got, &op_cases[i], ctx, backend, threads, WN_F32);
      law_compare(&got, &expected[i], &naive[i], isa ? isa : backend_name);
      if (threads == 2) {
        run_case(&again, &op_cases[i], ctx, backend, threads, WN_F32);
        for (int k = 0; k < got.count; k++)
          if (!law_same_bits(&got, &again, k))
            fail_msg("%s: %s: two runs on two threads differ", case_name(&op_cases[i]), got.a[k].name);
        bench_clear(&again);
      }
      bench_clear(&got);
    }
  }
  wn_context_destroy(ctx);
}

/* The rule notices a NaN, whatever values follow it. */
static void test_worst(void **state) {
  (void)state;
  const double errors[] = {1, NAN, 2, 3};
  double error = 0;
  for (int i = 0; i < 4; i++)
    if (worse(errors[i], error)) error = errors[i];
  assert_true(isnan(error));
  assert_true(worse(2, 1) && !worse(1, 2));
}

/* With the plain instruction set the cpu backend uses the reference's functions. */
static void test_cpu_plain(void **state) {
  (void)state;
  check_backend("cpu", "ref");
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_backend("cpu", ISA_OF_EIGHT);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_backend("cpu", "avx512");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_worst),
      cmocka_unit_test(test_cpu_plain),
      cmocka_unit_test(test_cpu_avx2),
      cmocka_unit_test(test_cpu_avx512),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
