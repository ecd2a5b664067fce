/* A mixture of experts: the reference's gradients against differences, with weights that add up to 1 and that do not,
 * with and without a shared expert and its gate, evenness included; the cpu backend against the reference, in floats
 * and in blocks; a row of a batch has the bits that it has alone; choices are those of the largest logits, ties go to
 * the lowest; rows of experts that nobody chose are not read. */
#include "support.h"

#include <math.h>

#include "backends/backends.h"
#include "base/context.h"
#include "ops/ops.h"
#include "packed_weights.h"

enum { C = 64, F = 32, S = 32, E = 5, ROWS = 12, T = 4, TOP = 2 };

struct mixture {
  wn_dtype dtype;
  struct wn_experts a;
  struct wn_expert expert[E];
  struct packed_weights packed[2 * E + 2];
  int32_t row_count[ROWS / T];
  double balance;
  void *owned[64];
  int count;
};

static void *array_of(struct mixture *x, int64_t n, uint64_t seed, double scale) {
  const size_t bytes = (size_t)n * wn_dtype_size(x->dtype);
  void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
  assert_non_null(p);
  for (int64_t i = 0; i < n; i++)
    wn_number_set(p, i, x->dtype, (double)(float)(scale * wn_random_normal(seed, WN_STREAM_TEST, 3, (uint64_t)i)));
  x->owned[x->count++] = p;
  return p;
}

static void expert_make(struct mixture *x, struct wn_expert *e, int64_t width, uint64_t seed, bool gradients) {
  e->in = array_of(x, 2 * width * C, seed, 0.2);
  e->out = array_of(x, C * width, seed + 1, 0.2);
  if (gradients) e->d_in = array_of(x, 2 * width * C, 0, 0), e->d_out = array_of(x, C * width, 0, 0);
}

static void mixture_make(struct mixture *x, wn_dtype dtype, bool normalize, bool shared, bool gate, bool gradients) {
  memset(x, 0, sizeof *x);
  x->dtype = dtype;
  struct wn_experts *a = &x->a;
  *a = (struct wn_experts){.M = ROWS, .T = T, .C = C, .E = E, .top = TOP, .F = F, .normalize = normalize};
  a->S = shared ? S : 0;
  for (int e = 0; e < E; e++) expert_make(x, &x->expert[e], F, 10 + 2 * (uint64_t)e, gradients);
  if (shared) expert_make(x, &a->shared, S, 40, gradients);
  a->expert = x->expert;
  a->x = array_of(x, ROWS * C, 1, 1);
  a->router = array_of(x, E * C, 2, 0.2);
  if (gate) a->shared_gate = array_of(x, C, 3, 0.2);
  a->y = array_of(x, ROWS * C, 4, 0);
  a->prob = array_of(x, ROWS * E, 0, 0), a->weight = array_of(x, ROWS * TOP, 0, 0);
  a->chosen = array_of(x, ROWS * TOP, 0, 0), a->place = array_of(x, ROWS * TOP, 0, 0);
  a->in = array_of(x, ROWS * TOP * 2 * F, 0, 0);
  if (shared) a->shared_in = array_of(x, ROWS * 2 * S, 0, 0), a->shared_factor = array_of(x, ROWS, 0, 0);
  if (shared) a->shared_out = array_of(x, ROWS * C, 0, 0);
  for (int b = 0; b < ROWS / T; b++) x->row_count[b] = T - b; /* the rest is padding */
  a->row_count = x->row_count;
  a->balance = &x->balance;
  a->dy = array_of(x, ROWS * C, 5, 1);
  a->dx = array_of(x, ROWS * C, 0, 0);
  if (!gradients) return;
  a->balance_scale = 0.7;
  a->d_router = array_of(x, E * C, 0, 0);
  if (gate) a->d_shared_gate = array_of(x, C, 0, 0);
}

static void mixture_clear(struct mixture *x) {
  for (int i = 0; i < x->count; i++) free(x->owned[i]);
  for (int i = 0; i < 2 * E + 2; i++)
    if (x->packed[i].blocks) packed_weights_clear(&x->packed[i]);
}

static void run(wn_context *ctx, const struct wn_backend *backend, const struct mixture *x, bool backward) {
  struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = x->dtype};
  e.scratch_bytes = wn_op_experts_scratch(&e, &x->a, backward);
  const size_t room = (e.scratch_bytes + 63) / 64 * 64;
  e.scratch = aligned_alloc(64, room ? room : 64);
  memset(e.scratch, 0xff, room);
  assert_ok(ctx, backward ? wn_op_experts_backward(&e, &x->a) : wn_op_experts_forward(&e, &x->a));
  free(e.scratch);
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
    mixture_make(&x, WN_F64, c & 1, shared, gate, true);
    loss(ctx, &x);
    run(ctx, wn_backend_ref(), &x, true);
    int used = 0;
    for (int e = 0; e < E; e++) used += ((double *)x.expert[e].d_out)[0] != 0;
    assert_true(used >= 3); /* there is a choice */
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

