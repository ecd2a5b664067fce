/* Streams, events, pinned memory and copies. A kernel runs when it is launched, but what the host may know of it is
 * later: a copy out is rubbish until the stream, or an event behind the copy, is waited for, and what a copy in reads
 * must stay as it is until then. Copies from and to the host take pinned memory alone: with other memory a real one
 * would wait. */
#include <stdlib.h>

#include <map>
#include <vector>

#include "cuda/emulate.h"

struct emulated_event {
  uint64_t asked;
};
struct emulated_pool {
  uint64_t keep;
};

namespace emulate {

struct transfer {
  uint64_t asked;
  void *to;         /* a copy out's */
  const char *from; /* a copy in's */
  std::vector<char> data;
};
static std::vector<transfer> transfers; /* those that nobody has waited for */
static std::map<char *, size_t> pinned;
static uint64_t asked;
static char the_stream;
static bool stream_made;
static emulated_pool the_pool;

static bool is_pinned(const void *p, size_t bytes) {
  auto after = pinned.upper_bound(static_cast<char *>(const_cast<void *>(p)));
  if (after == pinned.begin()) return false;
  --after;
  const size_t at = (size_t)(static_cast<const char *>(p) - after->first);
  return at <= after->second && bytes <= after->second - at;
}

bool stream_check(site at, const void *stream) {
  if (!stream_made || stream == &the_stream) return true;
  fail(at, "work for another stream than the program's");
  return false;
}

static void arrive(uint64_t until) {
  size_t left = 0;
  for (transfer &t : transfers) {
    if (t.asked > until) {
      std::swap(transfers[left++], t);
      continue;
    }
    if (t.to) memcpy(t.to, t.data.data(), t.data.size());
    if (t.from && memcmp(t.from, t.data.data(), t.data.size()) != 0)
      fail(site::here(), "what a copy in reads was changed before it was done");
  }
  transfers.resize(left);
}

} // namespace emulate

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
  emulate::allocations++;
  emulate::stream_made = true;
  *out = &emulate::the_stream;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  emulate::allocations++;
  *out = new emulated_event();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  event->asked = emulate::asked;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  emulate::arrive(event->asked);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulate::arrive(emulate::asked);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  return cudaMalloc(out, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  return cudaFree(p);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  emulate::allocations++;
  *out = malloc(bytes);
  if (!*out) return cudaErrorMemoryAllocation;
  emulate::pinned[static_cast<char *>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device) {
  *out = &emulate::the_pool;
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void *value) {
  memcpy(&pool->keep, value, sizeof pool->keep);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  using namespace emulate;
  const bool out = kind == cudaMemcpyDeviceToHost, in = kind == cudaMemcpyHostToDevice;
  const char *x = static_cast<const char *>(from);
  char *y = static_cast<char *>(to);
  if (!stream_check(site::here(), stream)) return cudaErrorInvalidValue;
  if (!(in ? is_pinned(from, bytes) : is_array(from, bytes))) return cudaErrorInvalidValue;
  if (!(out ? is_pinned(to, bytes) : is_array(to, bytes))) return cudaErrorInvalidValue;
  if (!in && !out && x < y + bytes && y < x + bytes) return cudaErrorInvalidValue; /* undefined where the two overlap */
  asked++;
  memory_open_array(from, bytes, true);
  memory_open_array(to, bytes, true);
  if (in || out) transfers.push_back({asked, out ? to : nullptr, in ? x : nullptr, std::vector<char>(x, x + bytes)});
  if (out)
    memset(to, 0xff, bytes);
  else
    memcpy(to, from, bytes);
  memory_open_array(from, bytes, false);
  memory_open_array(to, bytes, false);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
  using namespace emulate;
  if (!stream_check(site::here(), stream) || !is_array(p, bytes)) return cudaErrorInvalidValue;
  memory_open_array(p, bytes, true);
  memset(p, value, bytes);
  memory_open_array(p, bytes, false);
  return cudaSuccess;
}
