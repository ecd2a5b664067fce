/* Attention backward for a bilinear selection: dsq = scale X SK, one row tile per block; dsk = scale X^T SQ, one key
 * tile per block. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_BILINEAR_CUH
#define WN_BACKENDS_CUDA_ATTENTION_BILINEAR_CUH

#include "backends/cuda/attention/backward.cuh"

namespace wn_cuda {

template <class P> __global__ void __launch_bounds__(P::THREADS, 1) attention_dsq(const attention_args a, void *dsq) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  element *sk = reinterpret_cast<element *>(raw);
  float *weights = reinterpret_cast<float *>(sk + dF_room<P>::ROWS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.y, b = blockIdx.z;
  const int tile = blockIdx.x, i0 = a.row0 + tile * P::TILE, i1 = min(i0 + P::TILE, rows_end(a));
  float to[P::OUT][4];
  clear(to);
  for (int n = 0; n <= (i1 - 1 + a.offset) / P::TILE; n++) {
    float s[P::CHUNKS][4];
    P::start(s, nullptr, warp, lane);
    P::add(s, X_at<P>(a, b, g, tile, n), warp, lane);
    stage<P>(sk, static_cast<const element *>(a.sel.k) + b * a.sel.s_k.b + g * a.sel.s_k.h, a.sel.s_k.t, n * P::TILE,
             a.Tk, a);
    wn_copy_commit();
    wn_copy_wait<0>();
    __syncthreads();
    P::product_out(to, s, sk, weights, warp, lane);
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (i < i1 && d < a.D) P::put(dsq, b * a.sel.s_q.b + i * a.sel.s_q.t + g * a.sel.s_q.h + d, to[t][e] * a.scale);
    }
}
template <class P> __global__ void __launch_bounds__(P::THREADS, 1) attention_dsk(const attention_args a, void *dsk) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  element *sq = reinterpret_cast<element *>(raw);
  float *weights = reinterpret_cast<float *>(sq + dF_room<P>::ROWS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.y, b = blockIdx.z;
  const int j0 = blockIdx.x * P::TILE;
  float to[P::OUT][4];
  clear(to);
  for (int n = first_tile<P>(a, j0); n < a.row_tiles; n++) {
    float s[P::CHUNKS][4];
    P::start(s, nullptr, warp, lane);
    P::add_turned(s, X_at<P>(a, b, g, n, blockIdx.x), warp, lane);
    stage<P>(sq, static_cast<const element *>(a.sel.q) + b * a.sel.s_q.b + g * a.sel.s_q.h, a.sel.s_q.t,
             a.row0 + n * P::TILE, rows_end(a), a);
    wn_copy_commit();
    wn_copy_wait<0>();
    __syncthreads();
    P::product_out(to, s, sq, weights, warp, lane);
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int j = j0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (j >= a.Tk || j < a.dk_from || d >= a.D) continue;
      const int64_t at = b * a.sel.s_k.b + j * a.sel.s_k.t + g * a.sel.s_k.h + d;
      const float x = to[t][e] * a.scale;
      P::put(dsk, at, a.last_rows ? x : P::get(dsk, at) + x); /* later chunks were processed before */
    }
}

} // namespace wn_cuda

#endif
