/* Rows of stored attention weights, forward; a block has one row of one head. From the products: logits, maximum,
 * exponentials, the threshold's choice, dropout; then what is applied to the weighted sum of values. Sums use a tree
 * over the block. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_ROWS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_ROWS_CUH

#include "backends/cuda/attention/stored.cuh"

namespace wn_cuda {

/* ---- threshold: the fewest keys, heaviest first, whose attention weights reach tau of the content's weight; ties to
 * the oldest ---- */

struct content_row {
  const float *w;
  const uint8_t *control;
  const int32_t *at;
  int first, last;
  __device__ __forceinline__ bool counts(int j) const { return !(control && control[j]); }
  __device__ __forceinline__ int position(int j) const { return at ? at[j] : j; }
  /* The total attention weight of keys whose attention weight is at least `least`. */
  __device__ __forceinline__ double weight_from(float least) const {
    double sum = 0;
    for (int j = first + threadIdx.x; j <= last; j += STORED_THREADS)
      if (w[j] >= least && counts(j)) sum += (double)w[j];
    return wn_block_sum(sum);
  }
  /* How many keys are above `cut`; below, how many equal it, at positions up to `to`. */
  __device__ __forceinline__ int above(float cut) const {
    int n = 0;
    for (int j = first + threadIdx.x; j <= last; j += STORED_THREADS) n += w[j] > cut && counts(j);
    return wn_block_sum(n);
  }
  __device__ __forceinline__ int equal(float cut, int to) const {
    int n = 0;
    for (int j = first + threadIdx.x; j <= last; j += STORED_THREADS)
      n += w[j] == cut && counts(j) && position(j) <= to;
    return wn_block_sum(n);
  }
};

/* Sets dropped attention weights to 0; attention weights are in [0,1]. Returns how many keys are kept. Bisects over the
 * bits of floats for the largest cut at which the attention weights from it up reach the share: 30 passes over the
 * row. */
__device__ __forceinline__ int keep_heaviest(const stored_args &s, float *w, const content_row &row) {
  const double wanted = s.threshold.tau * row.weight_from(0.0f);
  uint32_t bits = 0;
  for (int bit = 29; bit >= 0; bit--) {
    const uint32_t with = bits | 1u << bit;
    if (with <= 0x3f800000u && row.weight_from(__uint_as_float(with)) >= wanted) bits = with;
  }
  const float cut = __uint_as_float(bits);
  int kept = 0, newest = INT32_MAX;
  if (bits > 0) {
    const int heavier = row.above(cut), ties = row.equal(cut, INT32_MAX);
    /* keeps ties one after the other until the share is reached */
    const double before = row.weight_from(__uint_as_float(bits + 1));
    int more = 0;
    while (more < ties && before + more * (double)cut < wanted) more++;
    kept = heavier + more;
    if (more < ties) { /* the smallest position up to which there are that many ties */
      newest = 0;
      for (int bit = 30; bit >= 0; bit--)
        if (row.equal(cut, newest + (1 << bit) - 1) < more) newest += 1 << bit;
    }
  }
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) {
    const bool keeps = bits > 0 && (w[j] > cut || (w[j] == cut && row.position(j) <= newest));
    if (row.counts(j) && !keeps) w[j] = 0;
  }
  return kept;
}

