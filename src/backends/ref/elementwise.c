/* Residual addition, soft-capping, scaling and the sum of squares: one pass over n values each. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/elementwise.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(add_forward, struct wn_add)
WN_REF_SLOT(softcap_forward, struct wn_softcap)
WN_REF_SLOT(scale_forward, struct wn_scale)
WN_REF_SLOT(sumsq_forward, struct wn_sumsq)
#else

static wn_status NAME(add_forward)(const struct wn_exec *exec, const struct wn_add *a) {
  const REAL *x = a->x, *z = a->z; /* [n] */
  REAL *y = a->y;                  /* [n] */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t i = 0; i < a->n; i++) y[i] = x[i] + z[i];
  return WN_OK;
}

static wn_status NAME(softcap_forward)(const struct wn_exec *exec, const struct wn_softcap *a) {
  REAL *x = a->x; /* [n] */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)(a->cap * tanh((double)x[i] / a->cap));
  return WN_OK;
}

static wn_status NAME(scale_forward)(const struct wn_exec *exec, const struct wn_scale *a) {
  REAL *x = a->x; /* [n] */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t i = 0; i < a->n; i++) x[i] = (REAL)(a->factor * (double)x[i]);
  return WN_OK;
}

static wn_status NAME(sumsq_forward)(const struct wn_exec *exec, const struct wn_sumsq *a) {
  (void)exec; /* one thread: the order must depend only on n */
  const REAL *x = a->x;
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < a->n; i++) sum += (double)x[i] * (double)x[i];
  *a->out = sum;
  return WN_OK;
}
#endif
