/* Mixture of experts: the router, each row's experts in turn, and backward; equations in ops.h.
 *
 * Backward, for one row and expert, with t = out^T dy, h = silu(g) u and w the expert's weight:
 *   dw = t . h;  dh = w t;  d[g; u] = dh through the activation;  d_in += d[g; u] x^T;  d_out += w dy h^T
 *   dx += in^T d[g; u];  dp_k = dw_k, or (dw_k - sum_j w_j dw_j) / sum_j p_j if normalized, 0 for what was not chosen
 *   dp_e += balance_scale E f_e / n;  dlogit_e = p_e (dp_e - sum_j p_j dp_j) */
#ifndef REAL
#include "backends/ref/experts.h"
#include "backends/ref/ref.h"
#include "io/gguf_types.h"
#define REAL_FILE "backends/ref/experts.c"

bool wn_experts_counts(const struct wn_experts *a, int64_t m) {
  return !a->row_count || m % a->T < a->row_count[m / a->T];
}

/* Weights from k0 on of row n of a matrix with K columns, as doubles. */
static void experts_weights(const void *dense, wn_dtype dtype, const struct wn_packed *p, int64_t K, int64_t n,
                            int64_t k0, int64_t count, double out[WN_REF_BLOCKS]) {
  float w[WN_REF_BLOCKS];
  wn_gguf_type type;
  if (!p) {
    for (int64_t k = 0; k < count; k++) out[k] = wn_number(dense, n * K + k0 + k, dtype);
    return;
  }
  const char *row = wn_packed_row(p, K, n, &type);
  wn_gguf_decode(type, row, k0, count, w);
  for (int64_t k = 0; k < count; k++) out[k] = (double)w[k];
}

/* Scratch per thread: a row of hidden values, and one of the model's width. */
static size_t experts_doubles(const struct wn_experts *a) {
  return (size_t)((a->F > a->S ? a->F : a->S) + a->C);
}

#include "backends/ref/twice.h"
WN_REF_SLOT(experts_forward, struct wn_experts)
WN_REF_SLOT(experts_backward, struct wn_experts)

size_t wn_ref_experts_scratch(const struct wn_exec *exec, const struct wn_experts *a, bool backward) {
  (void)backward;
  const size_t router = (size_t)(a->M * (a->top + a->E)); /* gradients of weights and of logits */
  return ((size_t)exec->threads * experts_doubles(a) + router) * sizeof(double);
}

void wn_experts_route(const struct wn_exec *exec, const struct wn_experts *a, int32_t *end) {
  if (exec->dtype == WN_F64)
    experts_route_f64(exec, a);
  else
    experts_route_f32(exec, a);
  /* Sorted by expert, then by row. */
  int32_t next = 0;
  for (int64_t e = 0; e < a->E; e++) {
    for (int64_t i = 0; i < a->M * a->top; i++)
      if (a->chosen[i] == e) a->place[i] = next++;
    if (end) end[e] = next;
  }
}

void wn_experts_route_back(const struct wn_exec *exec, const struct wn_experts *a, const double *dw, void *dlogits) {
  if (exec->dtype == WN_F64)
    experts_route_back_f64(exec, a, dw, dlogits);
  else
    experts_route_back_f32(exec, a, dw, dlogits);
}

#else

static void NAME(experts_route_row)(void *args, int64_t m) {
  const struct wn_experts *a = args;
  REAL *weight = a->weight; /* [M,top] */
  REAL *p = (REAL *)a->prob + m * a->E;
  double most = -INFINITY, sum = 0, taken = 0;
  for (int64_t e = 0; e < a->E; e++) most = fmax(most, (double)p[e]);
  for (int64_t e = 0; e < a->E; e++) sum += exp((double)p[e] - most);
  for (int64_t e = 0; e < a->E; e++) p[e] = (REAL)(exp((double)p[e] - most) / sum);
  for (int64_t k = 0; k < a->top; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < a->E; e++) {
      bool free = true;
      for (int64_t j = 0; j < k; j++) free = free && a->chosen[m * a->top + j] != e;
      if (free && (best < 0 || p[e] > p[best])) best = e;
    }
    a->chosen[m * a->top + k] = (int32_t)best;
    taken += (double)p[best];
  }
  for (int64_t k = 0; k < a->top; k++) {
    const double w = (double)p[a->chosen[m * a->top + k]];
    weight[m * a->top + k] = (REAL)(a->normalize ? w / taken : w);
  }
}

