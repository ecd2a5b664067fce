/* y = x w^T + b, and its gradients dx = dy w, dw += dy^T x, db += column sums of dy. 2MNK operations each. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/linear.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(linear_forward, struct wn_linear)
WN_REF_SLOT(linear_backward, struct wn_linear)
#else

static wn_status NAME(linear_forward)(const struct wn_exec *exec, const struct wn_linear *a) {
  const REAL *x = a->x, *w = a->w, *b = a->b; /* [M,K], [N,K], [N] */
  REAL *y = a->y;                             /* [M,N] */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t m = 0; m < a->M; m++) {
    for (int64_t n = 0; n < a->N; n++) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < a->K; k++) sum += (double)x[m * a->ldx + k] * (double)w[n * a->K + k];
      if (b) sum += (double)b[n];
      if (a->accumulate) sum += (double)y[m * a->ldy + n];
      y[m * a->ldy + n] = (REAL)sum;
    }
  }
  return WN_OK;
}

static wn_status NAME(linear_backward)(const struct wn_exec *exec, const struct wn_linear *a) {
  const REAL *x = a->x, *w = a->w, *dy = a->dy; /* [M,K], [N,K], [M,N] */
  REAL *dx = a->dx, *dw = a->dw, *db = a->db;   /* [M,K], [N,K], [N] */
  if (dx) {
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t m = 0; m < a->M; m++) {
      for (int64_t k0 = 0; k0 < a->K; k0 += WN_REF_BLOCK) {
        double sum[WN_REF_BLOCK] = {0};
        const int64_t count = wn_ref_min(WN_REF_BLOCK, a->K - k0);
        for (int64_t n = 0; n < a->N; n++) {
          const double g = (double)dy[m * a->lddy + n];
          for (int64_t k = 0; k < count; k++) sum[k] += g * (double)w[n * a->K + k0 + k];
        }
        REAL *to = dx + m * a->lddx + k0;
        for (int64_t k = 0; k < count; k++) to[k] = (REAL)(a->accumulate_dx ? (double)to[k] + sum[k] : sum[k]);
      }
    }
  }
  if (dw) {
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t n = 0; n < a->N; n++) {
      for (int64_t k0 = 0; k0 < a->K; k0 += WN_REF_BLOCK) {
        double sum[WN_REF_BLOCK] = {0};
        const int64_t count = wn_ref_min(WN_REF_BLOCK, a->K - k0);
        for (int64_t m = 0; m < a->M; m++) {
          const double g = (double)dy[m * a->lddy + n];
          for (int64_t k = 0; k < count; k++) sum[k] += g * (double)x[m * a->ldx + k0 + k];
        }
        REAL *to = dw + n * a->K + k0;
        for (int64_t k = 0; k < count; k++) to[k] = (REAL)((double)to[k] + sum[k]);
      }
    }
  }
  if (db) {
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t n = 0; n < a->N; n++) {
      double sum = (double)db[n];
      for (int64_t m = 0; m < a->M; m++) sum += (double)dy[m * a->lddy + n];
      db[n] = (REAL)sum;
    }
  }
  return WN_OK;
}
#endif
