/* Attention backward: gradients of q, k, v and F. Each sum is computed by one thread block in one order, so two runs
 * give the same bits. Attention weights are recomputed from lse.
 *
 *   W[i,j] = exp(A[i,j] - lse_i);  dA[i,j] = W[i,j] (dy_i . v_j - delta_i);  delta_i = dy_i . y_i
 *   dv_j = sum_i W[i,j] dy_i;  dF[i,j] = - sum over the group's heads of dA[i,j]
 *   dq_i = scale sum_j G[i,j] k_j;  dk_j = scale sum_i G[i,j] q_i
 *   G = dA, for the selecting head dA + X, times the slope of the score maps (terms.cuh)
 *
 * Kernels: delta, one row per warp (bf16: one row tile per block); dF, one pair of a row tile and a key tile per block,
 * looping over the group's heads; then X (select.cuh); dq, one row tile per block; dk and dv, one key tile per block
 * (backward_keys.cuh), looping over the heads of its key-value head. 14 D operations per pair and head, 18 D with
 * selection. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_BACKWARD_CUH
#define WN_BACKENDS_CUDA_ATTENTION_BACKWARD_CUH

#include "backends/cuda/attention/forward.cuh"
#include "backends/cuda/attention/select.cuh"

namespace wn_cuda {

/* The gradient before a gate, from dy; the gate's own gradient is written, or added to `sum`. */
__device__ __forceinline__ float gate_back(const attention_args &a, float dy, float ungated, int64_t at, int d,
                                           float &sum) {
  const float gate = a.gate.g[at + (a.gate.elementwise ? d : 0)];
  if (a.gate.elementwise && a.gate.dg) a.gate.dg[at + d] = dy * ungated;
  sum = fmaf(dy, ungated, sum);
  return dy * gate;
}

/* Computes delta. With exclusive attention also dy without its part along v, and the projection's gradient of v. With
 * gates also dy before the gates, and the gates' gradients. A warp takes one row of a key-value head and loops over its
 * heads. `given` is the call's y, or y before the gates; what the projection removed from it is restored from `dot`.
 * Grid: rows in eights, key-value heads, sequences. */
template <class P, class T>
__global__ void __launch_bounds__(256) attention_delta(const attention_args a, const void *given) {
  constexpr int EACH = P::WIDTH / 32;
  const int lane = threadIdx.x & 31, i = blockIdx.x * 8 + (threadIdx.x >> 5), kv = blockIdx.y, b = blockIdx.z;
  const int share = a.H / a.Hkv;
  if (i >= a.Tq) return;
  float v[EACH], own[EACH], size = 0;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int d = n * 32 + lane;
    own[n] = 0;
    v[n] = a.exclusive.on && d < a.D ? P::get(a.v, b * a.s_v.b + (i + a.offset) * a.s_v.t + kv * a.s_v.h + d) : 0.0f;
    size = fmaf(v[n], v[n], size);
  }
  const auto sum = [](float x) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) x += __shfl_xor_sync(~0u, x, by);
    return x;
  };
  if (a.exclusive.on) size = sum(size);
  const float norm = size;
  size = fmaxf(size, 1e-30f);
  for (int h = kv * share; h < (kv + 1) * share; h++) {
    const int64_t at = b * a.s_y.b + i * a.s_y.t + h * a.s_y.h, place = ((int64_t)b * a.H + h) * a.Tq + i;
    const float gate = a.exclusive.on && a.exclusive.gate ? a.exclusive.gate[h] : 1.0f;
    const float along = a.exclusive.on ? a.exclusive.dot[place] : 0.0f;
    const bool gated = T::ON && a.gate.on;
    const int64_t own_place = (((int64_t)b * a.Tq + i) * a.H + h) * a.D;
    const int64_t to_gate = gated ? b * a.gate.s_g.b + i * a.gate.s_g.t + h * a.gate.s_g.h : 0;
    float dy[EACH], y[EACH], d_along = 0, delta = 0, by_gate = 0;
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int d = n * 32 + lane;
      dy[n] = d < a.D ? P::get(given, at + d) : 0.0f;
      y[n] =
          d < a.D ? (gated ? a.gate.ungated[own_place + d] : P::get(a.y, at + d)) + gate * along / size * v[n] : 0.0f;
      if constexpr (T::ON)
        if (gated && d < a.D) dy[n] = gate_back(a, dy[n], a.gate.ungated[own_place + d], to_gate, d, by_gate);
      d_along = fmaf(dy[n], v[n], d_along);
    }
    if constexpr (T::ON)
      if (gated) {
        by_gate = sum(by_gate);
        if (lane == 0 && a.gate.dg && !a.gate.elementwise) a.gate.dg[to_gate] = by_gate;
#pragma unroll
        for (int n = 0; n < EACH && !a.exclusive.on; n++)
          if (n * 32 + lane < a.D) P::put(a.mixed, own_place + n * 32 + lane, dy[n]);
      }
    if (a.exclusive.on) {
      d_along = sum(d_along);
#pragma unroll
      for (int n = 0; n < EACH; n++) {
        const int d = n * 32 + lane;
        own[n] -= gate * (d_along * y[n] + along * dy[n]) / size;
        if (norm > 1e-30f) own[n] += 2 * gate * along * d_along / (size * size) * v[n];
        dy[n] -= gate * d_along / size * v[n];
        if (d < a.D) P::put(a.mixed, own_place + d, dy[n]);
      }
      if (lane == 0 && a.exclusive.dgate) a.exclusive.dgate[place] = -along * d_along / size;
    }