/* Replaces the logits in prob by probabilities, chooses experts and their weights, and computes the balance. */
static void NAME(experts_route)(const struct wn_exec *exec, const struct wn_experts *a) {
  const REAL *prob = a->prob; /* [M,E] */
  wn_parallel_for(a->M * a->E < 4096 ? 1 : exec->threads, a->M, NAME(experts_route_row), a);
  if (!a->balance) return;
  double total = 0, rows = 0;
  for (int64_t m = 0; m < a->M; m++) rows += wn_experts_counts(a, m);
  for (int64_t e = 0; e < a->E && rows > 0; e++) {
    double share = 0, mean = 0;
    for (int64_t m = 0; m < a->M; m++) {
      if (!wn_experts_counts(a, m)) continue;
      mean += (double)prob[m * a->E + e];
      for (int64_t k = 0; k < a->top; k++) share += a->chosen[m * a->top + k] == e;
    }
    total += share / rows * (mean / rows);
  }
  *a->balance = (double)a->E * total;
}

/* dw [M,top]: gradients of the weights; out [M,E]: of the logits. */
struct NAME(route_back) {
  const struct wn_experts *a;
  const double *dw;
  REAL *out;
};
static void NAME(experts_route_back_row)(void *args, int64_t m) {
  const struct NAME(route_back) *x = args;
  const struct wn_experts *a = x->a;
  const REAL *p = (const REAL *)a->prob + m * a->E, *w = (const REAL *)a->weight + m * a->top;
  const int32_t *chosen = a->chosen + m * a->top;
  REAL *d = x->out + m * a->E;
  double taken = 0, mean = 0, all = 0;
  for (int64_t k = 0; k < a->top; k++) taken += (double)p[chosen[k]], mean += (double)w[k] * x->dw[m * a->top + k];
  for (int64_t k = 0; k < a->top; k++) {
    const double of_k = x->dw[m * a->top + k];
    d[chosen[k]] = (REAL)((double)d[chosen[k]] + (a->normalize ? (of_k - mean) / taken : of_k));
  }
  for (int64_t e = 0; e < a->E; e++) all += (double)p[e] * (double)d[e];
  for (int64_t e = 0; e < a->E; e++) d[e] = (REAL)((double)p[e] * ((double)d[e] - all));
}

static void NAME(experts_route_back)(const struct wn_exec *exec, const struct wn_experts *a, const double *dw,
                                     void *dlogits) {
  REAL *out = dlogits; /* [M,E] */
  double rows = 0;
  for (int64_t m = 0; m < a->M; m++) rows += wn_experts_counts(a, m);
  for (int64_t e = 0; e < a->E; e++) { /* the balance's gradient by p_e, kept in dlogits */
    double share = 0;
    for (int64_t i = 0; i < a->M * a->top && a->balance_scale != 0; i++)
      share += a->chosen[i] == e && wn_experts_counts(a, i / a->top);
    const double each = rows > 0 ? a->balance_scale * (double)a->E * share / (rows * rows) : 0;
    for (int64_t m = 0; m < a->M; m++) out[m * a->E + e] = (REAL)(wn_experts_counts(a, m) ? each : 0);
  }
  wn_parallel_for(a->M * a->E < 4096 ? 1 : exec->threads, a->M, NAME(experts_route_back_row),
                  &(struct NAME(route_back)){a, dw, out});
}

static double NAME(experts_dot)(const void *dense, const struct wn_packed *p, int64_t K, int64_t n, const REAL *x) {
  double sum = 0, w[WN_REF_BLOCKS];
  for (int64_t k0 = 0; k0 < K; k0 += WN_REF_BLOCKS) {
    const int64_t count = wn_ref_min(WN_REF_BLOCKS, K - k0);
    experts_weights(dense, REAL_IS_DOUBLE ? WN_F64 : WN_F32, p, K, n, k0, count, w);
    for (int64_t k = 0; k < count; k++) sum += w[k] * (double)x[k0 + k];
  }
  return sum;
}

/* sum[K] += scale * row n. */
static void NAME(experts_add_row)(const void *dense, const struct wn_packed *p, int64_t K, int64_t n, double scale,
                                  double *sum) {
  double w[WN_REF_BLOCKS];
  for (int64_t k0 = 0; k0 < K; k0 += WN_REF_BLOCKS) {
    const int64_t count = wn_ref_min(WN_REF_BLOCKS, K - k0);
    experts_weights(dense, REAL_IS_DOUBLE ? WN_F64 : WN_F32, p, K, n, k0, count, w);
    for (int64_t k = 0; k < count; k++) sum[k0 + k] += scale * w[k];
  }
}

