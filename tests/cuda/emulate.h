/* CUDA C++ for the host's compiler: what the kernel sources (src/backends/cuda) need of it, in plain C++, so that the
 * same sources run on any machine, also under the sanitizers.
 *
 * Blocks run one after the other. The threads of a block are fibers in one host thread. A fiber runs until it waits at
 * a barrier or for the other lanes of its warp. Then another one runs, in an order shuffled by a seed: if a barrier is
 * missing, some order gives another result. At the start of a block shared memory is all ones (NaN in every float
 * type), and the address sanitizer sees accesses beyond its end. Data of cp.async arrive when they are waited for and
 * not earlier. Streams, events and host memory are in emulate_stream.cc; emulate_queue.cc decides when a stream's work
 * runs. A wait that never ends, lanes that meet at different instructions, and sizes beyond a GPU's are errors of the
 * launch (cudaGetLastError) that name the source line.
 *
 * emulate_sm90.h has what only sm_90 has.
 *
 * Not modelled: the order in which other blocks and warps see writes without a fence, registers, time. */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#define WN_EMULATED 1

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/emulate_api.h"
#include "cuda/emulate_types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__ static
#define __align__(n) alignas(n)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace emulate {

/* The current thread's indices, for threadIdx and the others. */
struct place {
  dim3 thread, block, block_dim, grid_dim;
};
extern place *current;

/* A place in the source. here() as a default argument gives the place of the call. */
struct site {
  const char *file;
  int line;
  static site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

/* Waits until all threads of the block (id 0), or `threads` of them, have arrived. Returns the sum of their values. */
int barrier(site at, int id, int threads, int value, bool wait);

/* An operation of a warp's lanes, done for all of them by the last one to arrive. data[lane]: NULL for absent lanes.
 * `aligned`: all must come from the same source line. */
typedef void (*together)(void *const data[32], const void *what);
void warp(site at, uint32_t mask, together run, const void *what, void *data, bool aligned);
int lane();

/* The block's shared memory for a declaration; `key` identifies it. */
void *shared(const void *key, size_t bytes);
void *shared_dynamic();

void copy_start(site at, void *to, const void *from, int bytes, bool valid);
void copy_commit();
void copy_wait(int groups);

/* Hooks for the instructions of sm_90 (emulate_sm90.cc): a block begins; some of the pending operations may complete
 * (all of them if no thread can continue), and whether any did; a block ends. */
void async_begin(char *shared, size_t bytes, int threads);
bool async_arrive(bool idle);
void async_end();
/* What those need: the running thread's number, a random number that is 0 in order 0, an error, a wait that wake()
 * ends. */
int thread_id();
uint64_t some_random();
uint64_t order_seed();
__attribute__((format(printf, 2, 3))) void say(site at, const char *format, ...);
void sleep_at(site at);
void wake(int thread);

/* Allows or forbids access to the device's arrays. */
void memory_open(bool open);

bool is_array(const void *p, size_t bytes);
void memory_open_array(const void *p, size_t bytes, bool open); /* one array; no effect on host memory */
extern uint64_t allocations;                                    /* wn_emulate_allocations */
/* Work for a stream other than the program's first one is an error of the launch, unless that stream is being captured
 * or has waited for an event of the first. */
bool stream_check(site at, const void *stream);
/* While a stream is captured, work for it becomes nodes of a graph, which run with the graph. Work that graphs cannot
 * contain, and calls that are forbidden during a capture, are errors that name the call (emulate_graph.cc). stream
 * NULL: a call without a stream. */
bool capture_is_on(const void *stream);
bool capture_refuses(const void *stream, const char *call);
/* Whether the address is in freed memory. */
bool is_given_back(const void *p);
/* Calls that gave the device work since the start. */
extern wn_emulated_calls calls;
/* Sets an error of the run-time library, as a launch does. */
void fail(site at, const char *what);

/* Limits a kernel's dynamic shared memory. */
int shared_limit(const void *kernel, size_t bytes);

/* What is known of a kernel once a launch has named it: how to call it with copies of its arguments. */
struct named_kernel {
  void (*call)(const void *kernel, void *const *arguments);
  std::vector<size_t> sizes;
  site at; /* the latest launch that named it */
};
void kernel_names(const void *address, const named_kernel &k);
const named_kernel *kernel_named(const void *address); /* or NULL */
template <class... P, size_t... I>
void kernel_call_with(void (*kernel)(P...), void *const *arguments, std::index_sequence<I...>) {
  kernel(*static_cast<P *>(arguments[I])...);
}
template <class... P> void kernel_call(const void *kernel, void *const *arguments) {
  kernel_call_with(reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel)), arguments,
                   std::index_sequence_for<P...>());
}
/* Reads the arguments while the kernel runs. */
void launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, void *const *arguments);

