/* Activations.
 *   SWIGLU  y = g sigmoid(g) u, x = [g, u] in each row (Shazeer 2020)
 *   GELU    y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016)
 *   GEGLU   y = GELU(g) u, x = [g, u] (Shazeer 2020)
 *   GELU_ERF y = x Phi(x), Phi the cumulative normal distribution
 *   RELU    y = max(x, 0), derivative 0 at 0
 *   RELU2   y = max(x, 0)^2 (So et al. 2021) */
#include "backends/ref/ref.h"

#define GELU_SCALE 0.79788456080286535588 /* sqrt(2/pi) */
#define GELU_CUBE 0.044715

static double act_gelu(double v) {
  return 0.5 * v * (1.0 + tanh(GELU_SCALE * (v + GELU_CUBE * v * v * v)));
}
static double act_gelu_slope(double v) {
  const double t = tanh(GELU_SCALE * (v + GELU_CUBE * v * v * v));
  const double slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * v * v);
  return 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope;
}

/* Without a gate. */
static double act_value(enum wn_act_kind kind, double v) {
  if (kind == WN_ACT_GELU) return act_gelu(v);
  if (kind == WN_ACT_GELU_ERF) return 0.5 * v * erfc(-v * M_SQRT1_2);
  return v > 0 ? (kind == WN_ACT_RELU2 ? v * v : v) : 0.0;
}
static double act_gradient(enum wn_act_kind kind, double v, double d) {
  if (kind == WN_ACT_GELU) return d * act_gelu_slope(v);
  if (kind == WN_ACT_GELU_ERF) {
    const double density = exp(-0.5 * v * v) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
    return d * (0.5 * erfc(-v * M_SQRT1_2) + v * density);
  }
  return v > 0 ? (kind == WN_ACT_RELU2 ? 2 * v * d : d) : 0.0;
}

static void act_forward_rows(const struct wn_exec *exec, const struct wn_act *a, int64_t from, int64_t to) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype); /* type of x [M,2F] or [M,F] and of y [M,F] */
  const int64_t F = a->F;
  for (int64_t m = from; m < to; m++) {
    for (int64_t f = 0; f < F; f++) {
      if (wn_act_has_gate(a->kind)) {
        const double g = wn_number(a->x, m * 2 * F + f, t), u = wn_number(a->x, m * 2 * F + F + f, t);
        wn_number_set(a->y, m * F + f, t, (a->kind == WN_ACT_SWIGLU ? g / (1.0 + exp(-g)) : act_gelu(g)) * u);
      } else {
        wn_number_set(a->y, m * F + f, t, act_value(a->kind, wn_number(a->x, m * F + f, t)));
      }
    }
  }
}
WN_ROWS(wn_ref_act_forward, struct wn_act, exec->threads, a->M, 1, act_forward_rows(exec, a, from, to))

static void act_backward_rows(const struct wn_exec *exec, const struct wn_act *a, int64_t from, int64_t to) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype); /* type of x, of dy [M,F], and of dx, which may alias x */
  const int64_t F = a->F;
  for (int64_t m = from; m < to; m++) {
    for (int64_t f = 0; f < F; f++) {
      const double d = wn_number(a->dy, m * F + f, t);
      if (wn_act_has_gate(a->kind)) {
        const int64_t at = m * 2 * F + f;
        const double g = wn_number(a->x, at, t), u = wn_number(a->x, at + F, t), s = 1.0 / (1.0 + exp(-g));
        const bool swish = a->kind == WN_ACT_SWIGLU;
        wn_number_set(a->dx, at, t, swish ? d * u * s * (1.0 + g * (1.0 - s)) : d * u * act_gelu_slope(g));
        wn_number_set(a->dx, at + F, t, swish ? d * g * s : d * act_gelu(g));
      } else {
        wn_number_set(a->dx, m * F + f, t, act_gradient(a->kind, wn_number(a->x, m * F + f, t), d));
      }
    }
  }
}
WN_ROWS(wn_ref_act_backward, struct wn_act, exec->threads, a->M, 1, act_backward_rows(exec, a, from, to))
