/* The tolerance law on every operation: a float backend's error against the double reference is at most twice the
 * error of a naive computation in float, plus a few units in the last place of the largest value. Also: the bytes
 * between strided rows stay as they were, two runs give the same bits, and no operation's scratch needs clearing. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "isa.h"
#include "op_cases.h"

#include "naive.h"

/* Rounding of the stored result itself, which naive and fast computations share but may meet on different elements. */
#define ULPS 4

static void run_case(struct bench *b, const struct op_case *c, wn_context *ctx, const struct wn_backend *backend,
                     int threads, wn_dtype dtype) {
  const struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = dtype};
  bench_make(b, c, dtype);
  if (op_rows[c->op].call(b, e, false) != WN_OK || op_rows[c->op].call(b, e, true) != WN_OK)
    fail_msg("%s on %s: %s", case_name(c), backend->name, wn_context_error(ctx));
}

static bool compared(const struct array *a) {
  return a->role == OUT || a->role == GRAD || a->role == STATE;
}

static double largest_error(const struct bench *got, const struct bench *want, int which, double *largest,
                            int64_t *at) {
  double error = 0;
  *largest = 0;
  for (int64_t i = 0; i < elements(&want->a[which]); i++) {
    const double w = array_get(want, which, i), d = fabs(array_get(got, which, i) - w);
    /* A NaN is never within a limit. */
    if (!(d <= error)) error = d, *at = i;
    *largest = fmax(*largest, fabs(w));
  }
  return error;
}

/* What an operation leaves unspecified: arrays that the case does not use. Compared all the same: untouched. */
static void compare(const struct bench *got, const struct bench *want, const struct bench *measure, const char *who) {
  for (int i = 0; i < want->count; i++) {
    if (!compared(&want->a[i])) continue;
    double largest = 0;
    int64_t at = 0, ignored = 0;
    const double allowed = largest_error(measure, want, i, &largest, &ignored);
    const double error = largest_error(got, want, i, &largest, &at);
    const double limit = 2 * allowed + ULPS * (double)FLT_EPSILON * largest;
    if (!(error <= limit))
      fail_msg("%s: %s of %s, element %lld: %.9g, expected %.9g; error %.3g, limit %.3g (naive %.3g)",
               case_name(want->c), want->a[i].name, who, (long long)at, array_get(got, i, at), array_get(want, i, at),
               error, limit, allowed);
  }
}

static bool same_bits(const struct bench *x, const struct bench *y) {
  for (int i = 0; i < x->count; i++)
    if (memcmp(x->a[i].data, y->a[i].data,
               (size_t)elements(&x->a[i]) * (x->a[i].wide ? sizeof(double) : wn_dtype_size(x->dtype))))
      return false;
  return true;
}

/* What is expected and what is allowed, computed once for all backends. */
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
  if (isa)
    setenv("WINNOW_ISA", isa, 1);
  else
    unsetenv("WINNOW_ISA");
  wn_context *ctx = NULL;
  const wn_status status = wn_context_create(
      &(wn_context_options){.size = sizeof(wn_context_options), .backend = backend_name, .threads = 2}, &ctx);
  unsetenv("WINNOW_ISA");
  if (status == WN_ERR_UNSUPPORTED && isa) { /* this machine lacks the instruction set */
    wn_context_destroy(ctx);
    skip();
  }
  if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
  const struct wn_backend *backend = NULL;
  assert_int_equal(wn_backend_of(ctx, &backend), WN_OK);
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    struct bench got, again;
    for (int threads = 1; threads <= 2; threads++) {
      run_case(&got, &op_cases[i], ctx, backend, threads, WN_F32);
      compare(&got, &expected[i], &naive[i], isa ? isa : backend_name);
      if (threads == 2) {
        run_case(&again, &op_cases[i], ctx, backend, threads, WN_F32);
        if (!same_bits(&got, &again)) fail_msg("%s: two runs on two threads differ", case_name(&op_cases[i]));
        bench_clear(&again);
      }
      bench_clear(&got);
    }
  }
  wn_context_destroy(ctx);
}

/* The cpu backend's plain set is the reference's slots. */
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
      cmocka_unit_test(test_cpu_plain),
      cmocka_unit_test(test_cpu_avx2),
      cmocka_unit_test(test_cpu_avx512),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
