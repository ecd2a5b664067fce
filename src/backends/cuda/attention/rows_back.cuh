/* Rows of stored attention weights, backward. A row's W are recomputed as in forward, so that the sum of W dW that is
 * subtracted belongs to exactly these attention weights.
 *
 *   dW_j = dy . v_j (dropped as W was);  dA_j = W_j (dW_j - sum of W dW);  G = (dA + X) slope of the maps */
#ifndef WN_BACKENDS_CUDA_ATTENTION_ROWS_BACK_CUH
#define WN_BACKENDS_CUDA_ATTENTION_ROWS_BACK_CUH

#include "backends/cuda/attention/rows.cuh"

namespace wn_cuda {

/* The gradient through gates and exclusive attention: from dy to s.dy, and the gradients of gates and of a row's own
 * value. A warp has one row of a key-value head and loops over its heads. s.out has the weighted sums of values. Grid:
 * rows in fours, key-value heads, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_output_back(const stored_args s) {
  const attention_args &a = s.a;
  const int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31, kv = blockIdx.y, b = blockIdx.z;
  if (row >= a.rows) return;
  const int i = a.row0 + row, share = a.H / a.Hkv;
  const int64_t own = b * a.s_v.b + (i + a.offset) * a.s_v.t + kv * a.s_v.h;
  float *dv = a.exclusive.on ? s.sum_dv + (((int64_t)b * a.Tk + i + a.offset) * a.Hkv + kv) * a.D : nullptr;
  for (int h = kv * share; h < (kv + 1) * share; h++) {
    const int64_t given = b * a.s_y.b + i * a.s_y.t + h * a.s_y.h, at = (((int64_t)b * s.R + row) * a.H + h) * a.D;
    const float *o = s.out + at;
    float along = 0, norm = 0;
    if (a.exclusive.on)
      for (int d = lane; d < a.D; d += 32) {
        const float v = number_at(s.type, a.v, own + d);
        along = fmaf(o[d], v, along), norm = fmaf(v, v, norm);
      }
    along = wn_warp_sum(along), norm = wn_warp_sum(norm);
    const float size = fmaxf(norm, 1e-30f), per_size = (a.exclusive.gate ? a.exclusive.gate[h] : 1.0f) / size;
    const int64_t gate = s.a.gate.on ? b * s.a.gate.s_g.b + i * s.a.gate.s_g.t + h * s.a.gate.s_g.h : 0;
    float by_gate = 0, d_along = 0;
    for (int d = lane; d < a.D; d += 32) {
      const float dy = number_at(s.type, a.dy, given + d), v = a.exclusive.on ? number_at(s.type, a.v, own + d) : 0.0f;
      const float factor = s.a.gate.on ? s.a.gate.g[gate + (s.a.gate.elementwise ? d : 0)] : 1.0f;
      if (s.a.gate.on) {
        const float ungated = o[d] - per_size * along * v;
        if (s.a.gate.elementwise && s.a.gate.dg) s.a.gate.dg[gate + d] = dy * ungated;
        by_gate = fmaf(dy, ungated, by_gate);
      }
      d_along = fmaf(dy * factor, v, d_along);
    }
    by_gate = wn_warp_sum(by_gate), d_along = wn_warp_sum(d_along);
    if (s.a.gate.on && !s.a.gate.elementwise && s.a.gate.dg && lane == 0) s.a.gate.dg[gate] = by_gate;
    const float by_value = norm > 1e-30f ? 2 * per_size * along * (d_along / size) : 0.0f;
    for (int d = lane; d < a.D; d += 32) {
      float dy =
          number_at(s.type, a.dy, given + d) * (s.a.gate.on ? s.a.gate.g[gate + (s.a.gate.elementwise ? d : 0)] : 1.0f);
      if (a.exclusive.on) {
        const float v = number_at(s.type, a.v, own + d);
        dv[d] += by_value * v - per_size * (d_along * o[d] + along * dy);
        dy -= per_size * d_along * v;
      }
      number_set(s.type, s.dy, at + d, dy);
    }
    if (a.exclusive.dgate && lane == 0) a.exclusive.dgate[((int64_t)b * a.H + h) * a.Tq + i] = -along * d_along / size;
  }
}

/* Does a threshold, if there is one, keep key j although its attention weight is 0? */
__device__ __forceinline__ bool keeps_weightless(const stored_args &s, int b, int j) {
  if (!s.threshold.on || s.threshold.tau >= 1) return true;
  return s.threshold.control && s.threshold.control[(int64_t)b * s.a.Tk + j];
}

/* dA from dy . v, for keys and learned sinks; W with dropout applied; the span's gradient. Grid: as for
 * stored_weights. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_rows_back(const stored_args s) {
  const attention_args &a = s.a;
  const int h = blockIdx.y, b = blockIdx.z;
  const row_place row(s, b, blockIdx.x);
  const int64_t at = matrix_row(s, b, a.H, h, blockIdx.x, s.ld);
  float *w = s.W + at, *dA = s.dA + at;
  const int64_t at_sink = matrix_row(s, b, a.H, h, blockIdx.x, s.sinks.ld);
  float sum = 0;
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS)
    if (w[j] > 0) sum = fmaf(w[j], dA[j] * kept_factor(s.a, b, h, row.i, j), sum);
  for (int k = threadIdx.x; k < s.sinks.n; k += STORED_THREADS)
    sum = fmaf(s.sinks.row[at_sink + k], s.sinks.back[at_sink + k], sum);
  const float mean = wn_block_sum(sum), z = a.span.on ? span_ratio(a, b, h, row.i) : 0.0f;
  const int end = columns_end(s, blockIdx.x);
  const float edge = s.edge ? s.edge[matrix_row(s, b, a.H, h, blockIdx.x, 1)] : 0.0f;
  float dz = 0;
  for (int j = threadIdx.x; j < end; j += STORED_THREADS) {
    const float weight = w[j]; /* 0 where there is no key */
    const bool on_edge = edge > 0 && span_edge(a, z, row.position - j) && (weight > 0 || keeps_weightless(s, b, j));
    const float factor = weight > 0 || on_edge ? kept_factor(s.a, b, h, row.i, j) : 0.0f;
    const float difference = dA[j] * factor - mean, d = weight > 0 ? weight * difference : 0.0f;
    w[j] = weight * factor, dA[j] = d;
    if (!a.span.dz) continue;
    const float m = span_factor(a, z, row.position - j);
    if (on_edge)
      dz += edge * difference * a.span.limit / a.span.ramp;
    else if (weight > 0 && m < 1)
      dz += d / m * a.span.limit / a.span.ramp;
  }
  for (int k = threadIdx.x; k < s.sinks.ld; k += STORED_THREADS) {
    const float weight = s.sinks.row[at_sink + k];
    s.sinks.back[at_sink + k] = k < s.sinks.n ? weight * (s.sinks.back[at_sink + k] - mean) : 0.0f;
  }
  if (!a.span.dz) return;
  dz = wn_block_sum(dz);
  if (threadIdx.x == 0) a.span.dz[((int64_t)b * a.H + h) * a.Tq + row.i] = span_cut(dz);
}