#pragma unroll
    for (int n = 0; n < EACH; n++) delta = fmaf(dy[n], y[n], delta);
    delta = sum(delta);
    if (lane == 0) a.delta[place] = delta;
  }
  if (!a.exclusive.on) return;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int d = n * 32 + lane;
    if (d < a.D) a.exclusive.own[(((int64_t)b * a.Tq + i) * a.Hkv + kv) * a.D + d] = own[n];
  }
}

/* lse of row i in base 2. For rows that do not exist or see nothing: +infinity, which makes every attention weight
 * 0. */
__device__ __forceinline__ float log2_sum(const attention_args &a, int b, int h, int i) {
  if (i >= rows_end(a)) return INFINITY;
  const float x = a.lse[((int64_t)b * a.H + h) * a.Tq + i];
  return x == -INFINITY ? INFINITY : x * 1.4426950408889634f;
}
__device__ __forceinline__ float delta_at(const attention_args &a, int b, int h, int i) {
  return i < rows_end(a) ? a.delta[((int64_t)b * a.H + h) * a.Tq + i] : 0.0f;
}

/* Per-head data of the rows of a tile. */
template <class P> struct row_facts {
  int first[P::ROWS];
  float z[P::ROWS], lse[P::ROWS], delta[P::ROWS], slope; /* slope: of ALiBi */
  template <class T>
  __device__ __forceinline__ void load(const attention_args &a, int b, int h, int i0, int warp, int lane) {
    slope = raw_slope<T>(a, h);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) {
      const int i = i0 + warp * 16 + P::row(lane, r), within = min(i, a.Tq - 1);
      first[r] = document(a, b, within + a.offset);
      z[r] = a.span.on ? span_ratio(a, b, h, within) : 0.0f;
      lse[r] = log2_sum(a, b, h, i), delta[r] = delta_at(a, b, h, i);
    }
  }
};

/* x *= y, element by element. */
template <class P> __device__ __forceinline__ void times(float (&x)[P::CHUNKS][4], const float (&y)[P::CHUNKS][4]) {
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) x[t][e] *= y[t][e];
}

/* An attention weight's exponent in base 2, at most 0 but for keys at the ends of spans' ramps. */
template <bool EDGE> __device__ __forceinline__ float weight_exponent(float x) {
  return EDGE ? fminf(x, SPAN_EXPONENT * 1.4426950408889634f) : x;
}

/* dA of a row tile and a key tile, from raw logits s after the product, and dy . v. With terms, dp is replaced by the
 * factor of map_slope. EDGE: as in limited. */
