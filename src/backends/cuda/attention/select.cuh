/* The selection (arXiv 2410.02703, §3.2): F, and in backward the gradient of the selecting logits.
 *
 *   S[i,j] = strength relu(L[i,j]) where row i may select key j;  F[i,j] = sum of S[i',j] over i' < i
 *   dS[i,j] = sum of dF[i',j] over i' > i;  X[i,j] = strength dS[i,j] where the ReLU is active
 *
 * L are the selecting head's logits: scale q0_i . k0_j after score maps.
 *
 * A block has one key tile and loops over the row tiles, in forward from the first, in backward from the last. Tiles
 * are transposed (a warp's rows are keys), so that sums run along a lane's chunks. Every sum is computed by one block
 * in one order. Sums over rows and F are floats; X is in blocks of the rows' type (floats.cuh, bf16.cuh). 2 D
 * operations per pair. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SELECT_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SELECT_CUH

#include "backends/cuda/attention/forward.cuh"

namespace wn_cuda {

template <class P> struct select_room {
  static constexpr int ROWS = P::TILE * P::LD;
  static constexpr int BYTES = (1 + P::STAGES) * ROWS * (int)sizeof(typename P::element);
};

/* Prefix sums along the columns of a transposed tile: an element becomes the sum of those before it (BACK: after it),
 * with `own` including itself; total[r] is the sum of all columns. */
template <class P, bool BACK>
__device__ __forceinline__ void column_sums(float (&s)[P::CHUNKS][4], float (&total)[P::ROWS], bool own, int lane) {
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    float before = 0;
#pragma unroll
    for (int step = 0; step < P::CHUNKS; step++) {
      const int t = BACK ? P::CHUNKS - 1 - step : step;
      const int e0 = P::element_of(r, BACK ? P::EACH - 1 : 0), e1 = P::element_of(r, BACK ? 0 : P::EACH - 1);
      const float x0 = s[t][e0], x1 = s[t][e1];
      float x = P::EACH == 2 ? x0 + x1 : x0;
#pragma unroll
      for (int by = 1; by < P::LANES; by *= 2) {
        const float y = BACK ? __shfl_down_sync(~0u, x, by, P::LANES) : __shfl_up_sync(~0u, x, by, P::LANES);
        const bool there = BACK ? lane % P::LANES + by < P::LANES : lane % P::LANES >= by;
        if (there) x += y;
      }
      const float here = BACK ? __shfl_down_sync(~0u, x, 1, P::LANES) : __shfl_up_sync(~0u, x, 1, P::LANES);
      const bool edge = lane % P::LANES == (BACK ? P::LANES - 1 : 0);
      const float start = edge ? before : before + here;
      if (P::EACH == 2) s[t][e1] = own ? start + (x0 + x1) : start + x0;
      s[t][e0] = own ? start + x0 : start;
      before += __shfl_sync(~0u, x, BACK ? 0 : P::LANES - 1, P::LANES);
    }
    total[r] = before;
  }
}

/* What the rows of a transposed tile of raw logits select, in raw units; 0 where a row may not select. */
template <class P>
__device__ __forceinline__ void selections(const attention_args &a, float (&s)[P::CHUNKS][4], float strength, int b,
                                           int g, int i0, int j0, int warp, int lane) {
  const bool whole = j0 + P::TILE - 1 < i0 + a.offset && j0 > 0 && i0 + P::TILE <= rows_end(a) && !a.doc_start && !a.at;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float x = a.sel.relu ? fmaxf(s[t][e], 0.0f) : s[t][e];
      const int i = i0 + P::column(lane, t, e), position = i + a.offset,
                j = j0 + warp * 16 + P::row(lane, P::row_of(e));
      const bool may = whole || (i < rows_end(a) && may_select(a, b, g, position, document(a, b, position), j));
      s[t][e] = may ? strength * x : 0.0f;
    }
}

__device__ __forceinline__ int selecting_head(const attention_args &a, int g) {
  return g * (a.H / a.G) + a.sel.head;
}
/* The first tile of the chunk with rows that reach key j0. */
template <class P> __device__ __forceinline__ int first_tile(const attention_args &a, int j0) {
  const int i = max(j0 - a.offset - a.row0, 0);
  return i / P::TILE;
}