/* h = silu(g) u of one row; `in` has its g and u. */
static void NAME(experts_hidden)(const REAL *in, int64_t F, double *h) {
  for (int64_t f = 0; f < F; f++) h[f] = (double)in[f] / (1 + exp(-(double)in[f])) * (double)in[F + f];
}

/* y[C] += factor e(x). in: saves g and u for backward. */
static void NAME(expert_forward)(const struct wn_expert *e, int64_t C, int64_t F, const REAL *x, double factor,
                                 REAL *in, double *h, double *y) {
  for (int64_t f = 0; f < 2 * F; f++) in[f] = (REAL)NAME(experts_dot)(e->in, e->packed_in, C, f, x);
  NAME(experts_hidden)(in, F, h);
  double w[WN_REF_BLOCKS];
  for (int64_t c = 0; c < C; c++) {
    double sum = 0;
    for (int64_t f0 = 0; f0 < F; f0 += WN_REF_BLOCKS) {
      const int64_t count = wn_ref_min(WN_REF_BLOCKS, F - f0);
      experts_weights(e->out, REAL_IS_DOUBLE ? WN_F64 : WN_F32, e->packed_out, F, c, f0, count, w);
      for (int64_t f = 0; f < count; f++) sum += w[f] * h[f0 + f];
    }
    y[c] += factor * sum;
  }
}

static void NAME(experts_logits_row)(void *args, int64_t m) {
  const struct wn_experts *a = args;
  for (int64_t e = 0; e < a->E; e++)
    ((REAL *)a->prob)[m * a->E + e] = (REAL)NAME(experts_dot)(a->router, NULL, a->C, e, (const REAL *)a->x + m * a->C);
}

static void NAME(experts_row)(void *call, int64_t m) {
  const struct wn_experts *a = ((const struct wn_call *)call)->a;
  REAL *y = a->y, *in = a->in, *weight = a->weight; /* [M,C], [M*top,2F], [M,top] */
  REAL *shared_in = a->shared_in, *factor = a->shared_factor, *shared_out = a->shared_out; /* [M,2S], [M], [M,C] */
  double *h = (double *)((const struct wn_call *)call)->exec->scratch + (size_t)wn_hand() * experts_doubles(a);
  double *sum = h + (a->F > a->S ? a->F : a->S);
  const REAL *row = (const REAL *)a->x + m * a->C;
  for (int64_t c = 0; c < a->C; c++) sum[c] = 0;
  if (a->S > 0) {
    NAME(expert_forward)(&a->shared, a->C, a->S, row, 1, shared_in + m * 2 * a->S, h, sum);
    const double z = a->shared_gate ? NAME(experts_dot)(a->shared_gate, NULL, a->C, 0, row) : 0;
    const double v = a->shared_gate ? 1 / (1 + exp(-z)) : 1;
    factor[m] = (REAL)v;
    for (int64_t c = 0; c < a->C; c++) shared_out[m * a->C + c] = (REAL)sum[c], sum[c] *= v;
  }
  for (int64_t k = 0; k < a->top; k++) {
    const int64_t i = m * a->top + k;
    NAME(expert_forward)
    (&a->expert[a->chosen[i]], a->C, a->F, row, (double)weight[i], in + a->place[i] * 2 * a->F, h, sum);
  }
  for (int64_t c = 0; c < a->C; c++) y[m * a->C + c] = (REAL)sum[c];
}

static wn_status NAME(experts_forward)(const struct wn_exec *exec, const struct wn_experts *a) {
  wn_parallel_for(exec->threads, a->M, NAME(experts_logits_row), a);
  wn_experts_route(exec, a, NULL);
  wn_parallel_for(exec->threads, a->M, NAME(experts_row), &(struct wn_call){exec, a});
  return WN_OK;
}

/* d_out += factor dy h^T for one expert of a row. */
static void NAME(expert_back_out)(const struct wn_expert *e, int64_t C, int64_t F, const REAL *in, double factor,
                                  const REAL *dy, double *h) {
  REAL *d = e->d_out; /* [C,F] */
  if (!d) return;
  NAME(experts_hidden)(in, F, h);
  for (int64_t c = 0; c < C; c++)
    for (int64_t f = 0; f < F; f++) d[c * F + f] = (REAL)((double)d[c * F + f] + factor * (double)dy[c] * h[f]);
}

/* Replaces `in` by its gradient and adds the expert's gradient to dx; returns out^T dy . h, the gradient of the
 * factor. */
