/* Rotary embedding (Su et al. 2021): rotates the pair (x[i], x[i + R/2]), or (x[2i], x[2i+1]), by position * f[i],
 * where f[i] = theta^(-2i/R) unless given; backward rotates the other way. 3R operations per vector, plus the angles if
 * no table is given. */
#include "backends/ref/ref.h"

static void rope_turn(const struct wn_exec *exec, const struct wn_rope *a, double sign, int64_t from, int64_t to) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype); /* of x [rows, heads*D] */
  const int64_t R = a->R ? a->R : a->D, half = R / 2;
  const int64_t step = a->adjacent ? 2 : 1, other = a->adjacent ? 1 : half; /* from pair to pair; within a pair */
  for (int64_t r = from; r < to; r++) {
    for (int64_t i = 0; i < half; i++) {
      double c, s;
      if (a->cos_sin) {
        const float *at = a->cos_sin + (a->positions[r] * half + i) * 2;
        c = (double)at[0], s = (double)at[1];
      } else {
        const double f = a->frequencies ? a->frequencies[i] : pow(a->theta, -2.0 * (double)i / (double)R);
        const double angle = (double)a->positions[r] * f, scale = a->magnitude != 0 ? a->magnitude : 1;
        c = scale * cos(angle), s = scale * sin(angle);
      }
      s *= sign;
      for (int64_t h = 0; h < a->heads; h++) {
        const int64_t at = r * a->ldx + h * a->D + step * i;
        const double x0 = wn_number(a->x, at, t), x1 = wn_number(a->x, at + other, t);
        wn_number_set(a->x, at, t, x0 * c - x1 * s);
        wn_number_set(a->x, at + other, t, x0 * s + x1 * c);
      }
    }
  }
}
WN_ROWS(wn_ref_rope_forward, struct wn_rope, exec->threads, a->rows, 1, rope_turn(exec, a, 1.0, from, to))
WN_ROWS(wn_ref_rope_backward, struct wn_rope, exec->threads, a->rows, 1, rope_turn(exec, a, -1.0, from, to))
