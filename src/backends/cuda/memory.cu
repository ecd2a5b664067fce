// Device memory, where the CUDA backend's arrays are. A process has one stream for all work, so everything happens in
// the order of the calls, whatever contexts they come from: contexts share models, and no array needs to record which
// stream last wrote it. (Work in the second stream starts and ends within a call: beside.cu.)
//
// Copies from and to the host go through a ring of pinned memory, in pieces. For a copy in, `from` may be reused when
// the call returns. A piece of a copy out is moved from the ring to its destination when somebody waits for a later
// mark, or when its space in the ring is needed. Marks are events, of which there are MARKS; waiting for an older mark
// means waiting for the later one that now has its event.
//
// Arrays come from the stream's own memory pool, which keeps freed memory. All else is created once (wn_cuda_begin).
//
// In a step (steps.cu), held-back launches are submitted before anything else. To avoid cutting a step into pieces,
// copies within the device are kernels there, and so are copies in of up to PUT_BYTES, which are passed as an argument.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/beside.cuh"
#include "backends/cuda/steps.cuh"

#include <map>
#include <mutex>

extern "C" {
#include "base/memory.h"
}

enum { MOVE_THREADS = 1024, MARKS = 256, PIECES = 1024, PUT_BYTES = 256 };
static const size_t RING_BYTES = (size_t)16 << 20, PIECE_BYTES = (size_t)2 << 20, RING_ALIGN = 64;

// A piece of a copy in the ring. to: the destination of a copy out; NULL: a copy in.
struct ring_piece {
  size_t at, bytes;
  uint64_t mark;
  void *to;
};

cudaStream_t wn_cuda_work_stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards all that follows
static bool begun;
static cudaEvent_t events[MARKS];
static uint64_t marks, done; // the last mark; marks up to `done` have been waited for
static char *ring;
static ring_piece pieces[PIECES]; // a circular list; the oldest is at `oldest`
static size_t oldest, count, head;

static wn_status memory_status(wn_context *ctx, const char *what, size_t bytes, cudaError_t error) {
  if (error == cudaSuccess) return WN_OK;
  char name[64];
  snprintf(name, sizeof name, "%s of %zu bytes", what, bytes);
  return wn_cuda_fail(ctx, name, error);
}

// Creates everything that later calls use, so that no step has to. The lock is held.
static cudaError_t begin_all() {
  cudaMemPool_t pool;
  uint64_t keep = UINT64_MAX;
  int device = 0;
  cudaError_t error = cudaStreamCreateWithFlags(&wn_cuda_work_stream, cudaStreamNonBlocking);
  for (int i = 0; i < MARKS && error == cudaSuccess; i++)
    error = cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming);
  if (error == cudaSuccess) error = wn_cuda_steps_prepare();
  if (error == cudaSuccess) error = wn_cuda::beside_prepare();
  if (error == cudaSuccess) error = cudaMallocHost(reinterpret_cast<void **>(&ring), RING_BYTES);
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetDefaultMemPool(&pool, device);
  if (error == cudaSuccess) error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  return error;
}

wn_status wn_cuda_memory_begin(wn_context *ctx) {
  pthread_mutex_lock(&lock);
  const cudaError_t error = begun ? cudaSuccess : begin_all();
  begun = begun || error == cudaSuccess;
  pthread_mutex_unlock(&lock);
  return error == cudaSuccess ? WN_OK : wn_cuda_fail(ctx, "a stream with its memory", error);
}

// ---- marks and the ring; the lock is held ----

static cudaError_t mark_set(uint64_t *mark) {
  *mark = ++marks;
  return cudaEventRecord(events[*mark % MARKS], wn_cuda_work_stream);
}

static cudaError_t mark_wait(uint64_t mark) {
  if (mark <= done) return cudaSuccess;
  const cudaError_t error = cudaEventSynchronize(events[mark % MARKS]);
  if (error == cudaSuccess) done = mark;
  return error;
}

// Frees the oldest piece's space, once it is done or waiting has failed.
static cudaError_t ring_retire() {
  const ring_piece p = pieces[oldest];
  const cudaError_t error = mark_wait(p.mark);
  if (p.to && error == cudaSuccess) memcpy(p.to, ring + p.at, p.bytes);
  oldest = (oldest + 1) % PIECES;
  count--;
  return error;
}

