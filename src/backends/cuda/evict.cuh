// Chooses the token to evict by the rule of ops/evict.h: the best of a block's tokens, with two barriers.
#ifndef WN_BACKENDS_CUDA_EVICT_CUH
#define WN_BACKENDS_CUDA_EVICT_CUH

#include <string.h>
#include "backends/cuda/launch.cuh"

// Compared by merit, then by place; the larger is evicted first. merit: from the score if the token may go; else 2 for
// a recent token, 1 for a sink or a pinned token, 0 for none. place: larger for older tokens.
struct evict_choice {
  uint64_t merit, place;
  __device__ __forceinline__ uint32_t index() const { return (uint32_t)place; }
};
static __device__ __forceinline__ evict_choice evict_none() {
  return {0, 0};
}

// The choice for the token at position `at` with this index. stays: wn_evict_stays. score: used only if it may go.
static __device__ __forceinline__ evict_choice evict_of(int32_t at, bool stays, bool may_go, double score,
                                                        uint32_t index) {
  uint64_t merit = stays ? 1 : 2;
  if (may_go) {
    score += 0.0; // turns -0 into 0
    memcpy(&merit, &score, sizeof merit);
    merit = merit >> 63 ? ~merit : merit | (uint64_t)1 << 63; // keeps the order of the scores; always above 2
  }
  return {merit, (uint64_t) ~(uint32_t)at << 32 | index};
}
static __device__ __forceinline__ evict_choice evict_better(const evict_choice &a, const evict_choice &b) {
  return b.merit > a.merit || (b.merit == a.merit && b.place > a.place) ? b : a;
}
static __device__ __forceinline__ evict_choice evict_warp_best(evict_choice x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const evict_choice y = {__shfl_xor_sync(~0u, x.merit, by), __shfl_xor_sync(~0u, x.place, by)};
    x = evict_better(x, y);
  }
  return x;
}
// Every thread gets the result.
static __device__ __forceinline__ evict_choice evict_block_best(evict_choice x) {
  WN_SHARED(evict_choice, best, [32]);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = evict_warp_best(x);
  __syncthreads(); // best may still be read
  if (lane == 0) best[threadIdx.x / 32] = x;
  __syncthreads();
  return evict_warp_best(lane < warps ? best[lane] : evict_none());
}

#endif
