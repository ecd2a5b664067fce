/* A mixture of experts with random weights and all saved intermediates, for tests of the operation. */
#ifndef TESTS_OPS_MIXTURE_H
#define TESTS_OPS_MIXTURE_H

#include "support.h"

#include <math.h>

#include "base/context.h"
#include "ops/ops.h"
#include "packed_weights.h"

enum { MIXTURE_E = 40 }; /* the most experts */
struct mixture_shape {
  int64_t C, F, S, E, rows, T, top; /* S: width of the shared expert, or 0 */
  bool normalize, shared, gate, gradients;
};

struct mixture {
  wn_dtype dtype;
  struct mixture_shape s;
  struct wn_experts a;
  struct wn_expert expert[MIXTURE_E];
  struct packed_weights packed[2 * MIXTURE_E];
  int32_t *row_count; /* rows after these are padding */
  double *balance;
  void *owned[4 * MIXTURE_E + 32];
  int count;
};

static inline void *array_of(struct mixture *x, int64_t n, uint64_t seed, double scale) {
  const size_t bytes = (size_t)n * wn_dtype_size(x->dtype);
  void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
  assert_non_null(p);
  for (int64_t i = 0; i < n; i++)
    wn_number_set(p, i, x->dtype, (double)(float)(scale * wn_random_normal(seed, WN_STREAM_TEST, 3, (uint64_t)i)));
  x->owned[x->count++] = p;
  return p;
}

static inline void expert_make(struct mixture *x, struct wn_expert *e, int64_t width, uint64_t seed) {
  const int64_t C = x->s.C;
  e->in = array_of(x, 2 * width * C, seed, 0.2);
  e->out = array_of(x, C * width, seed + 1, 0.2);
  if (x->s.gradients) e->d_in = array_of(x, 2 * width * C, 0, 0), e->d_out = array_of(x, C * width, 0, 0);
}

static inline void mixture_make(struct mixture *x, wn_dtype dtype, const struct mixture_shape *shape) {
  memset(x, 0, sizeof *x);
  x->dtype = dtype, x->s = *shape;
  const int64_t C = shape->C, E = shape->E, F = shape->F, S = shape->S, rows = shape->rows, top = shape->top;
  struct wn_experts *a = &x->a;
  *a = (struct wn_experts){.M = rows, .T = shape->T, .C = C, .E = E, .top = top, .F = F, .normalize = shape->normalize};
  a->S = shape->shared ? S : 0;
  for (int e = 0; e < E; e++) expert_make(x, &x->expert[e], F, 10 + 2 * (uint64_t)e);
  if (shape->shared) expert_make(x, &a->shared, S, 200);
  a->expert = x->expert;
  a->x = array_of(x, rows * C, 1, 1);
  a->router = array_of(x, E * C, 2, 0.2);
  if (shape->gate) a->shared_gate = array_of(x, C, 3, 0.2);
  a->y = array_of(x, rows * C, 4, 0);
  a->prob = array_of(x, rows * E, 0, 0), a->weight = array_of(x, rows * top, 0, 0);
  a->chosen = array_of(x, rows * top, 0, 0), a->place = array_of(x, rows * top, 0, 0);
  a->in = array_of(x, rows * top * 2 * F, 0, 0);
  if (shape->shared) a->shared_in = array_of(x, rows * 2 * S, 0, 0), a->shared_factor = array_of(x, rows, 0, 0);
  if (shape->shared) a->shared_out = array_of(x, rows * C, 0, 0);
  x->row_count = x->owned[x->count++] = malloc((size_t)(rows / shape->T) * sizeof *x->row_count);
  x->balance = x->owned[x->count++] = calloc(1, sizeof *x->balance);
  assert_true(x->row_count && x->balance);
  for (int b = 0; b < rows / shape->T; b++) x->row_count[b] = (int32_t)shape->T - b % (int)shape->T;
  a->row_count = x->row_count;
  a->balance = x->balance;
  a->dy = array_of(x, rows * C, 5, 1);
  a->dx = array_of(x, rows * C, 0, 0);
  if (!shape->gradients) return;
  a->balance_scale = 0.7;
  a->d_router = array_of(x, E * C, 0, 0);
  if (shape->gate) a->d_shared_gate = array_of(x, C, 0, 0);
}

/* Quantises the experts' weights to a type. They then have no gradients. */
static inline void mixture_pack(struct mixture *x, wn_gguf_type type) {
  const wn_gguf_type both[] = {type, type};
  for (int e = 0; e < x->s.E; e++) {
    packed_weights_make(&x->packed[2 * e], 2 * x->s.F, x->s.C, 2, both, (uint64_t)e);
    packed_weights_make(&x->packed[2 * e + 1], x->s.C, x->s.F, 1, both, (uint64_t)e + 50);
    x->expert[e].packed_in = &x->packed[2 * e].packed;
    x->expert[e].packed_out = &x->packed[2 * e + 1].packed;
    x->expert[e].d_in = x->expert[e].d_out = NULL;
  }
}

static inline void mixture_clear(struct mixture *x) {
  for (int i = 0; i < x->count; i++) free(x->owned[i]);
  for (int i = 0; i < 2 * MIXTURE_E; i++)
    if (x->packed[i].blocks) packed_weights_clear(&x->packed[i]);
}

static inline void mixture_run(wn_context *ctx, const struct wn_backend *backend, wn_dtype precision,
                               const struct mixture *x, bool backward) {
  struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = x->dtype, .precision = precision};
  e.scratch_bytes = wn_op_experts_scratch(&e, &x->a, backward);
  const size_t room = (e.scratch_bytes + 63) / 64 * 64;
  e.scratch = aligned_alloc(64, room ? room : 64);
  memset(e.scratch, 0xff, room);
  assert_ok(ctx, backward ? wn_op_experts_backward(&e, &x->a) : wn_op_experts_forward(&e, &x->a));
  free(e.scratch);
}

/* Results must be near those of the float reference, relative to the largest of them. */
static inline void mixture_near(const char *name, const void *got, const void *want, int64_t n, double relative) {
  const float *g = got, *w = want;
  double most = 0, worst = 0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs((double)w[i]));
    worst = isfinite(g[i]) ? fmax(worst, fabs((double)g[i] - (double)w[i])) : INFINITY;
  }
  if (!(worst <= relative * most)) fail_msg("%s: differs by %g of %g", name, worst, most);
}

/* Compares all gradients that both have. */
static inline void mixture_near_gradients(const struct mixture *got, const struct mixture *want, double relative) {
  const struct mixture_shape *s = &want->s;
  const struct wn_experts *g = &got->a, *w = &want->a;
  mixture_near("dx", g->dx, w->dx, s->rows * s->C, relative);
  if (w->d_router) mixture_near("d_router", g->d_router, w->d_router, s->E * s->C, relative);
  for (int e = 0; e < s->E && w->expert[e].d_in; e++) {
    mixture_near("d_in", g->expert[e].d_in, w->expert[e].d_in, 2 * s->F * s->C, relative);
    mixture_near("d_out", g->expert[e].d_out, w->expert[e].d_out, s->C * s->F, relative);
  }
  if (w->shared.d_in) mixture_near("shared d_in", g->shared.d_in, w->shared.d_in, 2 * s->S * s->C, relative);
  if (w->shared.d_out) mixture_near("shared d_out", g->shared.d_out, w->shared.d_out, s->C * s->S, relative);
  if (w->d_shared_gate) mixture_near("d_gate", g->d_shared_gate, w->d_shared_gate, s->C, relative);
}

#endif
