/* Attention backward by tiles of keys: dk and dv (backward.cuh has the equations). */
#ifndef WN_BACKENDS_CUDA_ATTENTION_BACKWARD_KEYS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_BACKWARD_KEYS_CUH

#include "backends/cuda/attention/backward.cuh"

namespace wn_cuda {

/* seen_pairs for a transposed tile. */
template <class P, class T>
__device__ __forceinline__ uint32_t seen_turned(const attention_args &a, int b, int kv, int i0, int j0, int warp,
                                                int lane) {
  if (j0 + P::TILE - 1 <= i0 + a.offset && !has_rules<T>(a)) return ~0u;
  uint32_t seen = 0;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int n = 0; n < P::EACH; n++) {
      const int position = i0 + P::column(lane, t, n) + a.offset, first = document(a, b, position);
#pragma unroll
      for (int r = 0; r < P::ROWS; r++) {
        const int j = j0 + warp * 16 + P::row(lane, r);
        if (j < a.Tk && sees<T, false>(a, b, kv, position, first, j)) seen |= 1u << (4 * t + P::element_of(r, n));
      }
    }
  return seen;
}

/* Turns raw logits of a transposed tile into attention weights. */
template <class P>
__device__ __forceinline__ void turned_weights(const attention_args &a, float (&s)[P::CHUNKS][4], uint32_t seen, int b,
                                               int h, int i0, int j0, int warp, int lane) {
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int n = 0; n < P::EACH; n++) {
      const int i = i0 + P::column(lane, t, n);
      const float lse = log2_sum(a, b, h, i), z = a.span.on ? span_ratio(a, b, h, min(i, a.Tq - 1)) : 0.0f;
#pragma unroll
      for (int r = 0; r < P::ROWS; r++) {
        const int e = P::element_of(r, n);
        float x = seen >> (4 * t + e) & 1 ? s[t][e] * a.to_log2 - lse : -INFINITY;
        if (a.span.on) {
          const float m = span_factor(a, z, i + a.offset - j0 - warp * 16 - P::row(lane, r));
          x = m > 0 ? x + (m < 1 ? log2f(m) : 0.0f) : -INFINITY;
        }
        s[t][e] = P::exp2(x);
      }
    }
}

/* With terms: attention weights of a transposed tile that dropout drops get a minus sign; product_out then treats them
 * as 0. */
template <class P>
__device__ __forceinline__ void mark_dropped(const attention_args &a, float (&s)[P::CHUNKS][4], uint32_t kept) {
  if (!(a.dropout.limit > 0)) return;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[t][e] = kept >> (4 * t + e) & 1 ? s[t][e] : -s[t][e];
}
/* dA from such an attention weight. */
__device__ __forceinline__ float marked_gradient(const attention_args &a, float w, float dp, float delta) {
  return fabsf(w) * ((w < 0 ? 0.0f : a.dropout.factor * dp) - delta);
}
/* Multiplies gradients by the slope of the score maps, given the mapped logits y. */
template <class P>
__device__ __forceinline__ void bend(const attention_args &a, float (&s)[P::CHUNKS][4],
                                     const float (&y)[P::CHUNKS][4]) {
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[t][e] *= map_slope(a, y[t][e]);
}

