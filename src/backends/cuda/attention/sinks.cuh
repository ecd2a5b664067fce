/* Learned sinks in the fused kernels: n keys and values per key-value head that every row sees, without masks and maps.
 * Softmax off by one is a sink of zeros. They are processed after a row's keys: 4 D operations per row and sink,
 * backward 8 D. dk and dv take another 8 D and are summed over rows: each block sums one part, and a second kernel adds
 * the parts in a fixed order. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SINKS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SINKS_CUH

#include "backends/cuda/attention/terms.cuh"

namespace wn_cuda {

enum { SINK_ROWS = 256 }; /* rows in a part */

/* Dot products of a lane's rows in shared memory with a row of floats: x[r], the same in all lanes of a row. */
template <class P>
__device__ __forceinline__ void rows_times(float (&x)[P::ROWS], const typename P::element *rows, const float *y, int D,
                                           int warp, int lane) {
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    x[r] = 0;
#pragma unroll 1
    for (int d = lane % P::LANES; d < D; d += P::LANES)
      x[r] = fmaf(P::get(rows, (warp * 16 + P::row(lane, r)) * P::LD + d), y[d], x[r]);
#pragma unroll
    for (int by = 1; by < P::LANES; by *= 2) x[r] += __shfl_xor_sync(~0u, x[r], by);
  }
}
/* o[rows of the lane] = by[r] o + add[r] y, for a row y of floats. */
template <class P>
__device__ __forceinline__ void mix_row(float (&o)[P::OUT][4], const float (&by)[P::ROWS], const float (&add)[P::ROWS],
                                        const float *y, int D, int lane) {
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int d = P::out_column(lane, t, e), r = P::row_of(e);
      o[t][e] = fmaf(add[r], d < D ? y[d] : 0.0f, by[r] * o[t][e]);
    }
}

/* Forward: adds the learned sinks to rows whose keys are already in `most`, `sum` (of all lanes of a row) and o. */
template <class P>
__device__ __forceinline__ void join_sinks(const attention_args &a, float (&o)[P::OUT][4], float (&most)[P::ROWS],
                                           float (&sum)[P::ROWS], const typename P::element *sq, int kv, int warp,
                                           int lane) {
#pragma unroll 1
  for (int k = 0; k < a.sinks.n; k++) {
    const int64_t at = ((int64_t)kv * a.sinks.n + k) * a.D;
    float x[P::ROWS], by[P::ROWS];
    rows_times<P>(x, sq, a.sinks.k + at, a.D, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) {
      x[r] *= a.to_log2;
      const float top = fmaxf(most[r], x[r]);
      by[r] = P::exp2(most[r] - top), x[r] = P::exp2(x[r] - top);
      sum[r] = fmaf(sum[r], by[r], x[r]), most[r] = top;
    }
    mix_row<P>(o, by, x, a.sinks.v + at, a.D, lane);
  }
}
/* The attention weights that rows give sink k, and their gradients: products with dy. */
template <class P>
__device__ __forceinline__ void sink_weights(const attention_args &a, float (&w)[P::ROWS], float (&dw)[P::ROWS],
                                             const float (&lse)[P::ROWS], const typename P::element *sq,
                                             const typename P::element *sdy, int64_t at, int warp, int lane) {
  rows_times<P>(w, sq, a.sinks.k + at, a.D, warp, lane);
  rows_times<P>(dw, sdy, a.sinks.v + at, a.D, warp, lane);
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) w[r] = P::exp2(w[r] * a.to_log2 - lse[r]);
}
/* Adds the learned sinks' share to a row's sum of W dW. */
template <class P>
__device__ __forceinline__ void sink_sums(const attention_args &a, float (&sum)[P::ROWS], const float (&lse)[P::ROWS],
                                          const typename P::element *sq, const typename P::element *sdy, int kv,
                                          int warp, int lane) {
#pragma unroll 1
  for (int k = 0; k < a.sinks.n; k++) {
    float w[P::ROWS], dw[P::ROWS];
    sink_weights<P>(a, w, dw, lse, sq, sdy, ((int64_t)kv * a.sinks.n + k) * a.D, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) sum[r] = fmaf(w[r], dw[r], sum[r]);
  }
}
/* Adds the learned sinks' share to dq. */
template <class P>
__device__ __forceinline__ void sink_dq(const attention_args &a, float (&dq)[P::OUT][4], const float (&lse)[P::ROWS],
                                        const float (&delta)[P::ROWS], const typename P::element *sq,
                                        const typename P::element *sdy, int kv, int warp, int lane) {
#pragma unroll 1
  for (int k = 0; k < a.sinks.n; k++) {
    const int64_t at = ((int64_t)kv * a.sinks.n + k) * a.D;
    float w[P::ROWS], dw[P::ROWS], one[P::ROWS];
    sink_weights<P>(a, w, dw, lse, sq, sdy, at, warp, lane);
#pragma unroll
    for (int r = 0; r < P::ROWS; r++) w[r] *= dw[r] - delta[r], one[r] = 1;
    mix_row<P>(dq, one, w, a.sinks.k + at, a.D, lane);
  }
}

