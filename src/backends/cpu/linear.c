/* y = x w^T + b and its gradients through oneDNN's sgemm (row-major). 2MNK operations each. */
#include <dnnl.h>
#include <omp.h>
#include <string.h>
#include "backends/cpu/cpu.h"

/* c[M,N] = op(a) op(b) + beta c, K summed over. */
static wn_status linear_product(const struct wn_exec *exec, char ta, char tb, int64_t M, int64_t N, int64_t K,
                                const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                                int64_t ldc) {
  /* oneDNN takes its thread count from the runtime's setting for the calling thread. */
  const int before = omp_get_max_threads();
  if (before != exec->threads) omp_set_num_threads(exec->threads);
  const dnnl_status_t status = dnnl_sgemm(ta, tb, M, N, K, 1.0f, a, lda, b, ldb, beta, c, ldc);
  if (before != exec->threads) omp_set_num_threads(before);
  if (status == dnnl_success) return WN_OK;
  return wn_fail(exec->ctx, status == dnnl_out_of_memory ? WN_ERR_MEMORY : WN_ERR_UNSUPPORTED,
                 "linear: oneDNN's sgemm refused a product of %lld x %lld x %lld (status %d)", (long long)M,
                 (long long)N, (long long)K, (int)status);
}

wn_status wn_cpu_linear_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  const float *b = a->b; /* [N] */
  float *y = a->y;       /* [M,N] */
  if (a->M == 0) return WN_OK;
  if (b) { /* laid down first, so that the product adds to it while the tile is in registers */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t m = 0; m < a->M; m++) {
      float *row = y + m * a->ldy;
      if (a->accumulate)
        for (int64_t n = 0; n < a->N; n++) row[n] += b[n];
      else
        memcpy(row, b, (size_t)a->N * sizeof *b);
    }
  }
  return linear_product(exec, 'N', 'T', a->M, a->N, a->K, a->x, a->ldx, a->w, a->K, a->accumulate || b ? 1.0f : 0.0f, y,
                        a->ldy);
}

wn_status wn_cpu_linear_backward(const struct wn_exec *exec, const struct wn_linear *a) {
  const float *dy = a->dy; /* [M,N] */
  float *db = a->db;       /* [N] */
  if (a->M == 0) return WN_OK;
  if (a->dx)
    WN_TRY(linear_product(exec, 'N', 'N', a->M, a->K, a->N, dy, a->lddy, a->w, a->K, a->accumulate_dx ? 1.0f : 0.0f,
                          a->dx, a->lddx));
  if (a->dw) WN_TRY(linear_product(exec, 'T', 'N', a->N, a->K, a->M, dy, a->lddy, a->x, a->ldx, 1.0f, a->dw, a->K));
  if (db) { /* each thread has its own columns: the order of the sum does not depend on the threads */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t n0 = 0; n0 < a->N; n0 += 64) {
      double sum[64] = {0};
      const int64_t count = a->N - n0 < 64 ? a->N - n0 : 64;
      for (int64_t m = 0; m < a->M; m++)
        for (int64_t n = 0; n < count; n++) sum[n] += (double)dy[m * a->lddy + n0 + n];
      for (int64_t n = 0; n < count; n++) db[n0 + n] = (float)((double)db[n0 + n] + sum[n]);
    }
  }
  return WN_OK;
}
