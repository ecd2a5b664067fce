/* linear with precision WN_BF16: the factors x, w and dy are first rounded to bf16. Sums are in double; results have
 * their array's type. db sums the unrounded dy. */
#include "backends/ref/ref.h"

/* Element i of an array of that type, rounded to bf16. */
static double linear_factor(const void *x, int64_t i, wn_dtype type) {
  return (double)wn_bf16_value(wn_bf16_round((float)wn_number(x, i, type)));
}

static void linear_bf16_rows(const struct wn_exec *exec, const struct wn_linear *a, int64_t from, int64_t to) {
  const wn_dtype tx = wn_array_type(a->x_type, exec->dtype), ty = wn_array_type(a->y_type, exec->dtype);
  for (int64_t m = from; m < to; m++) {
    for (int64_t n = 0; n < a->N; n++) {
      double sum = a->b ? wn_number(a->b, n, exec->dtype) : 0;
      for (int64_t k = 0; k < a->K; k++)
        sum += linear_factor(a->x, m * a->ldx + k, tx) * linear_factor(a->w, n * a->K + k, exec->dtype);
      if (a->accumulate) sum += wn_number(a->y, m * a->ldy + n, ty);
      wn_number_set(a->y, m * a->ldy + n, ty, sum);
    }
  }
}
WN_ROWS(wn_ref_linear_bf16_forward, struct wn_linear, exec->threads, a->M, 1, linear_bf16_rows(exec, a, from, to))

static void linear_bf16_dx(const struct wn_exec *exec, const struct wn_linear *a, int64_t m) {
  const wn_dtype t = exec->dtype, tdy = wn_array_type(a->dy_type, t), tdx = wn_array_type(a->dx_type, t);
  for (int64_t k = 0; k < a->K; k++) {
    double sum = a->accumulate_dx ? wn_number(a->dx, m * a->lddx + k, tdx) : 0;
    for (int64_t n = 0; n < a->N; n++)
      sum += linear_factor(a->dy, m * a->lddy + n, tdy) * linear_factor(a->w, n * a->K + k, t);
    wn_number_set(a->dx, m * a->lddx + k, tdx, sum);
  }
}

static void linear_bf16_dw(const struct wn_exec *exec, const struct wn_linear *a, int64_t n) {
  const wn_dtype t = exec->dtype, tx = wn_array_type(a->x_type, t), tdy = wn_array_type(a->dy_type, t);
  for (int64_t k = 0; k < (a->dw ? a->K : 0); k++) {
    double sum = a->dw_fresh ? 0 : wn_number(a->dw, n * a->K + k, t);
    for (int64_t m = 0; m < a->M; m++)
      sum += linear_factor(a->dy, m * a->lddy + n, tdy) * linear_factor(a->x, m * a->ldx + k, tx);
    wn_number_set(a->dw, n * a->K + k, t, sum);
  }
  if (!a->db) return;
  double sum = wn_number(a->db, n, t);
  for (int64_t m = 0; m < a->M; m++) sum += wn_number(a->dy, m * a->lddy + n, tdy);
  wn_number_set(a->db, n, t, sum);
}

/* Rows of dx, then rows of dw with their db. */
static void linear_bf16_back(const struct wn_exec *exec, const struct wn_linear *a, int64_t from, int64_t to) {
  const int64_t M = a->dx ? a->M : 0;
  for (int64_t i = from; i < to; i++)
    if (i < M)
      linear_bf16_dx(exec, a, i);
    else
      linear_bf16_dw(exec, a, i - M);
}
WN_ROWS(wn_ref_linear_bf16_backward, struct wn_linear, exec->threads, (a->dx ? a->M : 0) + a->N, 1,
        linear_bf16_back(exec, a, from, to))
