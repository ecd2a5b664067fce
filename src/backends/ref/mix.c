/* Element-wise operations: mix, clamp, sigmoid, silu, and type conversion. */
#ifndef REAL
#include "backends/ref/ref.h"
#include "ops/gates.h"
#include "tensor/bf16.h"
#define REAL_FILE "backends/ref/mix.c"
#include "backends/ref/twice.h"
WN_REF_ROWS(mix_forward, struct wn_mix, a->n, 4096)
WN_REF_SLOT(clamp_forward, struct wn_clamp)
WN_REF_SLOT(sigmoid_forward, struct wn_sigmoid)
WN_REF_SLOT(sigmoid_backward, struct wn_sigmoid)
WN_REF_ROWS(silu_forward, struct wn_silu, a->n, 4096)
WN_REF_ROWS(silu_backward, struct wn_silu, a->n, 4096)

wn_status wn_ref_convert_forward(const struct wn_exec *exec, const struct wn_convert *a) {
  const int threads = exec->threads;
  if (a->y_type == WN_BF16)
    wn_bf16_from_f32(threads, a->n, a->x, a->y);
  else
    wn_bf16_to_f32(threads, a->n, a->x, a->y);
  return WN_OK;
}
#else

static void NAME(mix_forward)(const struct wn_mix *a, int64_t from, int64_t to) {
  const REAL *x = a->x; /* [n] */
  REAL *y = a->y;       /* [n] */
  const double f = a->sumsq ? a->f / (sqrt(*a->sumsq) + 1e-7) : a->f, h = a->h;
  for (int64_t i = from; i < to; i++) y[i] = (REAL)(h != 0 ? f * (double)x[i] + h * (double)y[i] : f * (double)x[i]);
}

static wn_status NAME(clamp_forward)(const struct wn_exec *exec, const struct wn_clamp *a) {
  (void)exec;
  REAL *x = a->x; /* [n] */
  for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)fmin(fmax((double)x[i], a->low), a->high);
  return WN_OK;
}

static wn_status NAME(sigmoid_forward)(const struct wn_exec *exec, const struct wn_sigmoid *a) {
  (void)exec;
  REAL *x = a->x; /* [n] */
  if (a->kind == WN_SIGMOID)
    for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)(1 / (1 + exp(-(double)x[i])));
  else if (a->kind == WN_SIGMOID_LOG)
    for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)wn_gate_log((double)x[i], a->floor, REAL_IS_DOUBLE);
  else
    for (int64_t w = 0; w < a->n / a->T; w++) { /* a column of a sequence */
      const struct wn_stride s = wn_sums_stride(a);
      REAL *at = x + w / a->W * s.b + w % a->W * s.h;
      double sum = a->from ? a->from[w] : 0;
      for (int64_t t = 0; t < a->T; t++) at[t * s.t] = (REAL)(sum += (double)at[t * s.t]);
      if (a->to) a->to[w] = sum;
    }
  return WN_OK;
}

static wn_status NAME(sigmoid_backward)(const struct wn_exec *exec, const struct wn_sigmoid *a) {
  (void)exec;
  const REAL *x = a->x; /* [n] */
  REAL *dx = a->dx;     /* [n] */
  const REAL least = (REAL)wn_gate_rounded(log(a->floor), REAL_IS_DOUBLE);
  if (a->kind == WN_SIGMOID)
    for (int64_t i = 0; i < a->n; i++) dx[i] *= x[i] * (1 - x[i]);
  else if (a->kind == WN_SIGMOID_LOG)
    for (int64_t i = 0; i < a->n; i++) dx[i] = x[i] <= least ? 0 : (REAL)((double)dx[i] * -expm1((double)x[i]));
  else
    for (int64_t w = 0; w < a->n / a->T; w++) {
      const int64_t first = w / a->W * a->T * a->W + w % a->W;
      double sum = 0;
      for (int64_t t = a->T - 1; t >= 0; t--) {
        const int64_t i = first + t * a->W;
        sum += (double)dx[i];
        dx[i] = (REAL)(sum * -expm1((double)x[i] - (t > 0 ? (double)x[i - a->W] : 0)));
      }
    }
  return WN_OK;
}

static void NAME(silu_forward)(const struct wn_silu *a, int64_t from, int64_t to) {
  const REAL *x = a->x; /* [n] */
  REAL *y = a->y;       /* [n] */
  for (int64_t i = from; i < to; i++) y[i] = (REAL)((double)x[i] / (1 + exp(-(double)x[i])));
}

static void NAME(silu_backward)(const struct wn_silu *a, int64_t from, int64_t to) {
  const REAL *x = a->x, *dy = a->dy; /* [n] */
  REAL *dx = a->dx;                  /* [n] */
  for (int64_t i = from; i < to; i++) {
    const double s = 1 / (1 + exp(-(double)x[i]));
    dx[i] = (REAL)((double)dy[i] * s * (1 + (double)x[i] * (1 - s)));
  }
}
#endif