/* The gradient of the mapped logits of row i of head h: dA, or for a selecting head the sum of dA and X. */
struct mapped_row {
  const float *dA, *X, *raw, *by_distance;
  __device__ __forceinline__ mapped_row(const stored_args &s, int b, int h, int i) {
    const attention_args &a = s.a;
    const int64_t at = matrix_row(s, b, a.H, h, i, s.ld);
    const bool selects = a.sel.on && a.sel.joins && h % (a.H / a.G) == a.sel.head;
    dA = s.dA + at, raw = s.raw + at;
    X = selects ? s.S + matrix_row(s, b, a.G, h / (a.H / a.G), i, s.ld) : nullptr;
    by_distance = s.relative.P > 0 ? s.relative.row + matrix_row(s, b, a.H, h, i, s.relative.ld) : nullptr;
  }
  __device__ __forceinline__ float gradient(int j) const { return dA[j] + (X ? X[j] : 0.0f); }
};

/* What the keys' own numbers get from the rows of a head, each thread a key; before stored_logits_back, which adds what
 * the rows' own keys get. Grid: keys in blocks, heads, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_numbers_back(const stored_args s) {
  const attention_args &a = s.a;
  const int j = blockIdx.x * STORED_THREADS + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  if (j >= a.Tk) return;
  const head_terms head(s, h);
  float own[WN_SCORE_MAPS_MAX] = {}, key[WN_SCORE_MAPS_MAX] = {};
  for (int i = 0; i < a.rows; i++) {
    const row_place row(s, b, i);
    const mapped_row of(s, b, h, i);
    if (j < row.first || j > row.last) continue;
    stored_logit_back<true>(s, head, of.raw[j], of.by_distance, row.position - j, {b, h, a.H / a.Hkv, row.position, j},
                            of.gradient(j), own, key);
  }
#pragma unroll
  for (int n = 0; n < WN_SCORE_MAPS_MAX; n++)
    if (n < s.maps) s.numbers[(((int64_t)n * a.B + b) * a.H + h) * s.ld + j] += key[n];
}

/* From dA to the gradient of q . k, and by distance that of q . p. Grid: as for stored_weights. */
template <bool KEYED> __global__ void __launch_bounds__(STORED_THREADS) stored_logits_back(const stored_args s) {
  const attention_args &a = s.a;
  const int h = blockIdx.y, b = blockIdx.z;
  const row_place row(s, b, blockIdx.x);
  const mapped_row of(s, b, h, blockIdx.x);
  float *dA = s.dA + matrix_row(s, b, a.H, h, blockIdx.x, s.ld);
  float *by_distance =
      s.relative.P > 0 ? s.relative.row + matrix_row(s, b, a.H, h, blockIdx.x, s.relative.ld) : nullptr;
  const head_terms head(s, h);
  float own[WN_SCORE_MAPS_MAX] = {}, key[WN_SCORE_MAPS_MAX] = {};
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) {
    const int x = row.position - j;
    const float d = stored_logit_back<KEYED>(s, head, of.raw[j], by_distance, x, {b, h, a.H / a.Hkv, row.position, j},
                                             of.gradient(j), own, key);
    dA[j] = d;
    if (by_distance && x < s.relative.P) by_distance[x] = d;
  }
  if (by_distance) /* distances without any key */
    for (int x = row.position - row.first + 1 + threadIdx.x; x < s.relative.ld; x += STORED_THREADS) by_distance[x] = 0;
  if (by_distance && s.relative.P <= row.position - row.first) /* columns after the last */
    for (int x = s.relative.P + threadIdx.x; x < s.relative.ld; x += STORED_THREADS) by_distance[x] = 0;
  if constexpr (KEYED) {
    if (!s.numbers) return;
#pragma unroll
    for (int n = 0; n < WN_SCORE_MAPS_MAX; n++) {
      if (n >= s.maps) break;
      const float sum = wn_block_sum(own[n]);
      if (threadIdx.x == 0) s.numbers[(((int64_t)n * a.B + b) * a.H + h) * s.ld + row.position] += sum;
    }
  }
}