/* Shuffles: each lane gives `value` (4 or 8 bytes) and gets that of lane `from`. */
struct exchange {
  uint64_t value, taken;
  int from;
};
void exchange_run(void *const data[32], const void *);
struct vote {
  uint32_t value, ballot;
};
void vote_run(void *const data[32], const void *);
void sync_run(void *const data[32], const void *);

template <class T> T shuffle(site at, uint32_t mask, T value, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
  exchange x = {0, 0, from};
  memcpy(&x.value, &value, sizeof value);
  warp(at, mask, exchange_run, nullptr, &x, false);
  memcpy(&value, &x.taken, sizeof value);
  return value;
}
inline uint32_t ballot(site at, uint32_t mask, bool value) {
  vote v = {value, 0};
  warp(at, mask, vote_run, nullptr, &v, false);
  return v.ballot;
}

} // namespace emulate

#define threadIdx (emulate::current->thread)
#define blockIdx (emulate::current->block)
#define blockDim (emulate::current->block_dim)
#define gridDim (emulate::current->grid_dim)

#define WN_SHARED(type, name, ...)                                                                                     \
  static const char name##_key = 0;                                                                                    \
  typedef type name##_shared __VA_ARGS__;                                                                              \
  name##_shared &name = *static_cast<name##_shared *>(emulate::shared(&name##_key, sizeof(name##_shared)))
#define WN_SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(emulate::shared_dynamic())
template <class... P> const void *wn_kernel(void (*kernel)(P...), emulate::site at = emulate::site::here()) {
  const void *address = reinterpret_cast<const void *>(kernel);
  emulate::kernel_names(address, {emulate::kernel_call<P...>, {sizeof(P)...}, at});
  return address;
}

/* ---- the run-time library ---- */
typedef int cudaError_t;
typedef void *cudaStream_t;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorGraphExecUpdateFailure = 910
};
#define CUDART_VERSION 13000
struct cudaDeviceProp {
  char name[256];
  int major, minor;
  size_t totalGlobalMem;
};
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_pool *cudaMemPool_t;
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaMemGetInfo(size_t *spare, size_t *all);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream);
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_node *cudaGraphNode_t;
typedef struct emulated_exec *cudaGraphExec_t;
struct cudaKernelNodeParams { /* in CUDA's order, without gridDim and blockDim: those are a kernel's names here */
  void *func;
  dim3 grid, block;
  unsigned sharedMemBytes;
  void **kernelParams, **extra;
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                   const cudaKernelNodeParams *params);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after,
                                       size_t count, cudaGraph_t child);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *params);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75 };
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);
template <class K> cudaError_t wn_shared_limit(K *kernel, size_t bytes) {
  return emulate::shared_limit(reinterpret_cast<const void *>(kernel), bytes);
}

