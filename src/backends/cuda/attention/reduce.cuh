/* Sums a head's numbers over rows, for gradients of per-head parameters. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_REDUCE_CUH
#define WN_BACKENDS_CUDA_ATTENTION_REDUCE_CUH

#include "backends/cuda/device.cuh"

namespace wn_cuda {

/* to[h stride] += the sum of x[B,H,n] over b and n, in an order that depends only on B and n. Grid: H. */
static __global__ void __launch_bounds__(256)
    attention_reduce(const float *x, float *to, int64_t to_stride, int B, int H, int n) {
  WN_SHARED(float, parts, [256]);
  const int h = blockIdx.x;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < (int64_t)B * n; i += 256) sum += x[(i / n * H + h) * n + i % n];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int by = 128; by > 0; by /= 2) {
    if ((int)threadIdx.x < by) parts[threadIdx.x] += parts[threadIdx.x + by];
    __syncthreads();
  }
  if (threadIdx.x == 0) to[h * to_stride] += parts[0];
}

} // namespace wn_cuda

#endif
