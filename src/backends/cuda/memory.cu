// Where the CUDA backend's arrays lie: the device's memory. Everything goes to one stream, so that it happens in the
// order of the calls whatever contexts they come from.
#include "backends/cuda/launch.cuh"

#include <map>
#include <mutex>

extern "C" {
#include "base/memory.h"
}

enum { MOVE_THREADS = 1024 };

static wn_status memory_status(wn_context *ctx, const char *what, size_t bytes, cudaError_t error) {
  if (error == cudaSuccess) return WN_OK;
  return wn_fail(ctx, WN_ERR_IO, "%s of %zu bytes on cuda: %s", what, bytes, cudaGetErrorString(error));
}

static wn_status cuda_zero(wn_context *ctx, void *to, size_t bytes) {
  if (bytes == 0) return WN_OK;
  return memory_status(ctx, "zeros", bytes, cudaMemsetAsync(to, 0, bytes, nullptr));
}

// Arrays by their bytes.
static struct {
  std::mutex lock;
  std::map<void *, size_t> bytes;
  unsigned long long live, peak;
} held;

static void held_add(void *p, size_t bytes) {
  const std::lock_guard<std::mutex> locked(held.lock);
  held.bytes[p] = bytes;
  held.live += bytes;
  if (held.live > held.peak) held.peak = held.live;
}

static void held_remove(void *p) {
  const std::lock_guard<std::mutex> locked(held.lock);
  const auto found = held.bytes.find(p);
  if (found == held.bytes.end()) return;
  held.live -= found->second;
  held.bytes.erase(found);
}

static void cuda_release(void *p) {
  if (!p) return;
  held_remove(p);
  (void)cudaFree(p);
}

static wn_status cuda_allocate(wn_context *ctx, const char *what, size_t bytes, void **out) {
  *out = nullptr;
  if (bytes == 0) return WN_OK;
  if (cudaMalloc(out, bytes) != cudaSuccess) {
    (void)cudaGetLastError(); // no launch's error
    *out = nullptr;
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory on cuda: %s needs %zu bytes", what, bytes);
  }
  held_add(*out, bytes);
  const wn_status status = cuda_zero(ctx, *out, bytes);
  if (status == WN_OK) return WN_OK;
  cuda_release(*out);
  *out = nullptr;
  return status;
}

static wn_status cuda_copy_in(wn_context *ctx, void *to, const void *from, size_t bytes) {
  if (bytes == 0) return WN_OK;
  return memory_status(ctx, "a copy in", bytes, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, nullptr));
}

static wn_status cuda_copy_out(wn_context *ctx, void *to, const void *from, size_t bytes) {
  if (bytes == 0) return WN_OK;
  return memory_status(ctx, "a copy out", bytes, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, nullptr));
}

// One block, a stretch of which every thread holds a part before any of it is written: forwards where it moves to lower
// addresses, else backwards.
template <class T> static __global__ void __launch_bounds__(MOVE_THREADS) move_kernel(T *to, const T *from, int64_t n) {
  const bool forwards = to < from;
  for (int64_t first = 0; first < n; first += MOVE_THREADS) {
    const int64_t i = forwards ? first + threadIdx.x : n - 1 - first - threadIdx.x;
    const bool mine = i >= 0 && i < n;
    const T held = mine ? from[i] : T();
    __syncthreads();
    if (mine) to[i] = held;
    __syncthreads();
  }
}

static wn_status cuda_copy(wn_context *ctx, void *to, const void *from, size_t bytes) {
  const uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
  if (bytes == 0 || a == b) return WN_OK;
  if (a + bytes <= b || b + bytes <= a)
    return memory_status(ctx, "a copy", bytes, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr));
  if ((a | b | bytes) % sizeof(uint32_t) == 0)
    WN_LAUNCH(1, MOVE_THREADS, 0, nullptr, move_kernel<uint32_t>, static_cast<uint32_t *>(to),
              static_cast<const uint32_t *>(from), (int64_t)(bytes / sizeof(uint32_t)));
  else
    WN_LAUNCH(1, MOVE_THREADS, 0, nullptr, move_kernel<uint8_t>, static_cast<uint8_t *>(to),
              static_cast<const uint8_t *>(from), (int64_t)bytes);
  return memory_status(ctx, "a copy", bytes, cudaGetLastError());
}

// There is one stream, and to wait for all of it is to wait for any mark.
static uint64_t cuda_record(wn_context *ctx) {
  (void)ctx;
  return 1;
}

static wn_status cuda_wait(wn_context *ctx, uint64_t mark) {
  (void)mark;
  const cudaError_t error = cudaStreamSynchronize(nullptr);
  if (error == cudaSuccess) return WN_OK;
  return wn_fail(ctx, WN_ERR_IO, "cuda: %s", cudaGetErrorString(error));
}

extern "C" {
const struct wn_memory wn_cuda_memory = {false,     cuda_allocate, cuda_release, cuda_copy_in, cuda_copy_out,
                                         cuda_copy, cuda_zero,     cuda_record,  cuda_wait};

void wn_cuda_memory_count(unsigned long long *live, unsigned long long *peak);
void wn_cuda_memory_count(unsigned long long *live, unsigned long long *peak) {
  const std::lock_guard<std::mutex> locked(held.lock);
  *live = held.live, *peak = held.peak;
}
}
