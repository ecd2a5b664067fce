/* Mixture of experts. Rows are gathered by expert; each expert's weights are multiplied once with all of its rows. So
 * of quantised weights, only those of chosen experts are read. The products are the backend's own. With rows_apart each
 * row of a product is bitwise what it is alone, and a row's experts are added in the order of their weights. Cost: the
 * products, and moving 2 (top + 1) MC numbers. */
#include <math.h>
#include <string.h>

#include "backends/cpu/cpu.h"
#include "backends/ref/experts.h"
#include "base/alloc.h"

/* Arrays in scratch, followed by linear's. A = M top rows. */
struct experts_room {
  int32_t *end;             /* [E] */
  float *x, *out;           /* [A,C] rows of x by expert; the experts' outputs, later the gradients of these and of x */
  float *hidden, *d_hidden; /* [A,F], or [M,S] */
  float *shared;            /* [M,C] */
  float *logits;            /* [M,E] */
  double *dw;               /* [2,M,top] gradients of the weights, by place and by row */
  size_t bytes;             /* of all arrays */
};

static void *room_take(char *base, size_t *at, size_t bytes) {
  void *out = base ? base + *at : NULL;
  *at += (bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  return out;
}

static struct experts_room experts_room_of(const struct wn_experts *a, bool backward, void *base) {
  const size_t A = (size_t)(a->M * a->top), M = (size_t)a->M, C = (size_t)a->C, E = (size_t)a->E, f = sizeof(float);
  const size_t of_experts = A * (size_t)a->F, of_shared = M * (size_t)a->S;
  const size_t hidden = (of_experts > of_shared ? of_experts : of_shared) * f;
  struct experts_room r = {0};
  r.end = room_take(base, &r.bytes, E * sizeof(int32_t));
  r.x = room_take(base, &r.bytes, A * C * f);
  r.out = room_take(base, &r.bytes, A * C * f);
  r.hidden = room_take(base, &r.bytes, hidden);
  if (!backward) return r;
  r.d_hidden = room_take(base, &r.bytes, hidden);
  r.shared = room_take(base, &r.bytes, a->S > 0 ? M * C * f : 0);
  r.logits = room_take(base, &r.bytes, M * E * f);
  r.dw = room_take(base, &r.bytes, 2 * A * sizeof(double));
  return r;
}

/* The products of `rows` rows with an expert of width F. */
static struct wn_linear expert_in(const struct wn_experts *a, const struct wn_expert *e, int64_t rows, int64_t F) {
  return (struct wn_linear){.M = rows,
                            .N = 2 * F,
                            .K = a->C,
                            .rows_apart = a->rows_apart,
                            .ldx = a->C,
                            .w = e->in,
                            .packed = e->packed_in,
                            .ldy = 2 * F,
                            .lddy = 2 * F,
                            .lddx = a->C,
                            .dw = e->d_in};
}
static struct wn_linear expert_out(const struct wn_experts *a, const struct wn_expert *e, int64_t rows, int64_t F) {
  return (struct wn_linear){.M = rows,
                            .N = a->C,
                            .K = F,
                            .rows_apart = a->rows_apart,
                            .ldx = F,
                            .w = e->out,
                            .packed = e->packed_out,
                            .ldy = a->C,
                            .lddy = a->C,
                            .lddx = F,
                            .dw = e->d_out};
}
static struct wn_linear experts_router(const struct wn_experts *a) {
  return (struct wn_linear){.M = a->M,
                            .N = a->E,
                            .K = a->C,
                            .rows_apart = a->rows_apart,
                            .x = a->x,
                            .ldx = a->C,
                            .w = a->router,
                            .y = a->prob,
                            .ldy = a->E,
                            .lddy = a->E,
                            .dx = a->dx,
                            .lddx = a->C,
                            .accumulate_dx = true,
                            .dw = a->d_router};
}

static size_t most_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward, size_t most) {
  const size_t need = exec->backend->linear_scratch ? exec->backend->linear_scratch(exec, a, backward) : 0;
  return need > most ? need : most;
}