/* The cpu backend's float results near those of the reference with floats. */
static void near(const char *name, const void *got, const void *want, int64_t n, double relative) {
  const float *g = got, *w = want;
  double most = 0, worst = 0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs((double)w[i]));
    worst = isfinite(g[i]) ? fmax(worst, fabs((double)g[i] - (double)w[i])) : INFINITY;
  }
  if (!(worst <= relative * most)) fail_msg("%s: differs by %g of %g", name, worst, most);
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
    mixture_make(&x, WN_F32, c & 1, shared, gate, true);
    mixture_make(&y, WN_F32, c & 1, shared, gate, true);
    run(ctx, wn_backend_ref(), &x, false);
    run(ctx, cpu, &y, false);
    assert_memory_equal(x.a.chosen, y.a.chosen, sizeof(int32_t) * ROWS * TOP);
    assert_memory_equal(x.a.place, y.a.place, sizeof(int32_t) * ROWS * TOP);
    near("y", y.a.y, x.a.y, ROWS * C, 2e-6);
    assert_true(fabs(x.balance - y.balance) < 1e-5);
    run(ctx, wn_backend_ref(), &x, true);
    run(ctx, cpu, &y, true);
    near("dx", y.a.dx, x.a.dx, ROWS * C, 1e-5);
    near("d_router", y.a.d_router, x.a.d_router, E * C, 1e-5);
    for (int e = 0; e < E; e++) {
      near("d_in", y.expert[e].d_in, x.expert[e].d_in, 2 * F * C, 1e-5);
      near("d_out", y.expert[e].d_out, x.expert[e].d_out, C * F, 1e-5);
    }
    if (shared) near("shared d_in", y.a.shared.d_in, x.a.shared.d_in, 2 * S * C, 1e-5);
    if (shared) near("shared d_out", y.a.shared.d_out, x.a.shared.d_out, C * S, 1e-5);
    if (gate) near("d_gate", y.a.d_shared_gate, x.a.d_shared_gate, C, 1e-5);
    mixture_clear(&x);
    mixture_clear(&y);
  }
  wn_context_destroy(ctx);
}

static void pack(struct mixture *x, wn_gguf_type type) {
  const wn_gguf_type both[] = {type, type};
  for (int e = 0; e < E; e++) {
    packed_weights_make(&x->packed[2 * e], 2 * F, C, 2, both, (uint64_t)e);
    packed_weights_make(&x->packed[2 * e + 1], C, F, 1, both, (uint64_t)e + 50);
    x->expert[e].packed_in = &x->packed[2 * e].packed;
    x->expert[e].packed_out = &x->packed[2 * e + 1].packed;
    x->expert[e].d_in = x->expert[e].d_out = NULL;
  }
}

/* In blocks: near the reference, whose choices are the same (the router is exact); and a row alone, in any batch. */
static void rows_apart(void **state) {
  (void)state;
  static const wn_gguf_type types[] = {WN_GGUF_F32, WN_GGUF_Q8_0, WN_GGUF_Q4_1, WN_GGUF_BF16};
  wn_context *ctx;
  const struct wn_backend *cpu = cpu_of(&ctx);
  for (int i = 0; i < 4; i++) {
    struct mixture x, y;
    float together[ROWS * C];
    mixture_make(&x, WN_F32, true, true, true, false);
    mixture_make(&y, WN_F32, true, true, true, false);
    if (types[i] != WN_GGUF_F32) pack(&x, types[i]), pack(&y, types[i]);
    x.a.rows_apart = y.a.rows_apart = true;
    run(ctx, cpu, &x, false);
    run(ctx, wn_backend_ref(), &y, false);
    assert_memory_equal(x.a.chosen, y.a.chosen, sizeof(int32_t) * ROWS * TOP);
    near(wn_gguf_type_name(types[i]), x.a.y, y.a.y, ROWS * C, types[i] == WN_GGUF_F32 ? 2e-6 : 0.05);
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

/* Equal logits: the lowest; their weights are equal, and evenness is `top`. Experts that nobody takes are not read. */
static void choices(void **state) {
  (void)state;
  wn_context *ctx;
  const struct wn_backend *const backends[] = {wn_backend_ref(), cpu_of(&ctx)};
  for (int b = 0; b < 2; b++) {
    struct mixture x;
    mixture_make(&x, WN_F32, true, false, false, false);
    memset((void *)(uintptr_t)x.a.router, 0, sizeof(float) * E * C);
    for (int64_t i = 0; i < C * F; i++) ((float *)(uintptr_t)x.expert[4].out)[i] = NAN;
    x.a.row_count = NULL;
    run(ctx, backends[b], &x, false);
    for (int m = 0; m < ROWS; m++) {
      assert_true(x.a.chosen[m * TOP] == 0 && x.a.chosen[m * TOP + 1] == 1);
      assert_true(((float *)x.a.weight)[m * TOP] == 0.5f);
    }
    for (int64_t i = 0; i < ROWS * C; i++) assert_true(isfinite(((float *)x.a.y)[i]));
    assert_true(fabs(x.balance - TOP) < 1e-6);
    mixture_clear(&x);
  }
  wn_context_destroy(ctx);
}

static void refusals(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  struct mixture x;
  mixture_make(&x, WN_F32, true, false, false, false);
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