/* Stores the gradients of map n's numbers, each summed over the heads that read it, from key `from` on. Grid: keys in
 * blocks, key-value heads, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS)
    stored_numbers(const stored_args s, int n, float *to, stride by, int from) {
  const attention_args &a = s.a;
  const int j = blockIdx.x * STORED_THREADS + threadIdx.x, kv = blockIdx.y, b = blockIdx.z, share = a.H / a.Hkv;
  if (j < from || j >= a.Tk) return;
  const int gates = (int)s.map[n].gates;
  for (int r = 0; r < gates; r++) {
    float sum = 0;
    for (int h = kv * share + r; h < (kv + 1) * share; h += gates)
      sum += s.numbers[(((int64_t)n * a.B + b) * a.H + h) * s.ld + j];
    to[b * by.b + j * by.t + kv * by.h + r * s.map[n].s_gate] = sum;
  }
}

static __global__ void __launch_bounds__(256) stored_clear(float *x, int64_t n) {
  const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] = 0;
}

/* to = factor x (or added to it), for x[B,n,heads,D] with `ld` rows per sequence, to tokens from `from` on. Grid: rows,
 * heads, sequences. */
struct store_args {
  const float *x;
  void *to;
  stride s; /* strides of to */
  int type, ld, from, D;
  float factor;
  bool add;
};
static __global__ void __launch_bounds__(STORED_THREADS) stored_store(const store_args w) {
  const int t = w.from + blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const float *x = w.x + (((int64_t)b * w.ld + t) * gridDim.y + h) * w.D;
  const int64_t to = b * w.s.b + t * w.s.t + h * w.s.h;
  for (int d = threadIdx.x; d < w.D; d += STORED_THREADS) {
    const float y = w.factor * x[d];
    number_set(w.type, w.to, to + d, w.add ? y + number_at(w.type, w.to, to + d) : y);
  }
}

} // namespace wn_cuda

#endif