size_t wn_cpu_experts_scratch(const struct wn_exec *exec, const struct wn_experts *a, bool backward) {
  const struct wn_linear router = experts_router(a);
  struct wn_exec exact = *exec;
  exact.precision = WN_F32;
  size_t most = most_scratch(&exact, &router, backward, 0);
  for (int64_t e = 0; e <= a->E; e++) {
    const bool shared = e == a->E;
    if (shared && a->S == 0) break;
    const struct wn_expert *of = shared ? &a->shared : &a->expert[e];
    struct wn_linear in = expert_in(a, of, a->M, shared ? a->S : a->F),
                     out = expert_out(a, of, a->M, shared ? a->S : a->F);
    in.dx = out.dx = &most; /* backward always computes them; nothing is written here */
    most = most_scratch(exec, &in, backward, most);
    most = most_scratch(exec, &out, backward, most);
  }
  return experts_room_of(a, backward, NULL).bytes + most;
}

/* Rows of n numbers, and what the functions below do with them. */
struct experts_rows {
  const struct wn_experts *a;
  int64_t n;
  const float *from;
  float *to, *hidden;
  const float *factor;
  double *dw;
};
static void experts_parallel(const struct wn_exec *exec, int64_t rows, void (*fn)(void *, int64_t),
                             const struct experts_rows *x) {
  wn_parallel_for(rows * x->n < 16384 ? 1 : exec->threads, rows, fn, x);
}

/* to[place[m,k]] = from[m] */
static void gather_row(void *args, int64_t m) {
  const struct experts_rows *x = args;
  for (int64_t k = 0; k < x->a->top; k++)
    memcpy(x->to + x->a->place[m * x->a->top + k] * x->n, x->from + m * x->n, (size_t)x->n * sizeof *x->to);
}
static void experts_gather(const struct wn_exec *exec, const struct wn_experts *a, const float *from, float *to) {
  experts_parallel(exec, a->M, gather_row, &(struct experts_rows){.a = a, .n = a->C, .from = from, .to = to});
}

static wn_status experts_act(const struct wn_exec *exec, int64_t rows, int64_t F, const float *in, float *out) {
  const struct wn_act act = {.kind = WN_ACT_SWIGLU, .M = rows, .F = F, .x = in, .y = out};
  return rows > 0 ? exec->backend->act_forward(exec, &act) : WN_OK;
}

static float gathered_dot(const float *x, const float *y, int64_t n) {
  float lane[16] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; l++) lane[l] += x[i + l] * y[i + l];
  for (; i < n; i++) sum += x[i] * y[i];
  for (int l = 0; l < 16; l++) sum += lane[l];
  return sum;
}

/* y = the shared expert's output plus the weighted sum of the row's experts. */
static void combine_row(void *args, int64_t m) {
  const struct experts_rows *e = args;
  const struct wn_experts *a = e->a;
  const float *weight = a->weight, *shared_out = a->shared_out, *x = a->x, *gate = a->shared_gate;
  float *y = a->y, *factor = a->shared_factor; /* [M,C], [M] */
  const int64_t C = a->C;
  float *row = y + m * C;
  if (a->S > 0) {
    factor[m] = gate ? 1 / (1 + expf(-gathered_dot(x + m * C, gate, C))) : 1;
    for (int64_t c = 0; c < C; c++) row[c] = factor[m] * shared_out[m * C + c];
  } else {
    memset(row, 0, (size_t)C * sizeof *row);
  }
  for (int64_t k = 0; k < a->top; k++) {
    const float w = weight[m * a->top + k], *of = e->from + a->place[m * a->top + k] * C;
    for (int64_t c = 0; c < C; c++) row[c] += w * of[c];
  }
}

