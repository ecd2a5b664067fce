// The largest value in a warp or a block, and its index; ties go to the lowest index.
#ifndef WN_BACKENDS_CUDA_BEST_CUH
#define WN_BACKENDS_CUDA_BEST_CUH

#include "backends/cuda/device.cuh"

// The largest of the block's values, and the lowest index that has it.
struct best {
  float value;
  int index;
};
static __device__ __forceinline__ best best_of(best x, best y) {
  return y.value > x.value || (y.value == x.value && y.index < x.index) ? y : x;
}
static __device__ __forceinline__ best warp_best(best x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const best y = {__shfl_xor_sync(~0u, x.value, by), __shfl_xor_sync(~0u, x.index, by)};
    x = best_of(x, y);
  }
  return x;
}
static __device__ __forceinline__ best block_best(best x) {
  WN_SHARED(float, values, [32]);
  WN_SHARED(int, indices, [32]);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int round = 0; round < 2; round++) {
    x = warp_best(x);
    if (round == 1) break;
    __syncthreads();
    if (lane == 0) values[threadIdx.x / 32] = x.value, indices[threadIdx.x / 32] = x.index;
    __syncthreads();
    x = {lane < warps ? values[lane] : -INFINITY, lane < warps ? indices[lane] : INT32_MAX};
  }
  return x;
}

#endif
