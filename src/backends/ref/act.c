/* Activations.
 *   SWIGLU  y = g sigmoid(g) u, x = [g, u] in each row (Shazeer 2020)
 *   GELU    y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016)
 *   GEGLU   y = GELU(g) u, x = [g, u] (Shazeer 2020)
 *   GELU_ERF y = x Phi(x), Phi the normal distribution's
 *   RELU    y = max(x, 0), derivative 0 at 0                                        */
#ifndef REAL
#include "backends/ref/ref.h"
#define GELU_SCALE 0.79788456080286535588 /* sqrt(2/pi) */
#define GELU_CUBE 0.044715
#define REAL_FILE "backends/ref/act.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(act_forward, struct wn_act)
WN_REF_SLOT(act_backward, struct wn_act)
#else

static double NAME(gelu)(double v) {
  return 0.5 * v * (1.0 + tanh(GELU_SCALE * (v + GELU_CUBE * v * v * v)));
}
static double NAME(gelu_slope)(double v) {
  const double t = tanh(GELU_SCALE * (v + GELU_CUBE * v * v * v));
  const double slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * v * v);
  return 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope;
}

static wn_status NAME(act_forward)(const struct wn_exec *exec, const struct wn_act *a) {
  const REAL *x = a->x; /* [M,2F] or [M,F] */
  REAL *y = a->y;       /* [M,F] */
  const int64_t F = a->F;
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
  for (int64_t m = 0; m < a->M; m++) {
    for (int64_t f = 0; f < F; f++) {
      if (a->kind == WN_ACT_SWIGLU) {
        const double g = (double)x[m * 2 * F + f], u = (double)x[m * 2 * F + F + f];
        y[m * F + f] = (REAL)(g / (1.0 + exp(-g)) * u);
      } else if (a->kind == WN_ACT_GEGLU) {
        y[m * F + f] = (REAL)(NAME(gelu)((double)x[m * 2 * F + f]) * (double)x[m * 2 * F + F + f]);
      } else {
        const double v = (double)x[m * F + f];
        if (a->kind == WN_ACT_GELU)
          y[m * F + f] = (REAL)NAME(gelu)(v);
        else if (a->kind == WN_ACT_GELU_ERF)
          y[m * F + f] = (REAL)(0.5 * v * erfc(-v * M_SQRT1_2));
        else
          y[m * F + f] = (REAL)(v > 0 ? v : 0.0);
      }
    }
  }
  return WN_OK;
}

static wn_status NAME(act_backward)(const struct wn_exec *exec, const struct wn_act *a) {
  const REAL *x = a->x, *dy = a->dy; /* [M,2F] or [M,F]; [M,F] */
  REAL *dx = a->dx;                  /* as x, may be x */
  const int64_t F = a->F;
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
  for (int64_t m = 0; m < a->M; m++) {
    for (int64_t f = 0; f < F; f++) {
      const double d = (double)dy[m * F + f];
      if (a->kind == WN_ACT_SWIGLU) {
        const double g = (double)x[m * 2 * F + f], u = (double)x[m * 2 * F + F + f], s = 1.0 / (1.0 + exp(-g));
        dx[m * 2 * F + f] = (REAL)(d * u * s * (1.0 + g * (1.0 - s)));
        dx[m * 2 * F + F + f] = (REAL)(d * g * s);
      } else if (a->kind == WN_ACT_GEGLU) {
        const double g = (double)x[m * 2 * F + f], u = (double)x[m * 2 * F + F + f];
        dx[m * 2 * F + f] = (REAL)(d * u * NAME(gelu_slope)(g));
        dx[m * 2 * F + F + f] = (REAL)(d * NAME(gelu)(g));
      } else {
        const double v = (double)x[m * F + f];
        if (a->kind == WN_ACT_GELU) {
          dx[m * F + f] = (REAL)(d * NAME(gelu_slope)(v));
        } else if (a->kind == WN_ACT_GELU_ERF) {
          const double density = exp(-0.5 * v * v) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
          dx[m * F + f] = (REAL)(d * (0.5 * erfc(-v * M_SQRT1_2) + v * density));
        } else {
          dx[m * F + f] = (REAL)(v > 0 ? d : 0.0);
        }
      }
    }
  }
  return WN_OK;
}
#endif