/* Fills W with the logits of keys that are seen, -inf for others. Grid: rows of the chunk, heads, sequences. */
template <bool KEYED> __global__ void __launch_bounds__(STORED_THREADS) stored_logits(const stored_args s) {
  const attention_args &a = s.a;
  const int h = blockIdx.y, b = blockIdx.z, kv = h / (a.H / a.Hkv), g = h / (a.H / a.G);
  const row_place row(s, b, blockIdx.x);
  const int64_t at = matrix_row(s, b, a.H, h, blockIdx.x, s.ld);
  const float *F = a.sel.on ? s.F + matrix_row(s, b, a.G, g, blockIdx.x, s.ld) : nullptr;
  const float *by_distance =
      s.relative.P > 0 ? s.relative.row + matrix_row(s, b, a.H, h, blockIdx.x, s.relative.ld) : nullptr;
  const float z = a.span.on ? span_ratio(a, b, h, row.i) : 0.0f;
  const head_terms head(s, h);
  float *edge = s.edge ? s.edge + matrix_row(s, b, a.H, h, blockIdx.x, 1) : nullptr;
  if (edge && threadIdx.x == 0) *edge = -INFINITY;
  __syncthreads();
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) {
    const int x = stored_distance(s, b, kv, row, j);
    const float m = a.span.on ? span_factor(a, z, x) : 1.0f;
    const bool on_edge = edge && span_edge(a, z, x);
    float logit = -INFINITY;
    if ((m > 0 || on_edge) && stored_sees(s, b, kv, row, j, x)) {
      logit = stored_logit<KEYED>(s, head, s.raw[at + j], by_distance, x, {b, h, a.H / a.Hkv, row.position, j});
      if (F) logit -= F[j];
      if (on_edge) *edge = logit;
      if (m < 1) logit += logf(m);
    }
    s.W[at + j] = logit;
  }
}

/* Turns W into attention weights. Grid: as for stored_logits. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_weights(const stored_args s) {
  const attention_args &a = s.a;
  const int h = blockIdx.y, b = blockIdx.z;
  const row_place row(s, b, blockIdx.x);
  float *w = s.W + matrix_row(s, b, a.H, h, blockIdx.x, s.ld);
  float *sink = s.sinks.n > 0 ? s.sinks.row + matrix_row(s, b, a.H, h, blockIdx.x, s.sinks.ld) : nullptr;
  float top = -INFINITY;
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) top = fmaxf(top, w[j]);
  for (int k = threadIdx.x; k < s.sinks.n; k += STORED_THREADS) {
    sink[k] *= a.scale;
    top = fmaxf(top, sink[k]);
  }
  top = block_max(top);
  const float shift = top == -INFINITY ? 0.0f : top;
  float mine = 0;
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) mine += w[j] = expf(w[j] - shift);
  float of_sinks = 0;
  for (int k = threadIdx.x; k < s.sinks.n; k += STORED_THREADS) of_sinks += sink[k] = expf(sink[k] - shift);
  const float total = wn_block_sum(mine + of_sinks);
  const float part = total > 0 ? 1 / total : 0.0f;
  const int end = columns_end(s, blockIdx.x);
  for (int j = threadIdx.x; j < end; j += STORED_THREADS) {
    const bool there = j >= row.first && j <= row.last;
    w[j] = there ? w[j] * part : 0.0f;
  }
  for (int k = threadIdx.x; k < s.sinks.ld; k += STORED_THREADS) sink[k] = k < s.sinks.n ? sink[k] * part : 0.0f;
  if (threadIdx.x) return;
  if (s.edge) {
    float *edge = s.edge + matrix_row(s, b, a.H, h, blockIdx.x, 1);
    *edge = total > 0 ? expf(fminf(*edge - shift, SPAN_EXPONENT)) * part : 0.0f;
  }
  const int64_t place = ((int64_t)b * a.H + h) * a.Tq + row.i;
  if (a.lse) a.lse[place] = total > 0 ? shift + logf(total) : -INFINITY;
}

/* Keeps what the threshold chooses of a row's attention weights and normalises again. Grid: as for stored_logits. */
static __global__ void __launch_bounds__(STORED_THREADS, 1) stored_threshold(const stored_args s) {
  const attention_args &a = s.a;
  const int h = blockIdx.y, b = blockIdx.z, kv = h / (a.H / a.Hkv);
  const row_place row(s, b, blockIdx.x);
  float *w = s.W + matrix_row(s, b, a.H, h, blockIdx.x, s.ld);
  float *sink = s.sinks.n > 0 ? s.sinks.row + matrix_row(s, b, a.H, h, blockIdx.x, s.sinks.ld) : nullptr;
  content_row content = {w, s.threshold.control, nullptr, row.first, row.last};
  if (a.at) content.at = a.at + slot_row(a, b, kv);
  if (content.control) content.control += a.at ? slot_row(a, b, kv) : (int64_t)b * a.Tk;
  const int kept = keep_heaviest(s, w, content);
  float mine = 0;
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) mine += w[j];
  for (int k = threadIdx.x; k < s.sinks.n; k += STORED_THREADS) mine += sink[k];
  const float left = wn_block_sum(mine), part = left > 0 ? 1 / left : 0.0f;
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) w[j] *= part;
  for (int k = threadIdx.x; k < s.sinks.n; k += STORED_THREADS) sink[k] *= part;
  if (threadIdx.x) return;
  const int64_t place = ((int64_t)b * a.H + h) * a.Tq + row.i;
  if (s.edge) s.edge[matrix_row(s, b, a.H, h, blockIdx.x, 1)] *= part;
  if (a.lse && left > 0) a.lse[place] += logf(left);
  if (s.threshold.count) s.threshold.count[place] = kept;
}

