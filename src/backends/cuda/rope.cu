// Rotary embedding (equations in backends/ref/rope.c), one thread a pair.
#include "backends/cuda/launch.cuh"

struct rope {
  int64_t rows, heads, D, half, ldx;
  bool adjacent;
  wn_numbers x;
  const int32_t *positions;
  const float *cos_sin;
  double theta, magnitude, sign;
  const double *frequencies;
};

static __global__ void rope_kernel(rope a) {
  const int64_t step = a.adjacent ? 2 : 1, other = a.adjacent ? 1 : a.half;
  WN_GRID_LOOP(n, a.rows * a.heads * a.half) {
    const int64_t i = n % a.half, h = n / a.half % a.heads, r = n / a.half / a.heads;
    float c, s;
    if (a.cos_sin) {
      const float *at = a.cos_sin + (a.positions[r] * a.half + i) * 2;
      c = at[0], s = at[1];
    } else {
      const double f = a.frequencies ? a.frequencies[i] : pow(a.theta, -(double)i / (double)a.half);
      const double angle = (double)a.positions[r] * f;
      c = (float)(a.magnitude * cos(angle)), s = (float)(a.magnitude * sin(angle));
    }
    if (a.sign < 0) s = -s;
    const int64_t at = r * a.ldx + h * a.D + step * i;
    const float x0 = a.x[at], x1 = a.x[at + other];
    a.x.set(at, x0 * c - x1 * s);
    a.x.set(at + other, x0 * s + x1 * c);
  }
}

static wn_status rope_turn(const struct wn_exec *exec, const struct wn_rope *a, double sign) {
  const int64_t half = (a->R ? a->R : a->D) / 2, pairs = a->rows * a->heads * half;
  const rope k = {a->rows,
                  a->heads,
                  a->D,
                  half,
                  a->ldx,
                  a->adjacent,
                  wn_numbers_of(a->x, wn_array_type(a->type, exec->dtype)),
                  a->positions,
                  a->cos_sin,
                  a->theta,
                  a->magnitude != 0 ? a->magnitude : 1,
                  sign,
                  a->frequencies};
  if (pairs == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(pairs), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), rope_kernel, k);
  return wn_cuda_launched(exec, "rope");
}
wn_status wn_cuda_rope_forward(const struct wn_exec *exec, const struct wn_rope *a) {
  return rope_turn(exec, a, 1);
}
wn_status wn_cuda_rope_backward(const struct wn_exec *exec, const struct wn_rope *a) {
  return rope_turn(exec, a, -1);
}