static bool ring_place(size_t bytes, size_t *at) {
  if (count == PIECES) return false;
  if (count == 0) head = 0;
  const size_t tail = count > 0 ? pieces[oldest].at : RING_BYTES;
  const bool behind = count > 0 && head > tail; // the used space is one range, [tail, head)
  *at = head;
  if (count == 0 || behind) {
    if (bytes <= RING_BYTES - head) return true;
    *at = 0;
    return behind && bytes < tail; // must not reach tail: head = tail would mean an empty ring
  }
  return head != tail && bytes < tail - head;
}

// Finds space for `bytes`, at most PIECE_BYTES. The piece is listed when it is pushed.
static cudaError_t ring_take(size_t bytes, size_t *at) {
  cudaError_t error = cudaSuccess;
  while (!ring_place(bytes, at)) {
    const cudaError_t failed = ring_retire();
    if (error == cudaSuccess) error = failed;
  }
  return error;
}

static cudaError_t ring_push(size_t at, size_t bytes, void *to) {
  ring_piece *p = &pieces[(oldest + count) % PIECES];
  *p = {at, bytes, 0, to};
  head = at + (bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
  if (head > RING_BYTES) head = RING_BYTES;
  count++;
  return mark_set(&p->mark);
}

// Copies `from` to the device, or from the device to `to`; the other is NULL. The lock is not held.
static cudaError_t ring_copy(char *device, const char *from, char *to, size_t bytes) {
  cudaError_t error = wn_cuda_step_flush();
  pthread_mutex_lock(&lock);
  for (size_t n = 0; n < bytes && error == cudaSuccess; n += PIECE_BYTES) {
    const size_t piece = bytes - n < PIECE_BYTES ? bytes - n : PIECE_BYTES;
    size_t at;
    error = ring_take(piece, &at);
    if (error != cudaSuccess) break;
    if (from) memcpy(ring + at, from + n, piece);
    error = from ? cudaMemcpyAsync(device + n, ring + at, piece, cudaMemcpyHostToDevice, wn_cuda_work_stream)
                 : cudaMemcpyAsync(ring + at, device + n, piece, cudaMemcpyDeviceToHost, wn_cuda_work_stream);
    if (error == cudaSuccess) error = ring_push(at, piece, to ? to + n : nullptr);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

// ---- wn_memory ----

static wn_status cuda_zero(wn_context *ctx, void *to, size_t bytes) {
  if (bytes == 0) return WN_OK;
  cudaError_t error = wn_cuda_step_flush();
  if (error == cudaSuccess) error = cudaMemsetAsync(to, 0, bytes, wn_cuda_work_stream);
  return memory_status(ctx, "zeros", bytes, error);
}

// The sizes of arrays.
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
  (void)wn_cuda_step_flush(); // the end of the step reports its failure
  (void)cudaFreeAsync(p, wn_cuda_work_stream);
}

static wn_status cuda_allocate(wn_context *ctx, const char *what, size_t bytes, void **out) {
  *out = nullptr;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_cuda_begin(ctx));
  const cudaError_t error = cudaMallocAsync(out, bytes, wn_cuda_work_stream);
  if (error != cudaSuccess) {
    size_t spare = 0, all = 0;
    (void)cudaGetLastError(); // this is no error of a launch
    *out = nullptr;
    if (error != cudaErrorMemoryAllocation) return memory_status(ctx, what, bytes, error);
    (void)cudaMemGetInfo(&spare, &all);
    return wn_fail(ctx, WN_ERR_MEMORY,
                   "out of memory on cuda: %s needs %zu bytes, and %zu of the device's %zu are free", what, bytes,
                   spare, all);
  }
  held_add(*out, bytes);
  const wn_status status = cuda_zero(ctx, *out, bytes);
  if (status == WN_OK) return WN_OK;
  cuda_release(*out);
  *out = nullptr;
  return status;
}

struct put_bytes {
  unsigned char of[PUT_BYTES];
};
static __global__ void put_kernel(unsigned char *to, int n, const put_bytes bytes) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = bytes.of[i];
}

