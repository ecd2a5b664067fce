/* A mixture of experts. The reference's gradients agree with finite differences, with and without normalised gate
 * weights, with and without a shared expert and its gate, including the balance loss. The cpu backend agrees with the
 * reference, with float and quantised weights. A row has the same bits in a batch as alone. The experts with the
 * largest logits are chosen; ties go to the lowest. Weights of experts that no row chose are not read. */
#include "support.h"

#include <math.h>

#include "backends/backends.h"
#include "ops/mixture.h"

enum { C = 64, F = 32, S = 32, E = 5, ROWS = 12, T = 4, TOP = 2 };

static void make(struct mixture *x, wn_dtype dtype, bool normalize, bool shared, bool gate, bool gradients) {
  const struct mixture_shape s = {.C = C,
                                  .F = F,
                                  .S = S,
                                  .E = E,
                                  .rows = ROWS,
                                  .T = T,
                                  .top = TOP,
                                  .normalize = normalize,
                                  .shared = shared,
                                  .gate = gate,
                                  .gradients = gradients};
  mixture_make(x, dtype, &s);
}

static void run(wn_context *ctx, const struct wn_backend *backend, const struct mixture *x, bool backward) {
  mixture_run(ctx, backend, WN_F32, x, backward);
}

static double loss(wn_context *ctx, const struct mixture *x) {
  double sum = 0;
  run(ctx, wn_backend_ref(), x, false);
  for (int64_t i = 0; i < ROWS * C; i++) sum += wn_number(x->a.y, i, x->dtype) * wn_number(x->a.dy, i, x->dtype);
  return sum + x->a.balance_scale * *x->a.balance;
}

static void compare_gradient(wn_context *ctx, const struct mixture *x, const char *name, const void *value,
                             const void *gradient, int64_t n) {
  double *v = (double *)(uintptr_t)value;
  const double *g = gradient, step = 1e-6;
  double most = 0, worst = 0;
  for (int64_t k = 0; k < 12; k++) { /* a sample */
    const int64_t i = (int64_t)wn_random_below(9, WN_STREAM_TEST, 4, (uint64_t)k, (uint64_t)n);
    const double was = v[i];
    v[i] = was + step;
    const double up = loss(ctx, x);
    v[i] = was - step;
    const double down = loss(ctx, x);
    v[i] = was;
    most = fmax(most, fabs(g[i]));
    worst = fmax(worst, fabs((up - down) / (2 * step) - g[i]));
  }
  if (!(worst <= 1e-6 * (1 + most))) fail_msg("%s: differs by %g of %g", name, worst, most);
}

static void gradients(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  for (int c = 0; c < 8; c++) {
    const bool shared = c & 2, gate = (c & 4) && shared;
    struct mixture x;
    make(&x, WN_F64, c & 1, shared, gate, true);
    loss(ctx, &x);
    run(ctx, wn_backend_ref(), &x, true);
    int used = 0;
    for (int e = 0; e < E; e++) used += ((double *)x.expert[e].d_out)[0] != 0;
    assert_true(used >= 3); /* more than one is chosen */
    compare_gradient(ctx, &x, "x", x.a.x, x.a.dx, ROWS * C);
    compare_gradient(ctx, &x, "router", x.a.router, x.a.d_router, E * C);
    for (int e = 0; e < E; e++) {
      compare_gradient(ctx, &x, "an expert's in", x.expert[e].in, x.expert[e].d_in, 2 * F * C);
      compare_gradient(ctx, &x, "an expert's out", x.expert[e].out, x.expert[e].d_out, C * F);
    }
    if (shared) compare_gradient(ctx, &x, "the shared in", x.a.shared.in, x.a.shared.d_in, 2 * S * C);
    if (shared) compare_gradient(ctx, &x, "the shared out", x.a.shared.out, x.a.shared.d_out, C * S);
    if (gate) compare_gradient(ctx, &x, "the gate", x.a.shared_gate, x.a.d_shared_gate, C);
    mixture_clear(&x);
  }
  wn_context_destroy(ctx);
}

static const struct wn_backend *cpu_of(wn_context **ctx) {
  const wn_context_options o = {.size = sizeof o, .threads = 2};
  assert_int_equal(wn_context_create(&o, ctx), WN_OK);
  return wn_backend_cpu((*ctx)->isa);
}

