/* Scores by keys and values (ops/policy/policy.h) as kernels: over the slots of a cache, and within the walk over a
 * call's rows (attention/walk.cuh). */
#ifndef WN_BACKENDS_CUDA_POLICY_CUH
#define WN_BACKENDS_CUDA_POLICY_CUH

#include "backends/cuda/launch.cuh"

extern "C" {
#include "ops/evict.h"
}

namespace wn_cuda {

struct walk_args;

typedef void policy_stage(const wn_policy_held *, int64_t, int, wn_policy_thread, double *, double *);

/* All threads of a block run a kind's stages for what a group holds. */
template <policy_stage *STAGE>
__device__ __forceinline__ void policy_stages(const wn_policy_held &held, int stages, double *scores, double *room) {
  const wn_policy_thread me = {(int64_t)threadIdx.x, (int64_t)blockDim.x};
  for (int64_t j = me.of; j < held.count; j += me.all) scores[j] = 0;
  for (int64_t head = 0; head < held.heads; head++)
    for (int stage = 0; stage < stages; stage++) {
      __syncthreads();
      STAGE(&held, head, stage, me, scores, room);
    }
  __syncthreads();
}

/* Scores of the slots, in the room. Grid: groups of all sequences. Without the 1 the compiler keeps to 32 registers and
 * spills. */
template <policy_stage *STAGE>
__global__ void __launch_bounds__(WN_CUDA_THREADS, 1) policy_scores(const wn_evict a, const wn_policy_kind kind) {
  WN_SHARED(wn_policy_held, held, [1]);
  double *room = static_cast<double *>(a.room) + blockIdx.x * wn_policy_room(&kind, a.N, a.D);
  if (threadIdx.x == 0) wn_evict_held_of(&a, blockIdx.x, WN_F32, held);
  __syncthreads();
  policy_stages<STAGE>(held[0], kind.stages, room, room + a.N);
}

struct policy_kernels {
  void (*scores)(const wn_evict &a, cudaStream_t stream);
  void (*walk)(const walk_args &w, unsigned blocks, size_t shared, cudaStream_t stream);
};
/* The kernels of a kind; NULL: it has none. */
const policy_kernels *policy_kernels_for(const wn_policy_kind *kind);

} // namespace wn_cuda

#endif
