// Shared by the launches of operations: their arguments, arrays of floats or bf16, grid sizes, errors.
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
  int64_t bf16; // 0 or 1; as wide as the pointer, because steps compare arguments as bytes and padding would be
                // undefined
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
  // N numbers from i on; N is one or eight. Eight need i to be a multiple of 8, and wn_by_eights; they are read as one
  // or two words of 16 bytes.
  template <int N> __device__ __forceinline__ void get(int64_t i, float (&v)[N]) const {
    static_assert(N == 1 || N == 8, "one or eight");
    if constexpr (N == 1) {
      v[0] = (*this)[i];
    } else if (bf16) {
      wn_unpack_eight(v, static_cast<const __nv_bfloat16 *>(p) + i);
    } else {
      const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(p) + i);
      const float4 low = from[0], high = from[1];
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
      v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    }
  }
  template <int N> __device__ __forceinline__ void put(int64_t i, const float (&v)[N]) const {
    static_assert(N == 1 || N == 8, "one or eight");
    if constexpr (N == 1) {
      set(i, v[0]);
    } else if (bf16) {
      *reinterpret_cast<uint4 *>(static_cast<__nv_bfloat16 *>(p) + i) = make_uint4(
          wn_pack_bf16(v[0], v[1]), wn_pack_bf16(v[2], v[3]), wn_pack_bf16(v[4], v[5]), wn_pack_bf16(v[6], v[7]));
    } else {
      float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(p) + i);
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
};
// Can x be read and written by eights? Lines need a multiple of 8, ld too. NULL, which is never read, can.
static inline bool wn_by_eights(const void *x, int64_t ld) {
  return !x || (reinterpret_cast<uintptr_t>(x) % 16 == 0 && ld % 8 == 0);
}
static inline wn_numbers wn_numbers_of(const void *p, wn_dtype type) {
  return {const_cast<void *>(p), type == WN_BF16};
}

// The number of blocks of WN_CUDA_THREADS for n elements; kernels loop over the grid.
static inline unsigned wn_cuda_blocks(int64_t n) {
  const int64_t blocks = (n + WN_CUDA_THREADS - 1) / WN_CUDA_THREADS;
  return (unsigned)(blocks < 1 ? 1 : blocks > 16384 ? 16384 : blocks);
}
#define WN_GRID_LOOP(i, n)                                                                                             \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

// The only stream of the process for work (memory.cu).
extern cudaStream_t wn_cuda_work_stream;
wn_status wn_cuda_memory_begin(wn_context *ctx);
// Opens cuBLASLt if it is installed (blas.cu). Below: what computes products, "cuBLASLt 13.0.0" or winnow's own
// kernels.
wn_status wn_cuda_blas_begin(wn_context *ctx);
const char *wn_cuda_products();
static inline cudaStream_t wn_cuda_stream(const struct wn_exec *exec) {
  (void)exec;
  return wn_cuda_work_stream;
}

// The error of `what`, in one line. A kernel's fault is reported by some later call and by all after it; the line then
// names the last operation launched.
wn_status wn_cuda_fail(wn_context *ctx, const char *what, cudaError_t error);
extern const char *wn_cuda_last_operation;

// Called after the launches of an operation.
static inline wn_status wn_cuda_launched(const struct wn_exec *exec, const char *name) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return wn_cuda_fail(exec->ctx, name, error);
  __atomic_store_n(&wn_cuda_last_operation, name, __ATOMIC_RELAXED);
  return WN_OK;
}

static inline int64_t wn_cuda_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t wn_cuda_parts(int64_t n, int64_t each) {
  return (n + each - 1) / each;
}

#endif
