/* Every backward pass of the double reference against central differences of its forward pass, along random directions
 * and for single elements. The loss is sum(out * dy); with L_mem, M is one of the outputs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "op_cases.h"

static wn_context *ctx;

/* One thread: at these sizes a second one would only wait. */
static struct wn_exec exec_double(void) {
  return (struct wn_exec){.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F64};
}

static double loss_of(const struct bench *b) {
  double loss = 0;
  for (int i = 0; i < b->count; i++) {
    const struct array *a = &b->a[i];
    if (a->role != OUT || a->link < 0) continue;
    for (int64_t r = 0; r < a->rows; r++)
      for (int64_t c = 0; c < a->width; c++)
        loss += array_get(b, i, r * a->ld + c) * array_get(b, a->link, r * a->ld + c);
  }
  return loss;
}

/* Element i's coefficient in the direction: a single element, or random if only is -1. */
static double direction(int64_t only, int which, int64_t i) {
  if (only >= 0) return i == only ? 1 : 0;
  return wn_random_normal(99, WN_STREAM_TEST, (uint64_t)(which * 10 - only), (uint64_t)i);
}

static double loss_moved(const struct op_case *c, int which, int64_t only, double step) {
  struct bench b;
  bench_make(&b, c, WN_F64);
  for (int64_t i = 0; i < elements(&b.a[which]); i++)
    array_set(&b, which, i, array_get(&b, which, i) + step * direction(only, which, i));
  if (op_rows[c->op].call(&b, exec_double(), false) != WN_OK) fail_msg("%s: %s", case_name(c), wn_context_error(ctx));
  const double loss = loss_of(&b);
  bench_clear(&b);
  return loss;
}

static void check_gradient(const struct bench *b, const struct bench *before, int grad, int64_t only) {
  const struct array *g = &b->a[grad];
  const double h = 1e-5;
  double got = 0, size = 0;
  for (int64_t r = 0; r < g->rows; r++)
    for (int64_t c = 0; c < g->width; c++) {
      const int64_t i = r * g->ld + c;
      const double d = array_get(b, grad, i) - (g->adds ? array_get(before, grad, i) : 0);
      got += d * direction(only, g->link, i);
      size += d * d;
    }
  const double up = loss_moved(b->c, g->link, only, h), down = loss_moved(b->c, g->link, only, -h);
  const double want = (up - down) / (2 * h), limit = 1e-6 * (fabs(want) + sqrt(size)) + 1e-9 * (1 + fabs(up));
  if (!(fabs(got - want) <= limit))
    fail_msg("%s: %s (element %lld): %.12g, differences give %.12g", case_name(b->c), g->name, (long long)only, got,
             want);
}

static void check_case(const struct op_case *c) {
  struct bench b, before;
  bench_make(&b, c, WN_F64);
  bench_make(&before, c, WN_F64);
  if (op_rows[c->op].call(&b, exec_double(), false) != WN_OK || op_rows[c->op].call(&b, exec_double(), true) != WN_OK)
    fail_msg("%s: %s", case_name(c), wn_context_error(ctx));
  for (int i = 0; i < b.count; i++) {
    if (b.a[i].role != GRAD || (c->op == NORM && !(c->flags & BIAS) && i == N_DSHIFT)) continue;
    for (int64_t k = -1; k >= -2; k--) check_gradient(&b, &before, i, k);
    for (uint64_t k = 0; k < 3; k++) {
      const struct array *a = &b.a[i];
      const int64_t r = (int64_t)wn_random_below(5, WN_STREAM_TEST, k, 0, (uint64_t)a->rows);
      const int64_t w = (int64_t)wn_random_below(5, WN_STREAM_TEST, k, 1, (uint64_t)a->width);
      check_gradient(&b, &before, i, r * a->ld + w);
    }
  }
  bench_clear(&b);
  bench_clear(&before);
}

