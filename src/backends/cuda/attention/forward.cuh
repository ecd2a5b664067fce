/* Attention forward: a block has one row tile of one head and loops over the key tiles from the diagonal backwards,
 * with the running maximum and sum of Milakov and Gimelshein 2018 (FlashAttention's loop, Dao 2023).
 *
 *   A[i,j] = scale q_i . k_j - F[i,j] + log m[i,j];  y_i = sum_j softmax(A[i,:])_j v_j
 *
 * m is the span mask. The longest row tiles come first. 4 D operations per pair and head; reads F once per head.
 * Optional terms: terms.cuh, sinks.cuh. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_FORWARD_CUH
#define WN_BACKENDS_CUDA_ATTENTION_FORWARD_CUH

#include "backends/cuda/attention/sinks.cuh"
#include "backends/cuda/attention/terms.cuh"

namespace wn_cuda {

/* A block of F; below, of X. */
template <class P>
__device__ __forceinline__ float *F_at(const attention_args &a, int b, int g, int row_tile, int key_tile) {
  return a.F + block_at(a, b, g, row_tile, key_tile) * P::TILE * P::TILE;
}
template <class P>
__device__ __forceinline__ typename P::block *X_at(const attention_args &a, int b, int g, int row_tile, int key_tile) {
  return static_cast<typename P::block *>(a.X) + block_at(a, b, g, row_tile, key_tile) * P::BLOCK;
}

/* Sum, and below maximum, over the lanes of a row. */
template <class P> __device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int by = 1; by < P::LANES; by *= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}
template <class P> __device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int by = 1; by < P::LANES; by *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
  return x;
}

/* Which pairs of a row tile and a key tile are seen, ignoring spans: bit 4 t + e. Computed before the logits, so that
 * its registers are free again. first: the document starts of the rows. */
template <class P, class T, bool SLOTS>
__device__ __forceinline__ uint32_t seen_pairs(const attention_args &a, int b, int kv, int i0, int j0,
                                               const int (&first)[P::ROWS], int warp, int lane) {
  if (j0 + P::TILE - 1 <= i0 + a.offset && !has_rules<T>(a)) return ~0u;
  uint32_t seen = 0;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int r = P::row_of(e), position = i0 + warp * 16 + P::row(lane, r) + a.offset,
                j = j0 + P::column(lane, t, e);
      if (j < a.Tk && sees<T, SLOTS>(a, b, kv, position, first[r], j)) seen |= 1u << (4 * t + e);
    }
  return seen;
}

/* The initial accumulator of raw logits, and the raw logits after the product. With terms F is added after the score
 * maps; without terms it is where the rows' type wants it. */
template <class P, class T>
__device__ __forceinline__ void start_logits(float (&s)[P::CHUNKS][4], const float *f, int warp, int lane) {
  P::start(s, T::ON ? nullptr : f, warp, lane);
}
template <class P, class T, bool SLOTS>
__device__ __forceinline__ void finish_logits(const attention_args &a, float (&s)[P::CHUNKS][4], const float *f,
                                              float slope, int b, int kv, int i0, int j0, int warp, int lane) {
  if constexpr (!T::ON) {
    P::finish(s, f, warp, lane);
  } else {
    map_logits<P, false, SLOTS>(a, s, slope, b, kv, i0, j0, warp, lane);
    if (!f) return;
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[t][e] += F_of_pair<P, false>(f, t, e, warp, lane);
  }
}

/* Turns a raw logit of a row at `position` and key j into base 2, -inf if the key is not seen. z: the row's span. EDGE:
 * with m = 1 at the ramp's end that counts in the gradient of z. */
template <bool SLOTS, bool EDGE = false>
__device__ __forceinline__ float limited(const attention_args &a, float s, bool seen, int position, int j, float z,
                                         int b, int kv) {
  const float x = seen ? s * a.to_log2 : -INFINITY;
  if (!a.span.on || !seen) return x;
  const int d = distance<SLOTS>(a, b, kv, position, j);
  const float m = EDGE && span_edge(a, z, d) ? 1.0f : span_factor(a, z, d);
  return m > 0 ? x + (m < 1 ? log2f(m) : 0.0f) : -INFINITY;
}
/* The same for a tile. There is a separate version without terms: with the other one, the compiler makes attention_dF
 * half as long again. */