static wn_status cuda_copy_in(wn_context *ctx, void *to, const void *from, size_t bytes) {
  if (wn_cuda_step_is_open() && bytes <= PUT_BYTES) {
    put_bytes put = {};
    memcpy(put.of, from, bytes);
    if (bytes > 0)
      WN_LAUNCH(1, 32, 0, wn_cuda_work_stream, put_kernel, static_cast<unsigned char *>(to), (int)bytes, put);
    return WN_OK;
  }
  return memory_status(ctx, "a copy in", bytes,
                       ring_copy(static_cast<char *>(to), static_cast<const char *>(from), nullptr, bytes));
}

static wn_status cuda_copy_out(wn_context *ctx, void *to, const void *from, size_t bytes) {
  char *device = static_cast<char *>(const_cast<void *>(from));
  return memory_status(ctx, "a copy out", bytes, ring_copy(device, nullptr, static_cast<char *>(to), bytes));
}

// One block. All threads read a stretch before any of it is written; stretches go forwards if the data moves to lower
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

template <class T> static __global__ void copy_kernel(T *to, const T *from, int64_t n) {
  WN_GRID_LOOP(i, n) to[i] = from[i];
}
template <class T> static void copy_as(void *to, const void *from, size_t bytes) {
  const int64_t n = (int64_t)(bytes / sizeof(T));
  WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, wn_cuda_work_stream, copy_kernel<T>, static_cast<T *>(to),
            static_cast<const T *>(from), n);
}

static wn_status cuda_copy(wn_context *ctx, void *to, const void *from, size_t bytes) {
  const uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
  const cudaStream_t stream = wn_cuda_work_stream;
  if (bytes == 0 || a == b) return WN_OK;
  const bool apart = a + bytes <= b || b + bytes <= a;
  if (apart && !wn_cuda_step_is_open())
    return memory_status(ctx, "a copy", bytes, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
  if (apart && (a | b | bytes) % sizeof(uint4) == 0)
    copy_as<uint4>(to, from, bytes);
  else if (apart && (a | b | bytes) % sizeof(uint32_t) == 0)
    copy_as<uint32_t>(to, from, bytes);
  else if (apart)
    copy_as<uint8_t>(to, from, bytes);
  else if ((a | b | bytes) % sizeof(uint32_t) == 0)
    WN_LAUNCH(1, MOVE_THREADS, 0, stream, move_kernel<uint32_t>, static_cast<uint32_t *>(to),
              static_cast<const uint32_t *>(from), (int64_t)(bytes / sizeof(uint32_t)));
  else
    WN_LAUNCH(1, MOVE_THREADS, 0, stream, move_kernel<uint8_t>, static_cast<uint8_t *>(to),
              static_cast<const uint8_t *>(from), (int64_t)bytes);
  return memory_status(ctx, "a copy", bytes, cudaGetLastError());
}

static uint64_t cuda_record(wn_context *ctx) {
  uint64_t mark = 0;
  (void)ctx;
  (void)wn_cuda_step_flush();
  pthread_mutex_lock(&lock);
  if (begun) (void)mark_set(&mark); // the wait reports its failure
  pthread_mutex_unlock(&lock);
  return mark;
}

// Other threads may submit work meanwhile.
static wn_status cuda_wait(wn_context *ctx, uint64_t mark) {
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&lock);
  if (mark > done) {
    const cudaEvent_t event = events[mark % MARKS];
    pthread_mutex_unlock(&lock);
    error = cudaEventSynchronize(event);
    pthread_mutex_lock(&lock);
    if (error == cudaSuccess && mark > done) done = mark;
  }
  while (error == cudaSuccess && count > 0 && pieces[oldest].mark <= mark) error = ring_retire();
  pthread_mutex_unlock(&lock);
  return error == cudaSuccess ? WN_OK : wn_cuda_fail(ctx, "what was waited for", error);
}

extern "C" {
const struct wn_memory wn_cuda_memory = {false,         cuda_allocate,      cuda_release,     cuda_copy_in,
                                         cuda_copy_out, cuda_copy,          cuda_zero,        cuda_record,
                                         cuda_wait,     wn_cuda_step_begin, wn_cuda_step_end, &wn_cuda_nccl};

void wn_cuda_memory_count(unsigned long long *live, unsigned long long *peak);
void wn_cuda_memory_count(unsigned long long *live, unsigned long long *peak) {
  const std::lock_guard<std::mutex> locked(held.lock);
  *live = held.live, *peak = held.peak;
}
}
