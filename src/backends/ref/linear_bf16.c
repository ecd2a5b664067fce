/* linear with precision WN_BF16: the factors x, w and dy are first rounded to bf16. Sums are in double; results have
 * their array's type. db sums the unrounded dy. */
#include "backends/ref/ref.h"

/* Element i of an array of that type, rounded to bf16. */
static double linear_factor(const void *x, int64_t i, wn_dtype type) {
  return (double)wn_bf16_value(wn_bf16_round((float)wn_number(x, i, type)));
}

wn_status wn_ref_linear_bf16_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  const wn_dtype tx = wn_array_type(a->x_type, exec->dtype), ty = wn_array_type(a->y_type, exec->dtype);
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t m = 0; m < a->M; m++) {
    for (int64_t n = 0; n < a->N; n++) {
      double sum = a->b ? wn_number(a->b, n, exec->dtype) : 0;
      for (int64_t k = 0; k < a->K; k++)
        sum += linear_factor(a->x, m * a->ldx + k, tx) * linear_factor(a->w, n * a->K + k, exec->dtype);
      if (a->accumulate) sum += wn_number(a->y, m * a->ldy + n, ty);
      wn_number_set(a->y, m * a->ldy + n, ty, sum);
    }
  }
  return WN_OK;
}

wn_status wn_ref_linear_bf16_backward(const struct wn_exec *exec, const struct wn_linear *a) {
  const wn_dtype t = exec->dtype, tx = wn_array_type(a->x_type, t), tdy = wn_array_type(a->dy_type, t),
                 tdx = wn_array_type(a->dx_type, t);
#pragma omp parallel num_threads(exec->threads)
  {
#pragma omp for schedule(static)
    for (int64_t m = 0; m < (a->dx ? a->M : 0); m++) {
      for (int64_t k = 0; k < a->K; k++) {
        double sum = a->accumulate_dx ? wn_number(a->dx, m * a->lddx + k, tdx) : 0;
        for (int64_t n = 0; n < a->N; n++)
          sum += linear_factor(a->dy, m * a->lddy + n, tdy) * linear_factor(a->w, n * a->K + k, t);
        wn_number_set(a->dx, m * a->lddx + k, tdx, sum);
      }
    }
#pragma omp for schedule(static)
    for (int64_t n = 0; n < a->N; n++) {
      for (int64_t k = 0; k < (a->dw ? a->K : 0); k++) {
        double sum = a->dw_fresh ? 0 : wn_number(a->dw, n * a->K + k, t);
        for (int64_t m = 0; m < a->M; m++)
          sum += linear_factor(a->dy, m * a->lddy + n, tdy) * linear_factor(a->x, m * a->ldx + k, tx);
        wn_number_set(a->dw, n * a->K + k, t, sum);
      }
      if (!a->db) continue;
      double sum = wn_number(a->db, n, t);
      for (int64_t m = 0; m < a->M; m++) sum += wn_number(a->dy, m * a->lddy + n, tdy);
      wn_number_set(a->db, n, t, sum);
    }
  }
  return WN_OK;
}