/* Partial sums of dk and dv. A warp takes every fourth pair of a row and a head of the key-value head. The chunk has
 * all rows. Grid: parts, learned sinks, key-value heads. */
template <class P> __global__ void __launch_bounds__(128) attention_sinks_back(const attention_args a) {
  constexpr int EACH = P::WIDTH / 32;
  WN_SHARED(float, all, [2][4][P::WIDTH]);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k = blockIdx.y, kv = blockIdx.z, share = a.H / a.Hkv;
  const int64_t at = ((int64_t)kv * a.sinks.n + k) * a.D, rows = (int64_t)a.B * a.Tq * share;
  const int64_t first = (int64_t)blockIdx.x * SINK_ROWS, end = min(first + SINK_ROWS, rows);
  float key[EACH], value[EACH], dk[EACH], dv[EACH];
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int d = n * 32 + lane;
    key[n] = d < a.D ? a.sinks.k[at + d] : 0.0f, value[n] = d < a.D ? a.sinks.v[at + d] : 0.0f;
    dk[n] = dv[n] = 0;
  }
  for (int64_t row = first + warp; row < end; row += 4) {
    const int h = kv * share + (int)(row % share), i = (int)(row / share % a.Tq), b = (int)(row / share / a.Tq);
    const int64_t from_q = b * a.s_q.b + i * a.s_q.t + h * a.s_q.h,
                  from_dy = b * a.s_dy.b + i * a.s_dy.t + h * a.s_dy.h;
    float q[EACH], dy[EACH], x = 0, dw = 0;
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int d = n * 32 + lane;
      q[n] = d < a.D ? P::get(a.q, from_q + d) : 0.0f, dy[n] = d < a.D ? P::get(a.dy, from_dy + d) : 0.0f;
      x = fmaf(q[n], key[n], x), dw = fmaf(dy[n], value[n], dw);
    }
    x = wn_warp_sum(x), dw = wn_warp_sum(dw);
    const int64_t place = ((int64_t)b * a.H + h) * a.Tq + i;
    const float w = exp2f(x * a.to_log2 - a.lse[place] * 1.4426950408889634f), d = w * (dw - a.delta[place]);
#pragma unroll
    for (int n = 0; n < EACH; n++) dk[n] = fmaf(d, q[n], dk[n]), dv[n] = fmaf(w, dy[n], dv[n]);
  }
#pragma unroll
  for (int n = 0; n < EACH; n++) all[0][warp][n * 32 + lane] = dk[n], all[1][warp][n * 32 + lane] = dv[n];
  __syncthreads();
  const int64_t count = (int64_t)a.Hkv * a.sinks.n * a.D;
  for (int n = threadIdx.x; n < 2 * a.D; n += 128) {
    const int which = n / a.D, d = n % a.D;
    const float sum = (all[which][0][d] + all[which][1][d]) + (all[which][2][d] + all[which][3][d]);
    a.sinks.parts[(which * count + at + d) * gridDim.x + blockIdx.x] = which ? sum : a.scale * sum;
  }
}

} // namespace wn_cuda

#endif