template <class P, class T, bool EDGE>
__device__ __forceinline__ void row_gradients(const attention_args &a, float (&s)[P::CHUNKS][4],
                                              float (&dp)[P::CHUNKS][4], const row_facts<P> &facts, uint32_t seen,
                                              const float *f, int b, int h, int i0, int j0, int warp, int lane) {
  if constexpr (!T::ON) {
    limit_rows<P, T, false, EDGE>(a, s, seen, i0, j0, facts.z, 0, 0, warp, lane);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = P::row_of(e);
        s[t][e] = P::exp2(weight_exponent<EDGE>(s[t][e] - facts.lse[r])) * (dp[t][e] - facts.delta[r]);
      }
  } else {
    map_logits<P, false, false>(a, s, facts.slope, b, 0, i0, j0, warp, lane);
    drop<P>(a, dp, kept_rows<P>(a, b, h, i0, j0, warp, lane), a.dropout.factor);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = P::row_of(e), position = i0 + warp * 16 + P::row(lane, r) + a.offset;
        const float y = s[t][e], x = f ? y + F_of_pair<P, false>(f, t, e, warp, lane) : y;
        const float logit =
            limited<false, EDGE>(a, x, seen >> (4 * t + e) & 1, position, j0 + P::column(lane, t, e), facts.z[r], 0, 0);
        s[t][e] = P::exp2(weight_exponent<EDGE>(logit - facts.lse[r])) * (dp[t][e] - facts.delta[r]);
        dp[t][e] = map_slope(a, y);
      }
  }
}

template <class P> struct dF_room {
  static constexpr int ROWS = P::TILE * P::LD, BYTES = 4 * ROWS * (int)sizeof(typename P::element);
};
/* Computes dF. Grid: key tiles, row tiles of the chunk, groups times sequences. */
template <class P, class T> __global__ void __launch_bounds__(P::THREADS, 1) attention_dF(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = dF_room<P>::ROWS;
  element *sq = reinterpret_cast<element *>(raw), *sdy = sq + ROOM, *sk = sdy + ROOM, *sv = sk + ROOM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.z % a.G, b = blockIdx.z / a.G;
  const int tile = blockIdx.y, i0 = a.row0 + tile * P::TILE, j0 = blockIdx.x * P::TILE;
  const int i1 = min(i0 + P::TILE, rows_end(a));
  const tiles seen = seen_tiles<P::TILE>(a, b, i0, i1);
  if ((int)blockIdx.x > seen.last) return;
  const bool any = (int)blockIdx.x >= seen.first;
  const float *F = F_at<P>(a, b, g, tile, blockIdx.x);
  float sum[P::CHUNKS][4];
  P::start(sum, nullptr, warp, lane);
  const int share = a.H / a.G, per = a.H / a.Hkv;
  for (int h = g * share; any && h < (g + 1) * share; h++) {
    const int kv = h / per;
    stage<P>(sq, static_cast<const element *>(a.q) + b * a.s_q.b + h * a.s_q.h, a.s_q.t, i0, i1, a);
    stage<P>(sdy, static_cast<const element *>(a.dy) + b * a.s_dy.b + h * a.s_dy.h, a.s_dy.t, i0, i1, a);
    if (h == g * share || h % per == 0) { /* the next key-value head */
      stage<P>(sk, static_cast<const element *>(a.k) + b * a.s_k.b + kv * a.s_k.h, a.s_k.t, j0, a.Tk, a);
      stage<P>(sv, static_cast<const element *>(a.v) + b * a.s_v.b + kv * a.s_v.h, a.s_v.t, j0, a.Tk, a);
    }
    wn_copy_commit();
    row_facts<P> facts;
    facts.template load<T>(a, b, h, i0, warp, lane);
    const uint32_t pairs = seen_pairs<P, T, false>(a, b, kv, i0, j0, facts.first, warp, lane);
    float s[P::CHUNKS][4], dp[P::CHUNKS][4];
    start_logits<P, T>(s, F, warp, lane);
    P::start(dp, nullptr, warp, lane);
    wn_copy_wait<0>();
    __syncthreads();
    P::product(s, sq, sk, warp, lane);
    if constexpr (!T::ON) P::finish(s, F, warp, lane);
    P::product(dp, sdy, sv, warp, lane);
    /* The places and distances of pairs are the same for all heads. */
    const int from_i = T::ON ? renewed(i0) : i0, from_j = T::ON ? renewed(j0) : j0;
    const int from_warp = T::ON ? renewed(warp) : warp;
    row_gradients<P, T, false>(a, s, dp, facts, pairs, F, b, h, from_i, from_j, from_warp, lane);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[t][e] -= s[t][e];
    __syncthreads();
  }
  P::store(X_at<P>(a, b, g, tile, blockIdx.x), sum, warp, lane);
}