static void check_op(enum op op) {
  int cases = 0;
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    /* Large cases are for comparing backends. */
    const struct op_case *c = &op_cases[i];
    if (c->op != op || (op == ATTENTION && c->n[1] > 16)) continue;
    check_case(c);
    cases++;
  }
  assert_true(cases > 0);
}

static void test_linear(void **state) {
  (void)state;
  check_op(LINEAR);
}
static void test_embedding(void **state) {
  (void)state;
  check_op(EMBEDDING);
}
static void test_norm(void **state) {
  (void)state;
  check_op(NORM);
}
static void test_rope(void **state) {
  (void)state;
  check_op(ROPE);
}
static void test_act(void **state) {
  (void)state;
  check_op(ACT);
}
static void test_dropout(void **state) {
  (void)state;
  check_op(DROPOUT);
}
/* Noise has the logistic distribution: mean 0, variance pi^2/3; it is added, and another stream has other noise. */
static void test_noise(void **state) {
  (void)state;
  enum { N = 100003 };
  static double x[2][N];
  double mean = 0, square = 0;
  for (uint64_t s = 0; s < 2; s++) {
    for (int64_t i = 0; i < N; i++) x[s][i] = 3;
    const struct wn_noise a = {.n = N, .seed = 5, .stream = 7 + s, .x = x[s]};
    const struct wn_exec exec = exec_double();
    assert_int_equal(wn_op_noise_forward(&exec, &a), WN_OK);
    assert_int_not_equal(wn_op_noise_backward(&exec, &a), WN_OK);
  }
  for (int64_t i = 0; i < N; i++) {
    mean += (x[0][i] - 3) / N;
    square += (x[0][i] - 3) * (x[0][i] - 3) / N;
    assert_true(x[0][i] != x[1][i]);
  }
  assert_true(fabs(mean) < 0.03 && fabs(square - 3.2899) < 0.1);
  uint32_t word[4];
  wn_philox(5, 7, 1, word); /* of elements 4 to 7 */
  const double u = (word[2] + 0.5) / 4294967296.0;
  assert_true(fabs(x[0][6] - 3 - log(u / (1 - u))) < 1e-12);
}
static void test_cross_entropy(void **state) {
  (void)state;
  check_op(CROSS_ENTROPY);
}
static void test_attention(void **state) {
  (void)state;
  check_op(ATTENTION);
}

/* Optimizers have no gradient, but their first steps have closed forms. */
static void test_optimizers(void **state) {
  (void)state;
  double p = 2, g = -3, m = 0, v = 0;
  struct wn_adamw w = {.n = 1, .p = &p, .g = &g, .m = &m, .v = &v, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .step = 1};
  w.weight_decay = 0.5, w.grad_scale = 2, w.eps = 0;
  assert_int_equal(run_adamw(exec_double(), &w, false), WN_OK);
  assert_true(fabs(p - (2 + 0.1 - 0.1 * 0.5 * 2)) < 1e-12); /* lr * sign(g), and weight decay */
  assert_true(fabs(m + 0.6) < 1e-12 && fabs(v - 0.036) < 1e-12);
  double q = 2, s = 9;
  struct wn_adagrad a = {.n = 1, .p = &q, .g = &g, .v = &s, .lr = 0.1, .grad_scale = -4.0 / 3};
  assert_int_equal(run_adagrad(exec_double(), &a, false), WN_OK);
  assert_true(fabs(s - 25) < 1e-12 && fabs(q - (2 - 0.1 * 4 / 5)) < 1e-12);
}

static int setup(void **state) {
  (void)state;
  return wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref", .threads = 2},
                           &ctx) == WN_OK
             ? 0
             : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear),        cmocka_unit_test(test_embedding), cmocka_unit_test(test_norm),
      cmocka_unit_test(test_rope),          cmocka_unit_test(test_act),       cmocka_unit_test(test_dropout),
      cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_attention), cmocka_unit_test(test_optimizers),
      cmocka_unit_test(test_noise),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
