// What the launches of the operations share: their arguments, arrays of floats or bf16, sizes of grids, errors.
#ifndef WN_BACKENDS_CUDA_LAUNCH_CUH
#define WN_BACKENDS_CUDA_LAUNCH_CUH

#include "backends/cuda/device.cuh"

extern "C" {
#include "backends/cuda/cuda.h"
}

#define WN_CUDA_THREADS 256

// An array of floats or of bf16, and its elements as floats.
struct wn_numbers {
  void *p;
  bool bf16;
  __device__ __forceinline__ float operator[](int64_t i) const {
    if (bf16) return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    return static_cast<const float *>(p)[i];
  }
  __device__ __forceinline__ void set(int64_t i, float value) const {
    if (bf16)
      static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(value);
    else
      static_cast<float *>(p)[i] = value;
  }
};
static inline wn_numbers wn_numbers_of(const void *p, wn_dtype type) {
  return {const_cast<void *>(p), type == WN_BF16};
}

// Blocks of WN_CUDA_THREADS for n elements, which a loop over the grid takes.
static inline unsigned wn_cuda_blocks(int64_t n) {
  const int64_t blocks = (n + WN_CUDA_THREADS - 1) / WN_CUDA_THREADS;
  return (unsigned)(blocks < 1 ? 1 : blocks > 16384 ? 16384 : blocks);
}
#define WN_GRID_LOOP(i, n)                                                                                             \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

static inline cudaStream_t wn_cuda_stream(const struct wn_exec *exec) {
  (void)exec;
  return nullptr;
}

// After the launches of an operation.
static inline wn_status wn_cuda_launched(const struct wn_exec *exec, const char *name) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return WN_OK;
  return wn_fail(exec->ctx, WN_ERR_IO, "%s on cuda: %s", name, cudaGetErrorString(error));
}

static inline int64_t wn_cuda_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t wn_cuda_parts(int64_t n, int64_t each) {
  return (n + each - 1) / each;
}

#endif