wn_status wn_cpu_experts_forward(const struct wn_exec *exec, const struct wn_experts *a) {
  struct experts_room r = experts_room_of(a, false, exec->scratch);
  /* The products use the layer's precision, but the router is exact. */
  const struct wn_exec inner = wn_exec_behind(exec, r.bytes);
  const struct wn_backend *b = exec->backend;
  const struct wn_linear router = experts_router(a);
  if (a->M == 0) return WN_OK;
  struct wn_exec exact = inner;
  exact.precision = WN_F32;
  WN_TRY(b->linear_forward(&exact, &router));
  wn_experts_route(exec, a, r.end);
  if (a->S > 0) {
    struct wn_linear in = expert_in(a, &a->shared, a->M, a->S), out = expert_out(a, &a->shared, a->M, a->S);
    in.x = a->x, in.y = a->shared_in, out.x = r.hidden, out.y = a->shared_out;
    WN_TRY(b->linear_forward(&inner, &in));
    WN_TRY(experts_act(&inner, a->M, a->S, a->shared_in, r.hidden));
    WN_TRY(b->linear_forward(&inner, &out));
  }
  experts_gather(exec, a, a->x, r.x);
  for (int64_t e = 0; e < a->E; e++) {
    const int64_t first = e ? r.end[e - 1] : 0, rows = r.end[e] - first;
    if (rows == 0) continue;
    struct wn_linear in = expert_in(a, &a->expert[e], rows, a->F), out = expert_out(a, &a->expert[e], rows, a->F);
    float *at = (float *)a->in + first * 2 * a->F;
    in.x = r.x + first * a->C, in.y = at, out.x = r.hidden + first * a->F, out.y = r.out + first * a->C;
    WN_TRY(b->linear_forward(&inner, &in));
    WN_TRY(experts_act(&inner, rows, a->F, at, r.hidden + first * a->F));
    WN_TRY(b->linear_forward(&inner, &out));
  }
  experts_parallel(exec, a->M, combine_row, &(struct experts_rows){.a = a, .n = a->C, .from = r.out});
  return WN_OK;
}

/* ---- backward ---- */

/* dw[i] = hidden[i] . to[i], both of which are then multiplied by factor[i]. */
static void weigh_row(void *args, int64_t i) {
  const struct experts_rows *x = args;
  float *h = x->hidden + i * x->n, *d = x->to + i * x->n;
  if (x->dw) x->dw[i] = (double)gathered_dot(h, d, x->n);
  for (int64_t f = 0; f < x->n; f++) h[f] *= x->factor[i], d[f] *= x->factor[i];
}

/* to[m] += the rows place[m,k] of `from` */
static void scatter_row(void *args, int64_t m) {
  const struct experts_rows *x = args;
  for (int64_t k = 0; k < x->a->top; k++) {
    const float *of = x->from + x->a->place[m * x->a->top + k] * x->n;
    for (int64_t c = 0; c < x->n; c++) x->to[m * x->n + c] += of[c];
  }
}

/* Backward of one expert, for `rows` rows; dy is the gradient of their outputs. `in` is replaced by its gradient, d_x
 * gets the gradient of x. factor: the weight of each row's output, applied to hidden (for d_out) and to d_hidden.
 * dw[i]: hidden . d_hidden, the gradient of the row's weight. */
static wn_status expert_backward(const struct wn_exec *exec, const struct wn_experts *a, const struct wn_expert *e,
                                 int64_t rows, int64_t F, const float *x, const float *dy, float *in, float *hidden,
                                 float *d_hidden, const float *factor, double *dw, float *d_x, bool accumulate) {
  const struct wn_backend *b = exec->backend;
  WN_TRY(experts_act(exec, rows, F, in, hidden));
  struct wn_linear out = expert_out(a, e, rows, F), into = expert_in(a, e, rows, F);
  out.dy = dy, out.x = hidden, out.dw = NULL, out.dx = d_hidden;
  WN_TRY(b->linear_backward(exec, &out));
  experts_parallel(exec, rows, weigh_row,
                   &(struct experts_rows){.n = F, .hidden = hidden, .to = d_hidden, .factor = factor, .dw = dw});
  if (e->d_out) {
    out.dw = e->d_out, out.dx = NULL;
    WN_TRY(b->linear_backward(exec, &out));
  }
  const struct wn_act act = {.kind = WN_ACT_SWIGLU, .M = rows, .F = F, .x = in, .dy = d_hidden, .dx = in};
  WN_TRY(b->act_backward(exec, &act));
  into.x = x, into.dy = in, into.dx = d_x, into.accumulate_dx = accumulate;
  return b->linear_backward(exec, &into);
}