/* Grid: key tiles, groups, sequences. */
template <class P, class T> __global__ void __launch_bounds__(P::THREADS, 1) attention_select(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  constexpr int ROOM = select_room<P>::ROWS;
  element *sk = reinterpret_cast<element *>(raw), *sq = sk + ROOM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.y, b = blockIdx.z;
  const int j0 = blockIdx.x * P::TILE, first = first_tile<P>(a, j0), count = a.row_tiles - first;
  const element *q = static_cast<const element *>(a.sel.q) + b * a.sel.s_q.b + g * a.sel.s_q.h;
  const float strength = a.sel.strength ? a.sel.strength[g] : 1.0f;
  const float slope = raw_slope<T>(a, selecting_head(a, g));
  const int64_t carry = (((int64_t)b * a.G + g) * a.key_tiles + blockIdx.x) * P::TILE + warp * 16;
  float run[P::ROWS];
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int j = j0 + warp * 16 + P::row(lane, r);
    run[r] = 0;
    if (a.carry_in)
      run[r] = a.carry_in[carry + P::row(lane, r)];
    else if (a.sel.f_in && j < a.Tk)
      run[r] = a.sel.f_in[((int64_t)b * a.G + g) * a.sel.f_stride + j] / a.scale;
  }
  stage<P>(sk, static_cast<const element *>(a.sel.k) + b * a.sel.s_k.b + g * a.sel.s_k.h, a.sel.s_k.t, j0, a.Tk, a);
  const auto fetch = [&](int n) {
    stage<P>(sq + n % P::STAGES * ROOM, q, a.sel.s_q.t, a.row0 + (first + n) * P::TILE, rows_end(a), a);
  };
  for (int n = 0; n < P::STAGES - 1 && n < count; n++) {
    fetch(n);
    wn_copy_commit();
  }
  for (int n = 0; n < count; n++) {
    const int i0 = a.row0 + (first + n) * P::TILE;
    if (n + P::STAGES - 1 < count) fetch(n + P::STAGES - 1);
    wn_copy_commit();
    float s[P::CHUNKS][4], total[P::ROWS];
    P::start_turned(s, nullptr, warp, lane);
    wn_copy_wait<P::STAGES - 1>();
    __syncthreads();
    P::product(s, sk, sq + n % P::STAGES * ROOM, warp, lane);
    if constexpr (T::ON)
      if (a.sel.joins) map_logits<P, true, true>(a, s, slope, b, g, i0, j0, warp, lane);
    selections<P>(a, s, strength, b, g, i0, j0, warp, lane);
    column_sums<P, false>(s, total, !a.sel.shift, lane); /* without the shift a row sees its own selections */
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[t][e] = -(run[P::row_of(e)] + s[t][e]);
    if (a.F) P::store_F_turned(F_at<P>(a, b, g, first + n, blockIdx.x), s, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) run[r] += total[r];
    __syncthreads();
  }
  wn_copy_commit(); /* for keys that no row of the chunk reaches */
  wn_copy_wait<0>();
  if (lane % P::LANES) return;
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const int j = j0 + warp * 16 + P::row(lane, r);
    if (a.carry_out) a.carry_out[carry + P::row(lane, r)] = run[r];
    if (a.sel.f_out && a.last_rows && j < a.Tk)
      a.sel.f_out[((int64_t)b * a.G + g) * a.sel.f_stride + j] = run[r] * a.scale;
  }
}

/* M[b,g,i] = (i + 1 - its document's start) - sum_j min(F[i,j], tau) / tau. One warp per row. Grid: rows of the chunk
 * in eights, groups, sequences. */
