/* RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016) of `groups` vectors in each row.
 *   RMS:   xhat = x rstd,           rstd = 1/sqrt(mean(x^2) + eps)
 *   Layer: xhat = (x - mean) rstd,  rstd = 1/sqrt(var + eps)
 *   y = gain xhat + shift
 * Backward, with u = gain dy:  dx = rstd (u - xhat mean(u xhat) [- mean(u)]);  dgain += dy xhat;  dshift += dy. */
#include "backends/ref/ref.h"

static void norm_forward_rows(const struct wn_exec *exec, const struct wn_norm *a, int64_t from, int64_t to) {
  const wn_dtype t = exec->dtype, ty = wn_array_type(a->y_type, t);
  const wn_dtype tin = a->add ? t : wn_array_type(a->x_type, t); /* type of the norm's input: sum or x [rows,G*W] */
  const int64_t W = a->width, G = a->groups, ldin = a->add ? a->ldsum : a->ldx;
  const void *in = a->add ? a->sum : a->x;
  for (int64_t r = from; r < to; r++) {
    for (int64_t g = 0; g < G; g++) {
      const int64_t at = r * ldin + g * W;
      /* The norm reads the stored, rounded sum, as backward will. */
      for (int64_t c = 0; c < (a->add ? W : 0); c++)
        wn_number_set(a->sum, at + c, t,
                      wn_number(a->x, r * a->ldx + g * W + c, t) + wn_number(a->add, r * a->ldadd + g * W + c, t));
      double mu = 0, var = 0;
      if (a->layer) {
        for (int64_t c = 0; c < W; c++) mu += wn_number(in, at + c, tin);
        mu /= (double)W;
      }
      for (int64_t c = 0; c < W; c++) var += (wn_number(in, at + c, tin) - mu) * (wn_number(in, at + c, tin) - mu);
      const double s = 1.0 / sqrt(var / (double)W + a->eps);
      for (int64_t c = 0; c < W; c++)
        wn_number_set(a->y, r * a->ldy + g * W + c, ty,
                      wn_number(a->gain, c, t) * ((wn_number(in, at + c, tin) - mu) * s) +
                          (a->shift ? wn_number(a->shift, c, t) : 0.0));
      if (a->rstd) wn_number_set(a->rstd, r * G + g, t, s);
      if (a->mean && a->layer) wn_number_set(a->mean, r * G + g, t, mu);
    }
  }
}
WN_ROWS(wn_ref_norm_forward, struct wn_norm, exec->threads, a->rows, 1, norm_forward_rows(exec, a, from, to))

/* What backward reads from a call; below, xhat and dy of column c of vector (r, g). */
struct norm_look {
  const struct wn_norm *a;
  const void *in;
  int64_t ldin;
  wn_dtype t, tin, tdy;
};
static double norm_hat(const struct norm_look *k, int64_t r, int64_t g, int64_t c) {
  const int64_t G = k->a->groups, W = k->a->width;
  const double mu = k->a->layer ? wn_number(k->a->mean, r * G + g, k->t) : 0.0;
  return (wn_number(k->in, r * k->ldin + g * W + c, k->tin) - mu) * wn_number(k->a->rstd, r * G + g, k->t);
}
static double norm_dy(const struct norm_look *k, int64_t r, int64_t g, int64_t c) {
  return wn_number(k->a->dy, r * k->a->lddy + g * k->a->width + c, k->tdy);
}

static void norm_parameters(void *look, int64_t from, int64_t to) {
  const struct norm_look *k = look;
  const struct wn_norm *a = k->a;
  for (int64_t c0 = from; c0 < to; c0 += WN_REF_BLOCK) {
    double by_gain[WN_REF_BLOCK] = {0}, by_shift[WN_REF_BLOCK] = {0};
    const int64_t count = wn_ref_min(WN_REF_BLOCK, a->width - c0);
    for (int64_t r = 0; r < a->rows; r++) {
      for (int64_t g = 0; g < a->groups; g++) {
        for (int64_t c = 0; c < count; c++) {
          by_gain[c] += norm_dy(k, r, g, c0 + c) * norm_hat(k, r, g, c0 + c);
          by_shift[c] += norm_dy(k, r, g, c0 + c);
        }
      }
    }
    for (int64_t c = 0; c < count; c++) {
      if (a->dgain) wn_number_set(a->dgain, c0 + c, k->t, wn_number(a->dgain, c0 + c, k->t) + by_gain[c]);
      if (a->dshift) wn_number_set(a->dshift, c0 + c, k->t, wn_number(a->dshift, c0 + c, k->t) + by_shift[c]);
    }
  }
}

static void norm_dx_row(void *look, int64_t r) {
  const struct norm_look *k = look;
  const struct wn_norm *a = k->a;
  const wn_dtype t = k->t, tdx = wn_array_type(a->dx_type, t);
  const int64_t W = a->width, G = a->groups;
  for (int64_t g = 0; g < G; g++) {
    const double s = wn_number(a->rstd, r * G + g, t);
    double along = 0, level = 0; /* mean(u xhat), mean(u) */
    for (int64_t c = 0; c < W; c++) {
      const double u = wn_number(a->gain, c, t) * norm_dy(k, r, g, c);
      along += u * norm_hat(k, r, g, c);
      level += u;
    }
    along /= (double)W;
    level = a->layer ? level / (double)W : 0.0;
    for (int64_t c = 0; c < W; c++) {
      const int64_t at = r * a->lddx + g * W + c;
      const double u = wn_number(a->gain, c, t) * norm_dy(k, r, g, c);
      const double v = s * (u - norm_hat(k, r, g, c) * along - level);
      wn_number_set(a->dx, at, tdx, a->accumulate_dx ? wn_number(a->dx, at, tdx) + v : v);
    }
  }
}

wn_status wn_ref_norm_backward(const struct wn_exec *exec, const struct wn_norm *a) {
  const wn_dtype t = exec->dtype;
  const struct norm_look k = {.a = a,
                              .in = a->add ? a->sum : a->x,
                              .ldin = a->add ? a->ldsum : a->ldx,
                              .t = t,
                              .tin = a->add ? t : wn_array_type(a->x_type, t),
                              .tdy = wn_array_type(a->dy_type, t)};
  /* Parameters first: dx may overwrite dy. */
  if (a->dgain || a->dshift) wn_parallel_blocks(exec->threads, a->width, WN_REF_BLOCK, norm_parameters, &k);
  if (a->dx) wn_parallel_for(exec->threads, a->rows, norm_dx_row, &k);
  return WN_OK;
}