/* Two tiles that stay, and two more per stage. */
template <class P> struct dq_dkv_room {
  static constexpr int ROWS = P::TILE * P::LD;
  static constexpr int BYTES = (2 + 2 * P::BACK_STAGES) * ROWS * (int)sizeof(typename P::element) + P::WEIGHTS * 4;
};
/* Computes dq. Grid: row tiles of the chunk, heads, sequences. */
template <class P, class T> __global__ void __launch_bounds__(P::THREADS, 1) attention_dq(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = dq_dkv_room<P>::ROWS, ST = P::BACK_STAGES;
  element *sq = reinterpret_cast<element *>(raw), *sdy = sq + ROOM, *sk = sdy + ROOM, *sv = sk + ST * ROOM;
  float *weights = reinterpret_cast<float *>(sv + ST * ROOM);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int kv = h / (a.H / a.Hkv), g = h / (a.H / a.G), i0 = a.row0 + tile * P::TILE;
  const int i1 = min(i0 + P::TILE, rows_end(a));
  const element *k = static_cast<const element *>(a.k) + b * a.s_k.b + kv * a.s_k.h;
  const element *v = static_cast<const element *>(a.v) + b * a.s_v.b + kv * a.s_v.h;
  const bool selects = a.sel.on && a.sel.joins && h % (a.H / a.G) == a.sel.head;
  const float *F = a.sel.on ? F_at<P>(a, b, g, tile, 0) : nullptr;
  const typename P::block *X = selects ? X_at<P>(a, b, g, tile, 0) : nullptr;
  row_facts<P> facts;
  facts.template load<T>(a, b, h, i0, warp, lane);
  float dq[P::OUT][4], dz[P::ROWS];
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) dz[r] = 0;
  clear(dq);
  tiles seen = seen_tiles<P::TILE>(a, b, i0, i1);
  /* the selected keys may lie outside those that this head sees */
  if (selects) seen.first = first_document(a, b, i0, i1) / P::TILE;
  const int count = seen.last - seen.first + 1;
  const auto fetch = [&](int n) {
    const int at = n % ST * ROOM, j0 = (seen.last - n) * P::TILE;
    stage<P>(sk + at, k, a.s_k.t, j0, a.Tk, a);
    stage<P>(sv + at, v, a.s_v.t, j0, a.Tk, a);
  };
  stage<P>(sq, static_cast<const element *>(a.q) + b * a.s_q.b + h * a.s_q.h, a.s_q.t, i0, i1, a);
  stage<P>(sdy, static_cast<const element *>(a.dy) + b * a.s_dy.b + h * a.s_dy.h, a.s_dy.t, i0, i1, a);
  for (int n = 0; n < ST - 1 && n < count; n++) {
    fetch(n);
    wn_copy_commit();
  }
  for (int n = 0; n < count; n++) {
    const int tile_j = seen.last - n, j0 = tile_j * P::TILE, at = n % ST * ROOM;
    if (n + ST - 1 < count) fetch(n + ST - 1);
    wn_copy_commit();
    const float *f = F ? F + (int64_t)tile_j * P::TILE * P::TILE : nullptr;
    const uint32_t pairs = seen_pairs<P, T, false>(a, b, kv, i0, j0, facts.first, warp, lane);
    float s[P::CHUNKS][4], dp[P::CHUNKS][4];
    start_logits<P, T>(s, f, warp, lane);
    P::start(dp, nullptr, warp, lane);
    wn_copy_wait<ST - 1>();
    __syncthreads();
    P::product(s, sq, sk + at, warp, lane);
    if constexpr (!T::ON) P::finish(s, f, warp, lane);
    P::product(dp, sdy, sv + at, warp, lane);
    row_gradients<P, T, true>(a, s, dp, facts, pairs, f, b, h, i0, j0, warp, lane);
    if (a.span.on) {
#pragma unroll
      for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int r = P::row_of(e), x = i0 + warp * 16 + P::row(lane, r) + a.offset - j0 - P::column(lane, t, e);
          const bool edge = span_edge(a, facts.z[r], x);
          const float m = span_factor(a, facts.z[r], x);
          if (edge || (m > 0 && m < 1)) dz[r] += s[t][e] / (edge ? 1.0f : m) * a.span.limit / a.span.ramp;
          if (!(m > 0)) s[t][e] = 0; /* the far edge has no attention weight */
        }
    }
    if (X) P::add(s, X + (int64_t)tile_j * P::BLOCK, warp, lane);
    if constexpr (T::ON) times<P>(s, dp);
    P::product_out(dq, s, sk + at, weights, warp, lane);
    __syncthreads();
  }
  if constexpr (T::ON) sink_dq<P>(a, dq, facts.lse, facts.delta, sq, sdy, kv, warp, lane);
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (a.dq && i < i1 && d < a.D) P::put(a.dq, b * a.s_q.b + i * a.s_q.t + h * a.s_q.h + d, dq[t][e] * a.scale);
    }
  if (!a.span.dz) return;
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int i = i0 + warp * 16 + P::row(lane, r);
    const float all = row_sum<P>(dz[r]);
    if (lane % P::LANES == 0 && i < i1) a.span.dz[((int64_t)b * a.H + h) * a.Tq + i] = span_cut(all);
  }
}

