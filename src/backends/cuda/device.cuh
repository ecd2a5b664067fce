// What kernels need beyond CUDA C++: names for instructions and for shared memory. The tests' emulation
// (tests/cuda/emulate.h, included first) defines them in plain C++: with WN_EMULATED a kernel source is a C++ source.
#ifndef WN_BACKENDS_CUDA_DEVICE_CUH
#define WN_BACKENDS_CUDA_DEVICE_CUH

#ifndef WN_EMULATED

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

// Named shared memory, WN_SHARED(float, sums, [2][32]), aligned to 16 bytes; and the dynamic shared memory of the
// launch, aligned to 1024.
#define WN_SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define WN_SHARED_DYNAMIC(type, name)                                                                                  \
  extern __shared__ __align__(1024) unsigned char wn_shared_dynamic[];                                                 \
  type *const name = reinterpret_cast<type *>(wn_shared_dynamic)
// A kernel as the CUDA runtime identifies it.
template <class... P> const void *wn_kernel(void (*kernel)(P...)) {
  return reinterpret_cast<const void *>(kernel);
}
template <class K> cudaError_t wn_shared_limit(K *kernel, size_t bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

__device__ __forceinline__ uint32_t wn_shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies BYTES (4, 8 or 16) from global to shared memory asynchronously; zeros if not valid.
template <int BYTES> __device__ __forceinline__ void wn_copy_async(void *shared, const void *global, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(wn_shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(wn_shared_address(shared)), "l"(global),
                 "n"(BYTES), "r"(valid ? BYTES : 0)
                 : "memory");
}
__device__ __forceinline__ void wn_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int GROUPS> __device__ __forceinline__ void wn_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void wn_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void wn_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ float wn_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Packs two 16-bit floats into a register, `low` in the low half.
__device__ __forceinline__ uint32_t wn_pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t wn_pack_f16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t wn_pack_relu_f16(float low, float high) { // max(x, 0), at most 65504
  uint32_t r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.relu.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
  const float most = 65504.0f;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high > most ? most : high), "f"(low > most ? most : low));
#endif
  return r;
}
__device__ __forceinline__ float2 wn_unpack_bf16(uint32_t x) {
  return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
__device__ __forceinline__ float2 wn_unpack_f16(uint32_t x) {
  return __half22float2(*reinterpret_cast<__half2 *>(&x));
}

// d[16,8] += a[16,K] b[K,8], in the fragments of PTX's mma.
#define WN_MMA_K16(name, type)                                                                                         \
  __device__ __forceinline__ void name(float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                                \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                      \
  }
#define WN_MMA_K8(name, type)                                                                                          \
  __device__ __forceinline__ void name(float(&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {                          \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." type "." type                                                 \
                 ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"                                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a0), "r"(a1), "r"(b0));                                                                         \
  }
WN_MMA_K16(wn_mma_bf16_k16, "bf16")
WN_MMA_K16(wn_mma_f16_k16, "f16")
WN_MMA_K8(wn_mma_bf16_k8, "bf16")
WN_MMA_K8(wn_mma_f16_k8, "f16")

// Loads 8 x 8 matrices of 16 bits: lane 8i + r gives the address of row r of matrix i.
#define WN_LDMATRIX_X4(name, form)                                                                                     \
  __device__ __forceinline__ void name(uint32_t(&r)[4], const void *row) {                                             \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0,%1,%2,%3}, [%4];"                               \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                      \
                 : "r"(wn_shared_address(row))                                                                         \
                 : "memory");                                                                                          \
  }
#define WN_LDMATRIX_X2(name, form)                                                                                     \
  __device__ __forceinline__ void name(uint32_t(&r)[2], const void *row) {                                             \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" form ".shared.b16 {%0,%1}, [%2];"                                     \
                 : "=r"(r[0]), "=r"(r[1])                                                                              \
                 : "r"(wn_shared_address(row))                                                                         \
                 : "memory");                                                                                          \
  }
WN_LDMATRIX_X4(wn_ldmatrix_x4, "")
WN_LDMATRIX_X4(wn_ldmatrix_x4_trans, ".trans")
WN_LDMATRIX_X2(wn_ldmatrix_x2, "")
WN_LDMATRIX_X2(wn_ldmatrix_x2_trans, ".trans")
__device__ __forceinline__ uint32_t wn_movmatrix(uint32_t x) { // transposes across the warp
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

#endif // WN_EMULATED

// ---- launches (steps.cu): at once, or in a step when it ends ----

struct wn_launch_argument {
  const void *at;
  size_t bytes;
};
enum { WN_LAUNCH_ARGUMENTS = 16 };
void wn_cuda_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    const wn_launch_argument *arguments, int count);

template <class T> struct wn_as { typedef T type; };
template <class... P>
void wn_launch(const void *known, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, void (*)(P...),
               typename wn_as<P>::type... a) {
  static_assert(sizeof...(P) <= WN_LAUNCH_ARGUMENTS, "arguments of a launch");
  const wn_launch_argument arguments[] = {{&a, sizeof(P)}...};
  wn_cuda_launch(known, grid, block, shared_bytes, stream, arguments, (int)sizeof...(P));
}
// A kernel whose name contains commas must be in parentheses.
#define WN_LAUNCH(grid, block, bytes, stream, kernel, ...)                                                             \
  wn_launch(wn_kernel(kernel), grid, block, bytes, stream, kernel, __VA_ARGS__)

// ---- shared by kernels, written in these terms ----

// Unpacks eight bf16 from 16 bytes.
__device__ __forceinline__ void wn_unpack_eight(float (&v)[8], const void *at) {
  const uint4 bits = *static_cast<const uint4 *>(at);
  const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 two = wn_unpack_bf16(word[k]);
    v[2 * k] = two.x, v[2 * k + 1] = two.y;
  }
}

// Sums in a fixed order over LANES neighbouring lanes, a warp, or a block; every thread gets the result. A block must
// have a multiple of 32 threads, at most 1024.
template <int LANES, class T> __device__ __forceinline__ T wn_lanes_sum(T x) {
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}
template <class T> __device__ __forceinline__ T wn_warp_sum(T x) {
  return wn_lanes_sum<32>(x);
}
template <class T> __device__ __forceinline__ T wn_warp_max(T x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const T y = __shfl_xor_sync(~0u, x, by);
    x = y > x ? y : x;
  }
  return x;
}
template <class T> __device__ __forceinline__ T wn_block_sum(T x) {
  WN_SHARED(T, parts, [32]);
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  x = wn_warp_sum(x);
  __syncthreads(); // parts of the previous sum may still be read
  if (lane == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return wn_warp_sum(lane < warps ? parts[lane] : T(0));
}

#endif