static double NAME(expert_back)(const struct wn_expert *e, int64_t C, int64_t F, REAL *in, double factor,
                                const REAL *dy, double *t, double *dx) {
  double of_factor = 0;
  for (int64_t f = 0; f < F; f++) t[f] = 0;
  for (int64_t c = 0; c < C; c++) NAME(experts_add_row)(e->out, e->packed_out, F, c, (double)dy[c], t);
  for (int64_t f = 0; f < F; f++) {
    const double g = (double)in[f], u = (double)in[F + f], s = 1 / (1 + exp(-g)), d = factor * t[f];
    of_factor += t[f] * g * s * u;
    in[f] = (REAL)(d * u * s * (1 + g * (1 - s)));
    in[F + f] = (REAL)(d * g * s);
  }
  for (int64_t f = 0; f < 2 * F; f++) NAME(experts_add_row)(e->in, e->packed_in, C, f, (double)in[f], dx);
  return of_factor;
}

static void NAME(expert_back_in)(const struct wn_expert *e, int64_t C, int64_t F, const REAL *in, const REAL *x) {
  REAL *d = e->d_in; /* [2F,C] */
  for (int64_t f = 0; d && f < 2 * F; f++)
    for (int64_t c = 0; c < C; c++) d[f * C + c] = (REAL)((double)d[f * C + c] + (double)in[f] * (double)x[c]);
}

/* One row after the other: gradients are summed over rows in order. */
static wn_status NAME(experts_backward)(const struct wn_exec *exec, const struct wn_experts *a) {
  const REAL *x = a->x, *dy = a->dy, *weight = a->weight, *factor = a->shared_factor, *shared_out = a->shared_out;
  REAL *dx = a->dx, *in = a->in, *shared_in = a->shared_in, *d_router = a->d_router, *d_gate = a->d_shared_gate;
  const int64_t C = a->C, most = a->F > a->S ? a->F : a->S;
  double *h = exec->scratch, *sum = h + most, *dw = sum + C; /* [F or S], [C], [M,top] */
  REAL *dlogits = (REAL *)(void *)(dw + a->M * a->top);      /* [M,E] */
  for (int64_t m = 0; m < a->M; m++) {
    const REAL *row = x + m * C, *d_row = dy + m * C;
    double z = 0;
    for (int64_t c = 0; c < C; c++) sum[c] = 0;
    if (a->S > 0) {
      REAL *at = shared_in + m * 2 * a->S;
      NAME(expert_back_out)(&a->shared, C, a->S, at, (double)factor[m], d_row, h);
      NAME(expert_back)(&a->shared, C, a->S, at, (double)factor[m], d_row, h, sum);
      NAME(expert_back_in)(&a->shared, C, a->S, at, row);
      for (int64_t c = 0; c < C; c++) z += (double)d_row[c] * (double)shared_out[m * C + c];
      z *= (double)factor[m] * (1 - (double)factor[m]);
      if (a->shared_gate) NAME(experts_add_row)(a->shared_gate, NULL, C, 0, z, sum);
      for (int64_t c = 0; a->shared_gate && d_gate && c < C; c++)
        d_gate[c] = (REAL)((double)d_gate[c] + z * (double)row[c]);
    }
    for (int64_t k = 0; k < a->top; k++) {
      const int64_t i = m * a->top + k;
      const struct wn_expert *e = &a->expert[a->chosen[i]];
      REAL *at = in + a->place[i] * 2 * a->F;
      NAME(expert_back_out)(e, C, a->F, at, (double)weight[i], d_row, h);
      dw[i] = NAME(expert_back)(e, C, a->F, at, (double)weight[i], d_row, h, sum);
      NAME(expert_back_in)(e, C, a->F, at, row);
    }
    for (int64_t c = 0; c < C; c++) dx[m * C + c] = (REAL)((a->accumulate_dx ? (double)dx[m * C + c] : 0) + sum[c]);
  }
  wn_experts_route_back(exec, a, dw, dlogits);
  for (int64_t m = 0; m < a->M; m++) {
    for (int64_t c = 0; c < C; c++) sum[c] = (double)dx[m * C + c];
    for (int64_t e = 0; e < a->E; e++) {
      const double d = (double)dlogits[m * a->E + e];
      NAME(experts_add_row)(a->router, NULL, C, e, d, sum);
      for (int64_t c = 0; d_router && c < C; c++)
        d_router[e * C + c] = (REAL)((double)d_router[e * C + c] + d * (double)x[m * C + c]);
    }
    for (int64_t c = 0; c < C; c++) dx[m * C + c] = (REAL)sum[c];
  }
  return WN_OK;
}
#endif