/* Computes dk and dv. Grid: key tiles, key-value heads, sequences. */
template <class P, class T> __global__ void __launch_bounds__(P::THREADS, 1) attention_dkv(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = dq_dkv_room<P>::ROWS, ST = P::BACK_STAGES;
  element *sk = reinterpret_cast<element *>(raw), *sv = sk + ROOM, *sq = sv + ROOM, *sdy = sq + ST * ROOM;
  float *weights = reinterpret_cast<float *>(sdy + ST * ROOM);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kv = blockIdx.y, b = blockIdx.z;
  const int j0 = blockIdx.x * P::TILE, share = a.H / a.Hkv, first = first_tile<P>(a, j0);
  int end = a.row_tiles; /* row tiles first to end - 1; rows that select may lie beyond the window (keep rule) */
  if (a.window > 0 && !a.sel.on) {
    const int64_t last = (int64_t)j0 + P::TILE - 2 + a.window - a.offset - a.row0;
    end = last < 0 ? 0 : (int)min((int64_t)end, last / P::TILE + 1);
  }
  const int tiles_each = end - first, count = tiles_each > 0 ? share * tiles_each : 0;
  const auto head_of = [&](int n) { return kv * share + n / tiles_each; };
  const auto fetch = [&](int n) {
    const int h = head_of(n), i0 = a.row0 + (first + n % tiles_each) * P::TILE, at = n % ST * ROOM;
    stage<P>(sq + at, static_cast<const element *>(a.q) + b * a.s_q.b + h * a.s_q.h, a.s_q.t, i0, rows_end(a), a);
    stage<P>(sdy + at, static_cast<const element *>(a.dy) + b * a.s_dy.b + h * a.s_dy.h, a.s_dy.t, i0, rows_end(a), a);
  };
  float dk[P::OUT][4], dv[P::OUT][4], slope = 0;
  clear(dk), clear(dv);
  stage<P>(sk, static_cast<const element *>(a.k) + b * a.s_k.b + kv * a.s_k.h, a.s_k.t, j0, a.Tk, a);
  stage<P>(sv, static_cast<const element *>(a.v) + b * a.s_v.b + kv * a.s_v.h, a.s_v.t, j0, a.Tk, a);
  for (int n = 0; n < ST - 1 && n < count; n++) {
    fetch(n);
    wn_copy_commit();
  }
  for (int n = 0; n < count; n++) {
    const int h = head_of(n), g = h / (a.H / a.G), tile = first + n % tiles_each, i0 = a.row0 + tile * P::TILE;
    const int at = n % ST * ROOM;
    if (n + ST - 1 < count) fetch(n + ST - 1);
    wn_copy_commit();
    const float *F = a.sel.on ? F_at<P>(a, b, g, tile, blockIdx.x) : nullptr;
    const bool selects = a.sel.on && a.sel.joins && h % (a.H / a.G) == a.sel.head;
    const uint32_t pairs = seen_turned<P, T>(a, b, kv, i0, j0, warp, lane);
    uint32_t kept = 0;
    if constexpr (T::ON) {
      if (n % tiles_each == 0) slope = raw_slope<T>(a, h); /* the next head */
      kept = kept_keys<P>(a, b, h, i0, j0, warp, lane);
    }
    float s[P::CHUNKS][4], dp[P::CHUNKS][4];
    P::start_turned(s, T::ON ? nullptr : F, warp, lane);
    wn_copy_wait<ST - 1>();
    __syncthreads();
    P::product(s, sk, sq + at, warp, lane);
    if constexpr (T::ON) {
      map_logits<P, true, false>(a, s, slope, b, kv, i0, j0, warp, lane);
      if (F) P::add_F_turned(s, F, warp, lane);
    } else {
      P::finish_turned(s, F, warp, lane);
    }
    turned_weights<P>(a, s, pairs, b, h, i0, j0, warp, lane);
    if constexpr (T::ON) mark_dropped<P>(a, s, kept);
    P::template product_out<T::ON>(dv, s, sdy + at, weights, warp, lane);
    P::start_turned(dp, nullptr, warp, lane);
    P::product(dp, sv, sdy + at, warp, lane); /* only now, to save registers */
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int m = 0; m < P::EACH; m++) {
        const float delta = delta_at(a, b, h, i0 + P::column(lane, t, m));
#pragma unroll
        for (int r = 0; r < P::ROWS; r++) {
          const int e = P::element_of(r, m);
          if constexpr (T::ON)
            s[t][e] = marked_gradient(a, s[t][e], dp[t][e], delta);
          else
            s[t][e] *= dp[t][e] - delta;
        }
      }
    if (selects) P::add_turned(s, X_at<P>(a, b, g, tile, blockIdx.x), warp, lane);
    if constexpr (T::ON)
      if (a.map.cap > 0) { /* recomputes the logits: there are not enough registers to keep them */
        P::start_turned(dp, nullptr, warp, lane);
        P::product(dp, sk, sq + at, warp, lane);
        map_logits<P, true, false>(a, dp, slope, b, kv, i0, j0, warp, lane);
        bend<P>(a, s, dp);
      }
    P::product_out(dk, s, sq + at, weights, warp, lane);
    __syncthreads();
  }
  wn_copy_commit(); /* for keys that no row reaches */
  wn_copy_wait<0>();
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int j = j0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (j >= a.Tk || j < a.dk_from || d >= a.D) continue;
      float x = dk[t][e] * a.scale, y = dv[t][e];
      if (T::ON && a.dropout.limit > 0) y *= a.dropout.factor;
      if (a.sums) {
        float *sum = a.sums + (((int64_t)b * a.Tk + j) * a.Hkv + kv) * a.D + d;
        const int64_t all = (int64_t)gridDim.z * a.Tk * a.Hkv * a.D;
        if (!a.last_rows) x += sum[0], y += sum[all];
        sum[0] = x, sum[all] = y;
      }
      if (!a.first_rows) continue;
      if (a.exclusive.on && j >= a.offset)
        y += a.exclusive.own[(((int64_t)b * a.Tq + j - a.offset) * a.Hkv + kv) * a.D + d];
      if (a.dk) P::put(a.dk, b * a.s_k.b + j * a.s_k.t + kv * a.s_k.h + d, x);
      if (a.dv) P::put(a.dv, b * a.s_v.b + j * a.s_v.t + kv * a.s_v.h + d, y);
    }
}

} // namespace wn_cuda

#endif