template <class P, class T, bool SLOTS, bool EDGE = false>
__device__ __forceinline__ void limit_rows(const attention_args &a, float (&s)[P::CHUNKS][4], uint32_t seen, int i0,
                                           int j0, const float (&z)[P::ROWS], int b, int kv, int warp, int lane) {
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int r = P::row_of(e), j = j0 + P::column(lane, t, e);
      if constexpr (T::ON) {
        const int position = i0 + warp * 16 + P::row(lane, r) + a.offset;
        s[t][e] = limited<SLOTS, EDGE>(a, s[t][e], seen >> (4 * t + e) & 1, position, j, z[r], b, kv);
        continue;
      }
      s[t][e] = seen >> (4 * t + e) & 1 ? s[t][e] * a.to_log2 : -INFINITY;
      if (!a.span.on) continue;
      if (!(seen >> (4 * t + e) & 1)) continue;
      const int x = distance<SLOTS>(a, b, kv, i0 + warp * 16 + P::row(lane, r) + a.offset, j);
      const float m = EDGE && span_edge(a, z[r], x) ? 1.0f : span_factor(a, z[r], x);
      s[t][e] = m > 0 ? s[t][e] + (m < 1 ? log2f(m) : 0.0f) : -INFINITY;
    }
}

/* Removes from the rows' y their part along their own values. */
template <class P>
__device__ __forceinline__ void exclude(const attention_args &a, float (&o)[P::OUT][4], int b, int h, int kv, int i0,
                                        int warp, int lane) {
  const float gate = a.exclusive.gate ? a.exclusive.gate[h] : 1.0f;
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int i = min(i0 + warp * 16 + P::row(lane, r), a.Tq - 1);
    const int64_t own = b * a.s_v.b + (i + a.offset) * a.s_v.t + kv * a.s_v.h;
    float along = 0, size = 0;
#pragma unroll
    for (int t = 0; t < P::OUT; t++)
#pragma unroll
      for (int n = 0; n < P::EACH; n++) {
        const int e = P::element_of(r, n), d = P::out_column(lane, t, e);
        const float v = d < a.D ? P::get(a.v, own + d) : 0.0f;
        along = fmaf(o[t][e], v, along), size = fmaf(v, v, size);
      }
    along = row_sum<P>(along), size = fmaxf(row_sum<P>(size), 1e-30f);
    const float part = gate * along / size;
    if (a.exclusive.dot && lane % P::LANES == 0 && i0 + warp * 16 + P::row(lane, r) < rows_end(a))
      a.exclusive.dot[((int64_t)b * a.H + h) * a.Tq + i] = along;
#pragma unroll
    for (int t = 0; t < P::OUT; t++)
#pragma unroll
      for (int n = 0; n < P::EACH; n++) {
        const int e = P::element_of(r, n), d = P::out_column(lane, t, e);
        if (d < a.D) o[t][e] -= part * P::get(a.v, own + d);
      }
  }
}

template <class P> struct forward_room {
  static constexpr int ROWS = P::TILE * P::LD; /* elements in a tile */
  static constexpr int BYTES = (1 + 2 * P::STAGES) * ROWS * (int)sizeof(typename P::element) + P::WEIGHTS * 4;
};

