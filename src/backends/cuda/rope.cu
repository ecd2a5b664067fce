// Rotary embedding (equations in backends/ref/rope.c): one pair per thread, or eight.
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

// Eight neighbouring pairs (x[i], x[i + half]) per thread, with a table of angles.
enum { PAIRS = 8 };
static __global__ void rope_table_kernel(rope a) {
  const uint32_t lines = (uint32_t)(a.half / PAIRS), heads = (uint32_t)a.heads; // rows heads half must be below 2^31
  WN_GRID_LOOP(n, a.rows * a.heads * lines) {
    const uint32_t of = (uint32_t)n / lines, i = (uint32_t)n % lines * PAIRS;
    const int64_t r = of / heads, at = r * a.ldx + of % heads * a.D + i;
    const wn_numbers angles = {const_cast<float *>(a.cos_sin + (a.positions[r] * a.half + i) * 2), false};
    float turn[2][PAIRS], x0[PAIRS], x1[PAIRS];
    angles.get(0, turn[0]);
    angles.get(PAIRS, turn[1]);
    a.x.get(at, x0);
    a.x.get(at + a.half, x1);
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
      const float c = turn[k / 4][k % 4 * 2], s = a.sign < 0 ? -turn[k / 4][k % 4 * 2 + 1] : turn[k / 4][k % 4 * 2 + 1];
      const float was = x0[k];
      x0[k] = was * c - x1[k] * s;
      x1[k] = was * s + x1[k] * c;
    }
    a.x.put(at, x0);
    a.x.put(at + a.half, x1);
  }
}

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
  if (k.cos_sin && !k.adjacent && half % PAIRS == 0 && k.D % 8 == 0 && pairs <= INT32_MAX &&
      wn_by_eights(k.x.p, k.ldx) && wn_by_eights(k.cos_sin, 0))
    WN_LAUNCH(wn_cuda_blocks(pairs / PAIRS), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), rope_table_kernel, k);
  else
    WN_LAUNCH(wn_cuda_blocks(pairs), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), rope_kernel, k);
  return wn_cuda_launched(exec, "rope");
}
wn_status wn_cuda_rope_forward(const struct wn_exec *exec, const struct wn_rope *a) {
  return rope_turn(exec, a, 1);
}
wn_status wn_cuda_rope_backward(const struct wn_exec *exec, const struct wn_rope *a) {
  return rope_turn(exec, a, -1);
}
