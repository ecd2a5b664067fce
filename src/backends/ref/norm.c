/* RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016) of `groups` vectors in each row.
 *   RMS:   xhat = x rstd,           rstd = 1/sqrt(mean(x^2) + eps)
 *   Layer: xhat = (x - mean) rstd,  rstd = 1/sqrt(var + eps)
 *   y = gain xhat + shift
 * Backward, with u = gain dy:  dx = rstd (u - xhat mean(u xhat) [- mean(u)]);  dgain += dy xhat;  dshift += dy. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/norm.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(norm_forward, struct wn_norm)
WN_REF_SLOT(norm_backward, struct wn_norm)
#else

static wn_status NAME(norm_forward)(const struct wn_exec *exec, const struct wn_norm *a) {
  const REAL *x = a->x, *add = a->add, *gain = a->gain, *shift = a->shift; /* [rows,G*W] twice, [W] twice */
  REAL *sum = a->sum, *y = a->y, *rstd = a->rstd, *mean = a->mean;         /* [rows,G*W] twice, [rows*G] twice */
  const int64_t W = a->width, G = a->groups;
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
  for (int64_t r = 0; r < a->rows; r++) {
    for (int64_t g = 0; g < G; g++) {
      const REAL *in = x + r * a->ldx + g * W;
      if (add) {
        const REAL *other = add + r * a->ldadd + g * W;
        REAL *to = sum + r * a->ldsum + g * W;
        for (int64_t c = 0; c < W; c++) to[c] = (REAL)((double)in[c] + (double)other[c]);
        in = to; /* the stored, rounded value: what backward will read */
      }
      double mu = 0, var = 0;
      if (a->layer) {
        for (int64_t c = 0; c < W; c++) mu += (double)in[c];
        mu /= (double)W;
      }
      for (int64_t c = 0; c < W; c++) var += ((double)in[c] - mu) * ((double)in[c] - mu);
      const double s = 1.0 / sqrt(var / (double)W + a->eps);
      REAL *to = y + r * a->ldy + g * W;
      for (int64_t c = 0; c < W; c++)
        to[c] = (REAL)((double)gain[c] * (((double)in[c] - mu) * s) + (shift ? (double)shift[c] : 0.0));
      if (rstd) rstd[r * G + g] = (REAL)s;
      if (mean && a->layer) mean[r * G + g] = (REAL)mu;
    }
  }
  return WN_OK;
}

static wn_status NAME(norm_backward)(const struct wn_exec *exec, const struct wn_norm *a) {
  const REAL *x = a->add ? a->sum : a->x, *gain = a->gain, *dy = a->dy; /* [rows,G*W], [W], [rows,G*W] */
  const REAL *rstd = a->rstd, *mean = a->mean;                          /* [rows*G] */
  REAL *dx = a->dx, *dgain = a->dgain, *dshift = a->dshift;             /* [rows,G*W], [W], [W] */
  const int64_t W = a->width, G = a->groups, ldx = a->add ? a->ldsum : a->ldx;
  /* Parameters first: dx may overwrite dy. */
  if (dgain || dshift) {
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
    for (int64_t c0 = 0; c0 < W; c0 += WN_REF_BLOCK) {
      double by_gain[WN_REF_BLOCK] = {0}, by_shift[WN_REF_BLOCK] = {0};
      const int64_t count = wn_ref_min(WN_REF_BLOCK, W - c0);
      for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t g = 0; g < G; g++) {
          const double s = (double)rstd[r * G + g], mu = a->layer ? (double)mean[r * G + g] : 0.0;
          const REAL *in = x + r * ldx + g * W + c0, *d = dy + r * a->lddy + g * W + c0;
          for (int64_t c = 0; c < count; c++) {
            by_gain[c] += (double)d[c] * (((double)in[c] - mu) * s);
            by_shift[c] += (double)d[c];
          }
        }
      }
      for (int64_t c = 0; c < count; c++) {
        if (dgain) dgain[c0 + c] = (REAL)((double)dgain[c0 + c] + by_gain[c]);
        if (dshift) dshift[c0 + c] = (REAL)((double)dshift[c0 + c] + by_shift[c]);
      }
    }
  }
  if (dx) {
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
      for (int64_t g = 0; g < G; g++) {
        const double s = (double)rstd[r * G + g], mu = a->layer ? (double)mean[r * G + g] : 0.0;
        const REAL *in = x + r * ldx + g * W, *d = dy + r * a->lddy + g * W;
        REAL *to = dx + r * a->lddx + g * W;
        double along = 0, level = 0; /* mean(u xhat), mean(u) */
        for (int64_t c = 0; c < W; c++) {
          const double u = (double)gain[c] * (double)d[c];
          along += u * (((double)in[c] - mu) * s);
          level += u;
        }
        along /= (double)W;
        level = a->layer ? level / (double)W : 0.0;
        for (int64_t c = 0; c < W; c++) {
          const double v = s * ((double)gain[c] * (double)d[c] - ((double)in[c] - mu) * s * along - level);
          to[c] = (REAL)(a->accumulate_dx ? (double)to[c] + v : v);
        }
      }
    }
  }
  return WN_OK;
}
#endif