/* Backward of the shared expert: the first to write dx. */
static wn_status shared_backward(const struct wn_exec *inner, const struct wn_experts *a,
                                 const struct experts_room *r) {
  const float *x = a->x, *dy = a->dy, *gate = a->shared_gate, *out = a->shared_out, *factor = a->shared_factor;
  float *dx = a->dx, *d_gate = a->d_shared_gate; /* [M,C], [C] */
  const int64_t C = a->C;
  WN_TRY(expert_backward(inner, a, &a->shared, a->M, a->S, x, dy, a->shared_in, r->hidden, r->d_hidden, factor, NULL,
                         dx, a->accumulate_dx));
  if (!gate) return WN_OK;
  for (int64_t m = 0; m < a->M; m++) {
    const float z = gathered_dot(dy + m * C, out + m * C, C) * factor[m] * (1 - factor[m]);
    for (int64_t c = 0; c < C; c++) dx[m * C + c] += z * gate[c];
    for (int64_t c = 0; d_gate && c < C; c++) d_gate[c] += z * x[m * C + c];
  }
  return WN_OK;
}

wn_status wn_cpu_experts_backward(const struct wn_exec *exec, const struct wn_experts *a) {
  struct experts_room r = experts_room_of(a, true, exec->scratch);
  const struct wn_exec inner = wn_exec_behind(exec, r.bytes);
  const int64_t C = a->C, A = a->M * a->top;
  const float *weight = a->weight;
  float *dx = a->dx;
  if (a->M == 0) return WN_OK;
  if (a->S > 0)
    WN_TRY(shared_backward(&inner, a, &r));
  else if (!a->accumulate_dx)
    memset(dx, 0, (size_t)(a->M * C) * sizeof *dx);
  experts_gather(exec, a, a->x, r.x);
  experts_gather(exec, a, a->dy, r.out);
  /* By expert: how many rows it has; below, their weights. */
  memset(r.end, 0, (size_t)a->E * sizeof *r.end);
  for (int64_t i = 0; i < A; i++) r.end[a->chosen[i]]++;
  for (int64_t e = 1; e < a->E; e++) r.end[e] += r.end[e - 1];
  float *by_place = r.logits; /* logits is not used before; top is at most E */
  for (int64_t i = 0; i < A; i++) by_place[a->place[i]] = weight[i];
  for (int64_t e = 0; e < a->E; e++) {
    const int64_t first = e ? r.end[e - 1] : 0, rows = r.end[e] - first;
    if (rows == 0) continue;
    /* x's rows are read for the last time before their gradient overwrites dy, which has been read. */
    WN_TRY(expert_backward(&inner, a, &a->expert[e], rows, a->F, r.x + first * C, r.out + first * C,
                           (float *)a->in + first * 2 * a->F, r.hidden, r.d_hidden, by_place + first, r.dw + first,
                           r.out + first * C, false));
  }
  experts_parallel(exec, a->M, scatter_row, &(struct experts_rows){.a = a, .n = C, .from = r.out, .to = dx});
  double *dw = r.dw + A;
  for (int64_t i = 0; i < A; i++) dw[i] = r.dw[a->place[i]];
  wn_experts_route_back(exec, a, dw, r.logits);
  struct wn_linear router = experts_router(a);
  struct wn_exec exact = inner;
  exact.precision = WN_F32;
  router.dy = r.logits;
  return exec->backend->linear_backward(&exact, &router);
}