/* Computes delta of bf16 rows as the sum of W (dy . v) over the keys, with the same attention weights and products as
 * the gradients, instead of dy . y with a rounded y. Then a row's G sum to 0 exactly, which matters if keys are alike.
 * 4 D operations per pair and head. Grid: row tiles of the chunk, heads, sequences. */
template <class P, class T>
__global__ void __launch_bounds__(P::THREADS, 1) attention_row_sums(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = dF_room<P>::ROWS;
  element *sq = reinterpret_cast<element *>(raw), *sdy = sq + ROOM, *sk = sdy + ROOM, *sv = sk + ROOM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int kv = h / (a.H / a.Hkv), g = h / (a.H / a.G), i0 = a.row0 + tile * P::TILE;
  const int i1 = min(i0 + P::TILE, rows_end(a));
  const element *k = static_cast<const element *>(a.k) + b * a.s_k.b + kv * a.s_k.h;
  const element *v = static_cast<const element *>(a.v) + b * a.s_v.b + kv * a.s_v.h;
  row_facts<P> facts;
  facts.template load<T>(a, b, h, i0, warp, lane);
  float sum[P::ROWS];
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) sum[r] = 0, facts.delta[r] = 0;
  stage<P>(sq, static_cast<const element *>(a.q) + b * a.s_q.b + h * a.s_q.h, a.s_q.t, i0, i1, a);
  stage<P>(sdy, static_cast<const element *>(a.dy) + b * a.s_dy.b + h * a.s_dy.h, a.s_dy.t, i0, i1, a);
  const tiles seen = seen_tiles<P::TILE>(a, b, i0, i1);
  for (int tile_j = seen.last; tile_j >= seen.first; tile_j--) {
    const int j0 = tile_j * P::TILE;
    stage<P>(sk, k, a.s_k.t, j0, a.Tk, a);
    stage<P>(sv, v, a.s_v.t, j0, a.Tk, a);
    wn_copy_commit();
    const float *F = a.sel.on ? F_at<P>(a, b, g, tile, tile_j) : nullptr;
    const uint32_t pairs = seen_pairs<P, T, false>(a, b, kv, i0, j0, facts.first, warp, lane);
    float s[P::CHUNKS][4], dp[P::CHUNKS][4];
    start_logits<P, T>(s, F, warp, lane);
    P::start(dp, nullptr, warp, lane);
    wn_copy_wait<0>();
    __syncthreads();
    P::product(s, sq, sk, warp, lane);
    if constexpr (!T::ON) P::finish(s, F, warp, lane);
    P::product(dp, sdy, sv, warp, lane);
    row_gradients<P, T, false>(a, s, dp, facts, pairs, F, b, h, i0, j0, warp, lane);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[P::row_of(e)] += s[t][e];
    __syncthreads();
  }
  wn_copy_commit(); /* for rows without any tile */
  wn_copy_wait<0>();
  if constexpr (T::ON) __syncthreads();
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) sum[r] = row_sum<P>(sum[r]);
  if constexpr (T::ON) sink_sums<P>(a, sum, facts.lse, sq, sdy, kv, warp, lane);
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int i = i0 + warp * 16 + P::row(lane, r);
    if (lane % P::LANES == 0 && i < i1) a.delta[((int64_t)b * a.H + h) * a.Tq + i] = sum[r];
  }
}

/* Copies x[B,H,n] to to[b,i,h] with strides. Grid: n in pieces of 256, H, B. */
static __global__ void __launch_bounds__(256) attention_spread(const float *x, float *to, stride s, int H, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  if (i < n) to[b * s.b + i * s.t + h * s.h] = x[((int64_t)b * H + h) * n + i];
}

} // namespace wn_cuda

#endif
