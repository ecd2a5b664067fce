/* Residual addition, soft-capping, scaling and the sum of squares: one pass over n values each. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/elementwise.c"
#include "backends/ref/twice.h"
WN_REF_ROWS(add_forward, struct wn_add, a->n, 1)
WN_REF_ROWS(softcap_forward, struct wn_softcap, a->n, 1)
WN_REF_ROWS(scale_forward, struct wn_scale, a->n, 1)
WN_REF_SLOT(sumsq_forward, struct wn_sumsq)
#else

static void NAME(add_forward)(const struct wn_add *a, int64_t from, int64_t to) {
  const REAL *x = a->x, *z = a->z; /* [n] */
  REAL *y = a->y;                  /* [n] */
  for (int64_t i = from; i < to; i++) y[i] = x[i] + z[i];
}

static void NAME(softcap_forward)(const struct wn_softcap *a, int64_t from, int64_t to) {
  REAL *x = a->x; /* [n] */
  for (int64_t i = from; i < to; i++) x[i] = (REAL)(a->cap * tanh((double)x[i] / a->cap));
}

static void NAME(scale_forward)(const struct wn_scale *a, int64_t from, int64_t to) {
  REAL *x = a->x; /* [n] */
  for (int64_t i = from; i < to; i++) x[i] = (REAL)(a->factor * (double)x[i]);
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