/* Grid: row tiles of the chunk, heads, sequences. */
template <class P, class T> __global__ void __launch_bounds__(P::THREADS, 1) attention_forward(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = forward_room<P>::ROWS;
  element *sq = reinterpret_cast<element *>(raw), *sk = sq + ROOM, *sv = sk + P::STAGES * ROOM;
  float *weights = reinterpret_cast<float *>(sv + P::STAGES * ROOM);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int kv = h / (a.H / a.Hkv), g = h / (a.H / a.G), i0 = a.row0 + tile * P::TILE;
  const int i1 = min(i0 + P::TILE, rows_end(a));
  const element *k = static_cast<const element *>(a.k) + b * a.s_k.b + kv * a.s_k.h;
  const element *v = static_cast<const element *>(a.v) + b * a.s_v.b + kv * a.s_v.h;
  const float *F = a.sel.on ? F_at<P>(a, b, g, tile, 0) : nullptr;
  const float slope = raw_slope<T>(a, h);

  int first[P::ROWS];
  float z[P::ROWS], most[P::ROWS], sum[P::ROWS], o[P::OUT][4];
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int i = min(i0 + warp * 16 + P::row(lane, r), a.Tq - 1);
    first[r] = document(a, b, i + a.offset);
    z[r] = a.span.on ? span_ratio(a, b, h, i) : 0.0f;
    most[r] = -INFINITY, sum[r] = 0;
  }
  clear(o);

  const tiles seen = seen_tiles<P::TILE>(a, b, i0, i1);
  const int count = seen.last - seen.first + 1;
  const auto fetch = [&](int n) { /* copies the n-th tile to its stage */
                                  const int at = n % P::STAGES * ROOM, j0 = (seen.last - n) * P::TILE;
                                  stage<P>(sk + at, k, a.s_k.t, j0, a.Tk, a);
                                  stage<P>(sv + at, v, a.s_v.t, j0, a.Tk, a);
  };
  stage<P>(sq, static_cast<const element *>(a.q) + b * a.s_q.b + h * a.s_q.h, a.s_q.t, i0, i1, a);
  for (int n = 0; n < P::STAGES - 1 && n < count; n++) {
    fetch(n);
    wn_copy_commit();
  }
  for (int n = 0; n < count; n++) {
    const int tile_j = seen.last - n, j0 = tile_j * P::TILE, at = n % P::STAGES * ROOM;
    if (n + P::STAGES - 1 < count) fetch(n + P::STAGES - 1);
    wn_copy_commit();
    const float *f = F ? F + (int64_t)tile_j * P::TILE * P::TILE : nullptr;
    const uint32_t pairs = seen_pairs<P, T, true>(a, b, kv, i0, j0, first, warp, lane);
    uint32_t kept = 0;
    if constexpr (T::ON) kept = kept_rows<P>(a, b, h, i0, j0, warp, lane);
    float s[P::CHUNKS][4];
    start_logits<P, T>(s, f, warp, lane);
    wn_copy_wait<P::STAGES - 1>();
    __syncthreads();
    P::product(s, sq, sk + at, warp, lane);
    finish_logits<P, T, true>(a, s, f, slope, b, kv, i0, j0, warp, lane);
    limit_rows<P, T, true>(a, s, pairs, i0, j0, z, b, kv, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) {
      float top = most[r];
#pragma unroll
      for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
        for (int m = 0; m < P::EACH; m++) top = fmaxf(top, s[t][P::element_of(r, m)]);
      top = row_max<P>(top);
      const float shift = top == -INFINITY ? 0.0f : top; /* the row has seen nothing so far */
      const float factor = P::exp2(most[r] - shift);
      most[r] = top;
      float add = 0;
#pragma unroll
      for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
        for (int m = 0; m < P::EACH; m++) {
          const int e = P::element_of(r, m);
          s[t][e] = P::exp2(s[t][e] - shift);
          add += s[t][e];
        }
      sum[r] = sum[r] * factor + add;
#pragma unroll
      for (int t = 0; t < P::OUT; t++)
#pragma unroll
        for (int m = 0; m < P::EACH; m++) o[t][P::element_of(r, m)] *= factor;
    }
    if constexpr (T::ON) drop<P>(a, s, kept, a.dropout.factor);
    P::product_out(o, s, sv + at, weights, warp, lane);
    __syncthreads();
  }
  if constexpr (T::ON) {
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) sum[r] = row_sum<P>(sum[r]);
    join_sinks<P>(a, o, most, sum, sq, kv, warp, lane);
  }
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int i = i0 + warp * 16 + P::row(lane, r);
    const float all = T::ON ? sum[r] : row_sum<P>(sum[r]), part = all > 0 ? 1 / all : 0.0f;
    if (a.lse && lane % P::LANES == 0 && i < i1)
      a.lse[((int64_t)b * a.H + h) * a.Tq + i] = all > 0 ? most[r] * 0.6931471805599453f + logf(all) : -INFINITY;
#pragma unroll
    for (int t = 0; t < P::OUT; t++)
#pragma unroll
      for (int m = 0; m < P::EACH; m++) o[t][P::element_of(r, m)] *= part;
  }
  if (a.exclusive.on) exclude<P>(a, o, b, h, kv, i0, warp, lane);
  if constexpr (T::ON) gate_output<P>(a, o, b, h, i0, i1, warp, lane);
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (i < i1 && d < a.D) P::put(a.y, b * a.s_y.b + i * a.s_y.t + h * a.s_y.h + d, o[t][e]);
    }
}

} // namespace wn_cuda

#endif