template <class P> __global__ void __launch_bounds__(256) attention_memory(const attention_args a) {
  const int lane = threadIdx.x & 31, g = blockIdx.y, b = blockIdx.z;
  const int row = blockIdx.x * 8 + (threadIdx.x >> 5), i = a.row0 + row, position = i + a.offset;
  if (i >= rows_end(a)) return;
  const int first = document(a, b, position);
  const float *F = F_at<P>(a, b, g, row / P::TILE, 0) + row % P::TILE * P::TILE;
  float sum = 0;
  for (int j = first + lane; j <= position; j += 32) {
    const float f = -a.scale * F[(int64_t)(j / P::TILE) * P::TILE * P::TILE + j % P::TILE];
    sum += fminf(f, a.sel.tau) / a.sel.tau;
  }
#pragma unroll
  for (int by = 1; by < 32; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (lane == 0) a.sel.M[((int64_t)b * a.G + g) * a.Tq + i] = (float)(position + 1 - first) - sum;
}

/* Replaces dF by X. Grid: as for attention_select. */
template <class P, class T>
__global__ void __launch_bounds__(P::THREADS, 1) attention_select_back(const attention_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  WN_SHARED(float, parts, [P::WARPS]);
  constexpr int ROOM = select_room<P>::ROWS;
  element *sk = reinterpret_cast<element *>(raw), *sq = sk + ROOM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.y, b = blockIdx.z;
  const int j0 = blockIdx.x * P::TILE, first = first_tile<P>(a, j0), count = a.row_tiles - first;
  const element *q = static_cast<const element *>(a.sel.q) + b * a.sel.s_q.b + g * a.sel.s_q.h;
  const float strength = a.sel.strength ? a.sel.strength[g] : 1.0f;
  const float slope = raw_slope<T>(a, selecting_head(a, g));
  const int64_t carry = (((int64_t)b * a.G + g) * a.key_tiles + blockIdx.x) * P::TILE + warp * 16;
  float run[P::ROWS], by_strength = 0;
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) run[r] = a.last_rows ? 0.0f : a.back[carry + P::row(lane, r)];
  stage<P>(sk, static_cast<const element *>(a.sel.k) + b * a.sel.s_k.b + g * a.sel.s_k.h, a.sel.s_k.t, j0, a.Tk, a);
  const auto fetch = [&](int n) {
    stage<P>(sq + n % P::STAGES * ROOM, q, a.sel.s_q.t, a.row0 + (a.row_tiles - 1 - n) * P::TILE, rows_end(a), a);
  };
  for (int n = 0; n < P::STAGES - 1 && n < count; n++) {
    fetch(n);
    wn_copy_commit();
  }
  for (int n = 0; n < count; n++) {
    const int tile = a.row_tiles - 1 - n, i0 = a.row0 + tile * P::TILE;
    if (n + P::STAGES - 1 < count) fetch(n + P::STAGES - 1);
    wn_copy_commit();
    float s[P::CHUNKS][4], d[P::CHUNKS][4], total[P::ROWS];
    typename P::block *x = X_at<P>(a, b, g, tile, blockIdx.x);
    P::start_turned(d, nullptr, warp, lane);
    P::add_turned(d, x, warp, lane);
    P::start_turned(s, nullptr, warp, lane);
    wn_copy_wait<P::STAGES - 1>();
    __syncthreads();
    P::product(s, sk, sq + n % P::STAGES * ROOM, warp, lane);
    if constexpr (T::ON)
      if (a.sel.joins) map_logits<P, true, false>(a, s, slope, b, g, i0, j0, warp, lane);
    if (a.sel.dM) { /* adds L_mem's part of dF */
      float f[P::CHUNKS][4];
      P::start_turned(f, nullptr, warp, lane);
      P::add_F_turned(f, F_at<P>(a, b, g, tile, blockIdx.x), warp, lane);
#pragma unroll
      for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int i = i0 + P::column(lane, t, e);
          if (i < rows_end(a) && -a.scale * f[t][e] < a.sel.tau)
            d[t][e] -= a.sel.dM[((int64_t)b * a.G + g) * a.Tq + i] / a.sel.tau;
        }
    }
    const bool whole = j0 + P::TILE - 1 < i0 + a.offset && j0 > 0 && i0 + P::TILE <= rows_end(a) && !a.doc_start;
    uint32_t active = 0; /* bit 4 t + e: the row may select the key, and does */
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int i = i0 + P::column(lane, t, e), j = j0 + warp * 16 + P::row(lane, P::row_of(e)),
                  position = i + a.offset;
        bool may = true;
        if (!whole) {
          const int start = document(a, b, position);
          if (i >= rows_end(a) || j > position || j < start) d[t][e] = 0; /* pairs that do not exist */
          may = i < rows_end(a) && may_select(a, b, g, position, start, j);
        }
        if (may && (!a.sel.relu || s[t][e] > 0)) active |= 1u << (4 * t + e);
      }
    column_sums<P, true>(d, total, !a.sel.shift, lane);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float down = run[P::row_of(e)] + d[t][e];
        const bool on = active >> (4 * t + e) & 1;
        if (on) by_strength = fmaf(down, s[t][e], by_strength);
        d[t][e] = on ? strength * down : 0.0f;
      }
    P::store_turned(x, d, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) run[r] += total[r];
    __syncthreads();
  }
  wn_copy_commit(); /* for keys that no row of the chunk reaches */
  wn_copy_wait<0>();
  if (lane % P::LANES == 0)
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) a.back[carry + P::row(lane, r)] = run[r];
  if (!a.sel.dstrength) return;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) by_strength += __shfl_xor_sync(~0u, by_strength, by);
  if (lane == 0) parts[warp] = by_strength;
  __syncthreads();
  if (threadIdx.x) return;
  float sum = 0;
  for (int w = 0; w < P::WARPS; w++) sum += parts[w];
  float *to = a.sel.dstrength + ((int64_t)b * a.G + g) * a.key_tiles + blockIdx.x;
  *to = a.last_rows ? a.scale * sum : *to + a.scale * sum;
}

} // namespace wn_cuda

#endif