static void backends(void **state) {
  (void)state;
  wn_context *ctx;
  const struct wn_backend *cpu = cpu_of(&ctx);
  for (int c = 0; c < 8; c++) {
    const bool shared = c & 2, gate = (c & 4) && shared;
    struct mixture x, y;
    make(&x, WN_F32, c & 1, shared, gate, true);
    make(&y, WN_F32, c & 1, shared, gate, true);
    run(ctx, wn_backend_ref(), &x, false);
    run(ctx, cpu, &y, false);
    assert_memory_equal(x.a.chosen, y.a.chosen, sizeof(int32_t) * ROWS * TOP);
    assert_memory_equal(x.a.place, y.a.place, sizeof(int32_t) * ROWS * TOP);
    mixture_near("y", y.a.y, x.a.y, ROWS * C, 2e-6);
    assert_true(fabs(*x.balance - *y.balance) < 1e-5);
    run(ctx, wn_backend_ref(), &x, true);
    run(ctx, cpu, &y, true);
    mixture_near_gradients(&y, &x, 1e-5);
    mixture_clear(&x);
    mixture_clear(&y);
  }
  wn_context_destroy(ctx);
}

/* Quantised weights: near the reference, with the same choices, since the router is exact; a row has the same bits
 * alone and in any batch. */
static void rows_apart(void **state) {
  (void)state;
  static const wn_gguf_type types[] = {WN_GGUF_F32, WN_GGUF_Q8_0, WN_GGUF_Q4_1, WN_GGUF_BF16};
  wn_context *ctx;
  const struct wn_backend *cpu = cpu_of(&ctx);
  for (int i = 0; i < 4; i++) {
    struct mixture x, y;
    float together[ROWS * C];
    make(&x, WN_F32, true, true, true, false);
    make(&y, WN_F32, true, true, true, false);
    if (types[i] != WN_GGUF_F32) mixture_pack(&x, types[i]), mixture_pack(&y, types[i]);
    x.a.rows_apart = y.a.rows_apart = true;
    run(ctx, cpu, &x, false);
    run(ctx, wn_backend_ref(), &y, false);
    assert_memory_equal(x.a.chosen, y.a.chosen, sizeof(int32_t) * ROWS * TOP);
    mixture_near(wn_gguf_type_name(types[i]), x.a.y, y.a.y, ROWS * C, types[i] == WN_GGUF_F32 ? 2e-6 : 0.05);
    memcpy(together, x.a.y, sizeof together);
    x.a.M = x.a.T = 1;
    x.a.row_count = NULL;
    for (int m = 0; m < ROWS; m++) {
      run(ctx, cpu, &x, false);
      if (memcmp(x.a.y, together + m * C, C * sizeof(float)) != 0)
        fail_msg("%s: row %d has other bits alone", wn_gguf_type_name(types[i]), m);
      x.a.x = (const float *)x.a.x + C;
    }
    mixture_clear(&x);
    mixture_clear(&y);
  }
  wn_context_destroy(ctx);
}

/* Equal logits: the lowest experts are chosen, their gate weights are equal, and evenness is `top`. Experts that no row
 * chose are not read. */
static void choices(void **state) {
  (void)state;
  wn_context *ctx;
  const struct wn_backend *const backends[] = {wn_backend_ref(), cpu_of(&ctx)};
  for (int b = 0; b < 2; b++) {
    struct mixture x;
    make(&x, WN_F32, true, false, false, false);
    memset((void *)(uintptr_t)x.a.router, 0, sizeof(float) * E * C);
    for (int64_t i = 0; i < C * F; i++) ((float *)(uintptr_t)x.expert[4].out)[i] = NAN;
    x.a.row_count = NULL;
    run(ctx, backends[b], &x, false);
    for (int m = 0; m < ROWS; m++) {
      assert_true(x.a.chosen[m * TOP] == 0 && x.a.chosen[m * TOP + 1] == 1);
      assert_true(((float *)x.a.weight)[m * TOP] == 0.5f);
    }
    for (int64_t i = 0; i < ROWS * C; i++) assert_true(isfinite(((float *)x.a.y)[i]));
    assert_true(fabs(*x.balance - TOP) < 1e-6);
    mixture_clear(&x);
  }
  wn_context_destroy(ctx);
}

static void refusals(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  struct mixture x;
  make(&x, WN_F32, true, false, false, false);
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1};
  x.a.top = E + 1;
  assert_refused(ctx, wn_op_experts_forward(&e, &x.a), WN_ERR_SHAPE, "top is 6, expected 1 to 5");
  x.a.top = TOP, x.a.router = NULL;
  assert_refused(ctx, wn_op_experts_forward(&e, &x.a), WN_ERR_ARGUMENT, "router is NULL");
  x.a.router = x.a.x, x.a.T = 5;
  assert_refused(ctx, wn_op_experts_forward(&e, &x.a), WN_ERR_SHAPE, "no multiple of T");
  mixture_clear(&x);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gradients), cmocka_unit_test(backends),
                                     cmocka_unit_test(rows_apart), cmocka_unit_test(choices),
                                     cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