/* sums[b,P,j]: the attention weight that the rows and the heads of a group gave key j; one thread per key. Grid: keys
 * in blocks, P, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_sums(const stored_args s) {
  const attention_args &a = s.a;
  const int j = blockIdx.x * STORED_THREADS + threadIdx.x, P = a.slot_groups, share = a.H / P;
  if (j >= a.Tk) return;
  float *to = s.attention_sums + ((int64_t)blockIdx.z * P + blockIdx.y) * a.slot_stride + j;
  float sum = a.first_rows ? 0.0f : *to;
  for (int h = blockIdx.y * share; h < (int)(blockIdx.y + 1) * share; h++)
    for (int i = 0; i < a.rows; i++)
      if (j < columns_end(s, i)) sum += s.W[matrix_row(s, blockIdx.z, a.H, h, i, s.ld) + j];
  *to = sum;
}

/* Applies dropout to W and stores it in `to`, which may alias W. Grid: as for stored_weights. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_dropout(const stored_args s, float *to) {
  const int h = blockIdx.y, b = blockIdx.z, i = s.a.row0 + blockIdx.x;
  const int64_t at = matrix_row(s, b, s.a.H, h, blockIdx.x, s.ld);
  const int end = columns_end(s, blockIdx.x);
  for (int j = threadIdx.x; j < end; j += STORED_THREADS) {
    const float w = s.W[at + j];
    to[at + j] = w > 0 ? w * kept_factor(s.a, b, h, i, j) : 0.0f;
  }
}

/* What is applied to a row's weighted sum of values: exclusive attention, gates. One warp per row. Grid: rows in fours,
 * heads, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_output(const stored_args s) {
  const attention_args &a = s.a;
  const int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31, h = blockIdx.y, b = blockIdx.z;
  if (row >= a.rows) return;
  const int i = a.row0 + row, kv = h / (a.H / a.Hkv);
  const float *o = s.out + (((int64_t)b * s.R + row) * a.H + h) * a.D;
  const int64_t own = b * a.s_v.b + (i + a.offset) * a.s_v.t + kv * a.s_v.h;
  float part = 0;
  if (a.exclusive.on) {
    float along = 0, size = 0;
    for (int d = lane; d < a.D; d += 32) {
      const float v = number_at(s.value_type, a.v, own + d);
      along = fmaf(o[d], v, along), size = fmaf(v, v, size);
    }
    along = wn_warp_sum(along), size = fmaxf(wn_warp_sum(size), 1e-30f);
    if (a.exclusive.dot && lane == 0) a.exclusive.dot[((int64_t)b * a.H + h) * a.Tq + i] = along;
    part = (a.exclusive.gate ? a.exclusive.gate[h] : 1.0f) * along / size;
  }
  const float *gate = s.a.gate.on ? s.a.gate.g + b * s.a.gate.s_g.b + i * s.a.gate.s_g.t + h * s.a.gate.s_g.h : nullptr;
  for (int d = lane; d < a.D; d += 32) {
    float y = o[d];
    if (a.exclusive.on) y -= part * number_at(s.value_type, a.v, own + d);
    if (s.a.gate.on && s.a.gate.ungated) s.a.gate.ungated[(((int64_t)b * a.Tq + i) * a.H + h) * a.D + d] = y;
    if (gate) y *= gate[s.a.gate.elementwise ? d : 0];
    number_set(s.type, a.y, b * a.s_y.b + i * a.s_y.t + h * a.s_y.h + d, y);
  }
}

} // namespace wn_cuda

#endif
