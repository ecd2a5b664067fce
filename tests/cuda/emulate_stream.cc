/* Streams, events, pinned memory and copies. A kernel runs when it is launched, but what the host may know of it is
 * later: a copy out is rubbish until the stream, or an event behind the copy, is waited for, and what a copy in reads
 * must stay as it is until then. Copies from and to the host take pinned memory alone: with other memory a real one
 * would wait. */
#include <stdlib.h>

#include <map>
#include <memory>
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
static std::vector<std::unique_ptr<char>> streams; /* the first is the program's */
wn_emulated_calls calls;
static emulated_pool the_pool;

static bool is_pinned(const void *p, size_t bytes) {
  auto after = pinned.upper_bound(static_cast<char *>(const_cast<void *>(p)));
  if (after == pinned.begin()) return false;
  --after;
  const size_t at = (size_t)(static_cast<const char *>(p) - after->first);
  return at <= after->second && bytes <= after->second - at;
}

bool stream_check(site at, const void *stream) {
  if (streams.empty() || stream == streams[0].get() || (stream && capture_is_on(stream))) return true;
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
  emulate::streams.emplace_back(new char());
  *out = emulate::streams.back().get();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  emulate::allocations++;
  *out = new emulated_event();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  if (emulate::capture_refuses(stream, "cudaEventRecord")) return cudaErrorStreamCaptureUnsupported;
  emulate::calls.events++;
  event->asked = emulate::asked;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  emulate::arrive(event->asked);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (emulate::capture_refuses(stream, "cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
  emulate::arrive(emulate::asked);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  if (emulate::capture_refuses(stream, "cudaMallocAsync")) return cudaErrorStreamCaptureUnsupported;
  return cudaMalloc(out, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
  if (!emulate::stream_check(emulate::site::here(), stream)) return cudaErrorInvalidValue;
  if (emulate::capture_refuses(stream, "cudaFreeAsync")) return cudaErrorStreamCaptureUnsupported;
  return cudaFree(p);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  if (emulate::capture_refuses(nullptr, "cudaMallocHost")) return cudaErrorStreamCaptureUnsupported;
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

namespace emulate {

static void copy_run(char *y, const char *x, size_t bytes, bool out, bool in) {
  asked++;
  memory_open_array(x, bytes, true);
  memory_open_array(y, bytes, true);
  if (in || out) transfers.push_back({asked, out ? y : nullptr, in ? x : nullptr, std::vector<char>(x, x + bytes)});
  if (out)
    memset(y, 0xff, bytes);
  else
    memcpy(y, x, bytes);
  memory_open_array(x, bytes, false);
  memory_open_array(y, bytes, false);
}

static void set_run(void *p, int value, size_t bytes) {
  memory_open_array(p, bytes, true);
  memset(p, value, bytes);
  memory_open_array(p, bytes, false);
}

} // namespace emulate

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  using namespace emulate;
  const bool out = kind == cudaMemcpyDeviceToHost, in = kind == cudaMemcpyHostToDevice;
  const char *x = static_cast<const char *>(from);
  char *y = static_cast<char *>(to);
  if (!stream_check(site::here(), stream)) return cudaErrorInvalidValue;
  const bool sound = (in ? is_pinned(from, bytes) : is_array(from, bytes)) &&
                     (out ? is_pinned(to, bytes) : is_array(to, bytes)) &&
                     (in || out || x >= y + bytes || y >= x + bytes); /* undefined where the two overlap */
  if (!sound && capture_refuses(stream, "cudaMemcpyAsync of other memory than pinned and the device's"))
    return cudaErrorStreamCaptureUnsupported;
  if (!sound) return cudaErrorInvalidValue;
  calls.copies++;
  if (capture_is_on(stream))
    capture_add([=] { copy_run(y, x, bytes, out, in); });
  else
    copy_run(y, x, bytes, out, in);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
  using namespace emulate;
  if (!stream_check(site::here(), stream) || !is_array(p, bytes)) return cudaErrorInvalidValue;
  if (capture_is_on(stream))
    capture_add([=] { set_run(p, value, bytes); });
  else
    set_run(p, value, bytes);
  return cudaSuccess;
}

wn_emulated_calls wn_emulate_calls(void) {
  return emulate::calls;
}
