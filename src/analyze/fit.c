/* Least squares for one curve, y = a + b f(x): QR of [1, f(x)], with f scaled to unit size first. About 12 n
 * operations. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "winnow/analyze.h"

const char *wn_fit_name(wn_fit_kind kind) {
  static const char *const names[WN_FIT_COUNT] = {"square root", "logarithmic", "linear"};
  return (int)kind >= 0 && (int)kind < WN_FIT_COUNT ? names[kind] : "unknown";
}

static double fit_curve(wn_fit_kind kind, double x) {
  return kind == WN_FIT_SQRT ? sqrt(x) : kind == WN_FIT_LOG ? log1p(x) : x;
}

double wn_fit_at(wn_fit_kind kind, const wn_fit *fit, double x) {
  WN_CHECK_OR(0, WN_ENUM(kind, WN_FIT_COUNT), WN_POINTER(fit));
  return fit->intercept + fit->slope * fit_curve(kind, x);
}

/* min |y - a - b f|: [1, f] = Q R by Gram-Schmidt, applied twice, so that Q's second column is orthogonal to the first
 * to full precision. f[n] is overwritten with that column. False: f is constant. */
static bool fit_solve(double *f, const double *y, int64_t n, double *intercept, double *slope) {
  double along[2] = {0}, square = 0, dot = 0, mean = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int64_t i = 0; i < n; i++) along[pass] += f[i] / (double)n;
    for (int64_t i = 0; i < n; i++) f[i] -= along[pass];
  }
  for (int64_t i = 0; i < n; i++) {
    square += f[i] * f[i];
    dot += f[i] * (y[i] - y[0]);
    mean += (y[i] - y[0]) / (double)n;
  }
  if (!(square > 0)) return false;
  *slope = dot / square;
  *intercept = y[0] + mean - *slope * (along[0] + along[1]);
  return true;
}

wn_status wn_fit_curve(wn_context *ctx, wn_fit_kind kind, const double *x, const double *y, int64_t n, wn_fit *out) {
  WN_CHECK_CALL(WN_ENUM(kind, WN_FIT_COUNT), WN_POINTER(x), WN_POINTER(y), WN_POINTER(out));
  memset(out, 0, sizeof *out);
  if (n < 3 || n > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: %lld points, expected at least 3", (long long)n);
  if ((int)kind < 0 || (int)kind >= WN_FIT_COUNT) return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: kind %d", (int)kind);
  double low = INFINITY, high = -INFINITY, mean = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(x[i] >= 0) || !isfinite(x[i]) || !isfinite(y[i]))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: point %lld is (%g, %g), expected finite numbers and x >= 0",
                     (long long)i, x[i], y[i]);
    low = fmin(low, x[i]), high = fmax(high, x[i]);
    mean += (y[i] - y[0]) / (double)n; /* exactly 0 if all are equal */
    scale = fmax(scale, fit_curve(kind, x[i]));
  }
  if (!(high > low)) return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: all x are equal, a curve is not determined");
  double *f, intercept = 0, slope = 0, squares = 0, spread = 0;
  WN_TRY(WN_ALLOC(ctx, "points of a fit", n, &f));
  for (int64_t i = 0; i < n; i++) f[i] = fit_curve(kind, x[i]) / scale;
  const bool determined = fit_solve(f, y, n, &intercept, &slope);
  wn_free(f);
  if (!determined) return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: all x are equal, a curve is not determined");
  *out = (wn_fit){.intercept = intercept, .slope = slope / scale, .n = n};
  for (int64_t i = 0; i < n; i++) {
    const double rest = y[i] - wn_fit_at(kind, out, x[i]), off = y[i] - y[0] - mean;
    squares += rest * rest, spread += off * off;
  }
  const double N = (double)n;
  out->mse = squares / N;
  out->r2 = spread > 0 ? 1 - squares / spread : 0;
  out->adjusted_r2 = 1 - (1 - out->r2) * (N - 1) / (N - 2);
  out->aic = N * (log(2 * 3.14159265358979323846) + log(out->mse) + 1) + 4;
  if (isfinite(out->intercept) && isfinite(out->slope) && isfinite(out->mse) && isfinite(out->r2)) return WN_OK;
  memset(out, 0, sizeof *out);
  return wn_fail(ctx, WN_ERR_ARGUMENT, "fit: the points' numbers are too large: their squares overflow");
}
