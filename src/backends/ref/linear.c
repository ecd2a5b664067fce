/* y = x w^T + b, and its gradients dx = dy w, dw += dy^T x, db += column sums of dy. 2MNK operations each. */
#ifndef REAL
#include "backends/ref/ref.h"
#include "io/gguf_types.h"
#define REAL_FILE "backends/ref/linear.c"
#include "backends/ref/twice.h"
/* Rows of y, or with packed weights columns. */
static void linear_row(void *call, int64_t i) {
  const struct wn_linear *a = ((const struct wn_call *)call)->a;
  if (((const struct wn_call *)call)->exec->dtype == WN_F64)
    a->packed ? linear_packed_f64(a, i) : linear_row_f64(a, i);
  else
    a->packed ? linear_packed_f32(a, i) : linear_row_f32(a, i);
}
wn_status wn_ref_linear_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  if (exec->precision == WN_BF16) return wn_ref_linear_bf16_forward(exec, a);
  wn_parallel_for(exec->threads, a->packed ? a->N : a->M, linear_row, &(struct wn_call){exec, a});
  return WN_OK;
}
static void linear_hand(void *call) {
  const struct wn_linear *a = ((const struct wn_call *)call)->a;
  ((const struct wn_call *)call)->exec->dtype == WN_F64 ? linear_backward_f64(a) : linear_backward_f32(a);
}
wn_status wn_ref_linear_backward(const struct wn_exec *exec, const struct wn_linear *a) {
  if (exec->precision == WN_BF16) return wn_ref_linear_bf16_backward(exec, a);
  wn_parallel(exec->threads, linear_hand, &(struct wn_call){exec, a});
  return WN_OK;
}
#else

/* Rows of quantised weights are decoded in pieces, each used for ROWS rows of x. This is exact: the weights are the
 * floats that the blocks encode. */
enum { NAME(ROWS) = 16 };
static void NAME(linear_packed)(const struct wn_linear *a, int64_t n) {
  const REAL *x = a->x, *b = a->b; /* [M,K], [N] */
  REAL *y = a->y;                  /* [M,N] */
  wn_gguf_type type;
  const char *row = wn_packed_row(a->packed, a->K, n, &type);
  float w[WN_REF_BLOCKS];
  for (int64_t m0 = 0; m0 < a->M; m0 += NAME(ROWS)) {
    const int64_t rows = wn_ref_min(NAME(ROWS), a->M - m0);
    double sum[NAME(ROWS)] = {0};
    for (int64_t k0 = 0; k0 < a->K; k0 += WN_REF_BLOCKS) {
      const int64_t count = wn_ref_min(WN_REF_BLOCKS, a->K - k0);
      wn_gguf_decode(type, row, k0, count, w);
      for (int64_t m = 0; m < rows; m++) {
        const REAL *at = x + (m0 + m) * a->ldx + k0;
        double s = sum[m];
#pragma omp simd reduction(+ : s)
        for (int64_t k = 0; k < count; k++) s += (double)at[k] * (double)w[k];
        sum[m] = s;
      }
    }
    for (int64_t m = 0; m < rows; m++) {
      REAL *to = y + (m0 + m) * a->ldy + n;
      if (b) sum[m] += (double)b[n];
      *to = (REAL)(a->accumulate ? (double)*to + sum[m] : sum[m]);
    }
  }
}