/* ---- barriers, shuffles, votes ---- */
inline void __syncthreads(emulate::site at = emulate::site::here()) {
  emulate::barrier(at, 0, 0, 0, true);
}
inline int __syncthreads_count(int value, emulate::site at = emulate::site::here()) {
  return emulate::barrier(at, 0, 0, value != 0, true);
}
inline int __syncthreads_or(int value, emulate::site at = emulate::site::here()) {
  return emulate::barrier(at, 0, 0, value != 0, true) > 0;
}
inline int __syncthreads_and(int value, emulate::site at = emulate::site::here()) {
  return emulate::barrier(at, 0, 0, value == 0, true) == 0;
}
inline void wn_barrier_sync(int id, int threads, emulate::site at = emulate::site::here()) {
  emulate::barrier(at, id, threads, 0, true);
}
inline void wn_barrier_arrive(int id, int threads, emulate::site at = emulate::site::here()) {
  emulate::barrier(at, id, threads, 0, false);
}
inline void __syncwarp(uint32_t mask = ~0u, emulate::site at = emulate::site::here()) {
  char none = 0;
  emulate::warp(at, mask, emulate::sync_run, nullptr, &none, false);
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32, emulate::site at = emulate::site::here()) {
  const int base = emulate::lane() & ~(width - 1);
  return emulate::shuffle(at, mask, value, base + (from & (width - 1)));
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, emulate::site at = emulate::site::here()) {
  const int lane = emulate::lane(), from = lane - (int)by;
  return emulate::shuffle(at, mask, value, from < (lane & ~(width - 1)) ? lane : from);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, emulate::site at = emulate::site::here()) {
  const int lane = emulate::lane(), from = lane + (int)by;
  return emulate::shuffle(at, mask, value, from > (lane | (width - 1)) ? lane : from);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int by, int width = 32, emulate::site at = emulate::site::here()) {
  const int lane = emulate::lane(), from = lane ^ by;
  return emulate::shuffle(at, mask, value, from > (lane | (width - 1)) ? lane : from);
}
inline uint32_t __ballot_sync(uint32_t mask, int value, emulate::site at = emulate::site::here()) {
  return emulate::ballot(at, mask, value != 0);
}
inline int __any_sync(uint32_t mask, int value, emulate::site at = emulate::site::here()) {
  return emulate::ballot(at, mask, value != 0) != 0;
}
inline int __all_sync(uint32_t mask, int value, emulate::site at = emulate::site::here()) {
  return emulate::ballot(at, mask, value == 0) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

/* ---- atomics: only one thread runs at a time ---- */
template <class T> T atomicAdd(T *p, typename std::common_type<T>::type value) {
  const T old = *p;
  *p = old + value;
  return old;
}
template <class T> T atomicMax(T *p, typename std::common_type<T>::type value) {
  const T old = *p;
  *p = old < value ? value : old;
  return old;
}
template <class T> T atomicMin(T *p, typename std::common_type<T>::type value) {
  const T old = *p;
  *p = value < old ? value : old;
  return old;
}
template <class T> T atomicOr(T *p, typename std::common_type<T>::type value) {
  const T old = *p;
  *p = old | value;
  return old;
}
template <class T> T atomicExch(T *p, typename std::common_type<T>::type value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T>
T atomicCAS(T *p, typename std::common_type<T>::type expected, typename std::common_type<T>::type value) {
  const T old = *p;
  if (old == expected) *p = value;
  return old;
}

/* ---- arithmetic ---- */
inline float __expf(float x) {
  return expf(x);
}
inline float __logf(float x) {
  return logf(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __fmaf_rn(float x, float y, float z) {
  return fmaf(x, y, z);
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __float_as_int(float x) {
  return (int)__float_as_uint(x);
}
inline float __int_as_float(int bits) {
  return __uint_as_float((uint32_t)bits);
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = x | (uint64_t)y << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; i++) bytes |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}
inline int __popc(uint32_t x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x ? __builtin_clz((unsigned)x) : 32;
}
inline uint32_t __umulhi(uint32_t x, uint32_t y) {
  return (uint32_t)((uint64_t)x * y >> 32);
}
template <class T> T __ldg(const T *p) {
  return *p;
}
template <class T, class U> constexpr typename std::common_type<T, U>::type min(T x, U y) {
  typedef typename std::common_type<T, U>::type V;
  return (V)y < (V)x ? (V)y : (V)x;
}
template <class T, class U> constexpr typename std::common_type<T, U>::type max(T x, U y) {
  typedef typename std::common_type<T, U>::type V;
  return (V)x < (V)y ? (V)y : (V)x;
}

/* ---- instructions that src/backends/cuda/device.cuh wraps ---- */
inline float wn_exp2(float x) {
  return exp2f(x);
}
template <int BYTES>
void wn_copy_async(void *shared, const void *global, bool valid, emulate::site at = emulate::site::here()) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  emulate::copy_start(at, shared, global, BYTES, valid);
}
inline void wn_copy_commit() {
  emulate::copy_commit();
}
template <int GROUPS> void wn_copy_wait() {
  emulate::copy_wait(GROUPS);
}
#include "cuda/emulate_mma.h"
#include "cuda/emulate_sm90.h"

#endif