/* A hand's columns of dx: quantised weights have no gradient. */
static void NAME(linear_packed_dx)(const struct wn_linear *a) {
  const REAL *dy = a->dy; /* [M,N] */
  REAL *dx = a->dx;       /* [M,K] */
  for (struct wn_share i = wn_share((a->K + WN_REF_BLOCKS - 1) / WN_REF_BLOCKS); i.at < i.end; i.at++) {
    const int64_t k0 = i.at * WN_REF_BLOCKS, count = wn_ref_min(WN_REF_BLOCKS, a->K - k0);
    float w[WN_REF_BLOCKS];
    for (int64_t m0 = 0; m0 < a->M; m0 += NAME(ROWS)) {
      const int64_t rows = wn_ref_min(NAME(ROWS), a->M - m0);
      double sum[NAME(ROWS)][WN_REF_BLOCKS] = {{0}};
      for (int64_t n = 0; n < a->N; n++) {
        wn_gguf_type type;
        const char *row = wn_packed_row(a->packed, a->K, n, &type);
        wn_gguf_decode(type, row, k0, count, w);
        for (int64_t m = 0; m < rows; m++) {
          const double g = (double)dy[(m0 + m) * a->lddy + n];
          for (int64_t k = 0; k < count; k++) sum[m][k] += g * (double)w[k];
        }
      }
      for (int64_t m = 0; m < rows; m++) {
        REAL *to = dx + (m0 + m) * a->lddx + k0;
        for (int64_t k = 0; k < count; k++) to[k] = (REAL)(a->accumulate_dx ? (double)to[k] + sum[m][k] : sum[m][k]);
      }
    }
  }
}

static void NAME(linear_row)(const struct wn_linear *a, int64_t m) {
  const REAL *x = a->x, *w = a->w, *b = a->b; /* [M,K], [N,K], [N] */
  REAL *y = a->y;                             /* [M,N] */
  for (int64_t n = 0; n < a->N; n++) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < a->K; k++) sum += (double)x[m * a->ldx + k] * (double)w[n * a->K + k];
    if (b) sum += (double)b[n];
    if (a->accumulate) sum += (double)y[m * a->ldy + n];
    y[m * a->ldy + n] = (REAL)sum;
  }
}

/* A hand's rows of dx, of dw and of db. */
static void NAME(linear_backward)(const struct wn_linear *a) {
  const REAL *x = a->x, *w = a->w, *dy = a->dy; /* [M,K], [N,K], [M,N] */
  REAL *dx = a->dx, *dw = a->dw, *db = a->db;   /* [M,K], [N,K], [N] */
  if (dx && a->packed) NAME(linear_packed_dx)(a);
  for (struct wn_share m = wn_share(dx && !a->packed ? a->M : 0); m.at < m.end; m.at++) {
    for (int64_t k0 = 0; k0 < a->K; k0 += WN_REF_BLOCK) {
      double sum[WN_REF_BLOCK] = {0};
      const int64_t count = wn_ref_min(WN_REF_BLOCK, a->K - k0);
      for (int64_t n = 0; n < a->N; n++) {
        const double g = (double)dy[m.at * a->lddy + n];
        for (int64_t k = 0; k < count; k++) sum[k] += g * (double)w[n * a->K + k0 + k];
      }
      REAL *to = dx + m.at * a->lddx + k0;
      for (int64_t k = 0; k < count; k++) to[k] = (REAL)(a->accumulate_dx ? (double)to[k] + sum[k] : sum[k]);
    }
  }
  for (struct wn_share n = wn_share(dw ? a->N : 0); n.at < n.end; n.at++) {
    for (int64_t k0 = 0; k0 < a->K; k0 += WN_REF_BLOCK) {
      double sum[WN_REF_BLOCK] = {0};
      const int64_t count = wn_ref_min(WN_REF_BLOCK, a->K - k0);
      for (int64_t m = 0; m < a->M; m++) {
        const double g = (double)dy[m * a->lddy + n.at];
        for (int64_t k = 0; k < count; k++) sum[k] += g * (double)x[m * a->ldx + k0 + k];
      }
      REAL *to = dw + n.at * a->K + k0;
      for (int64_t k = 0; k < count; k++) to[k] = (REAL)(a->dw_fresh ? sum[k] : (double)to[k] + sum[k]);
    }
  }
  for (struct wn_share n = wn_share(db ? a->N : 0); n.at < n.end; n.at++) {
    double sum = (double)db[n.at];
    for (int64_t m = 0; m < a->M; m++) sum += (double)dy[m * a->lddy + n.at];
    db[n.at] = (REAL)sum;
  }
}
#endif
