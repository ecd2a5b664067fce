/* Streams, events, pinned memory and copies. Submitted work runs later (emulate_queue.cc), and the host may know of it
 * later still: the destination of a copy to the host is garbage until the stream, or an event after the copy, is waited
 * for, and the source of a copy from the host must not change until then. Copies to and from the host need pinned
 * memory: with other memory a real copy would block. */
#include <stdlib.h>

#include <map>
#include <memory>
#include <vector>

#include "cuda/emulate_queue.h"

struct emulated_pool {
  uint64_t keep;
};

namespace emulate {

struct transfer {
  uint64_t asked;
  void *to;         /* of a copy to the host */
  const char *from; /* of a copy from the host */
  std::shared_ptr<std::vector<char>> data;
};
static std::vector<transfer> transfers; /* copies not waited for yet */
static std::map<char *, size_t> pinned;
static uint64_t asked;
struct emulated_stream {
  bool follows; /* the program's stream, or one that has waited for it */
};
static std::vector<std::unique_ptr<emulated_stream>> streams; /* the first is the program's */
wn_emulated_calls calls;
static emulated_pool the_pool;

static bool is_pinned(const void *p, size_t bytes) {
  auto after = pinned.upper_bound(static_cast<char *>(const_cast<void *>(p)));
  if (after == pinned.begin()) return false;
  --after;
  const size_t at = (size_t)(static_cast<const char *>(p) - after->first);
  return at <= after->second && bytes <= after->second - at;
}

static emulated_stream *stream_of(const void *stream) {
  for (const auto &s : streams)
    if (s.get() == stream) return s.get();
  return nullptr;
}

bool stream_check(site at, const void *stream) {
  const emulated_stream *s = stream_of(stream);
  if (streams.empty() || (s && s->follows) || (stream && capture_is_on(stream))) return true;
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
    if (t.to) memcpy(t.to, t.data->data(), t.data->size());
    if (t.from && memcmp(t.from, t.data->data(), t.data->size()) != 0)
      fail(site::here(), "what a copy in reads was changed before it was done");
  }
  transfers.resize(left);
}

} // namespace emulate

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
  emulate::allocations++;
  emulate::streams.emplace_back(new emulate::emulated_stream());
  *out = emulate::streams.back().get();
  emulate::streams[0]->follows = true;
  emulate::stream_made(*out);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  emulate::allocations++;
  *out = new emulated_event();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  using namespace emulate;
  if (!stream_check(site::here(), stream)) return cudaErrorInvalidValue;
  event->passed = std::make_shared<bool>(false);
  event->capture = capture_is_on(stream) ? capture_now() : 0;
  if (event->capture) {
    event->nodes = capture_place(stream);
    return cudaSuccess;
  }
  calls.events++;
  event->asked = asked;
  const std::shared_ptr<bool> passed = event->passed;
  stream_add(stream, [passed] { *passed = true; });
  return cudaSuccess;
}

/* Waiting for an event that was never recorded does nothing. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  using namespace emulate;
  if (!event->passed) return cudaSuccess;
  if (capture_is_on(stream) || event->capture) {
    if (!capture_now() || event->capture != capture_now()) {
      (void)capture_refuses(nullptr, "cudaStreamWaitEvent for what is not of the capture,");
      if (!capture_now()) fail(site::here(), "cudaStreamWaitEvent for an event of a capture that has ended");
      return cudaErrorStreamCaptureIsolation;
    }
    capture_follow(stream, event->nodes);
    return cudaSuccess;
  }
  emulated_stream *s = stream_of(stream);
  if (!s) return cudaErrorInvalidValue;
  s->follows = true;
  calls.waits++;
  stream_waits(stream, event->passed);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->capture) {
    if (!emulate::capture_refuses(nullptr, "cudaEventSynchronize"))
      emulate::fail(emulate::site::here(), "cudaEventSynchronize for an event of a capture that has ended");
    return cudaErrorCapturedEvent;
  }
  if (event->passed) emulate::streams_run(event->passed.get());
  emulate::arrive(event->asked);
  return cudaSuccess;
}

/* The device goes on by one task. */
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (emulate::capture_refuses(nullptr, "cudaEventQuery")) return cudaErrorStreamCaptureUnsupported;
  if (event->passed && !*event->passed) emulate::streams_step();
  if (event->passed && !*event->passed) return cudaErrorNotReady;
  emulate::arrive(event->asked);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (emulate::capture_refuses(stream, "cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
  emulate::stream_run(stream);
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
  int current;
  (void)cudaGetDevice(&current);
  return device == current ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void *value) {
  memcpy(&pool->keep, value, sizeof pool->keep);
  return cudaSuccess;
}

namespace emulate {

/* The host's data at the time of submission, or nothing yet. */
static std::shared_ptr<std::vector<char>> copy_begin(char *y, const char *x, size_t bytes, bool out, bool in) {
  const auto data = std::make_shared<std::vector<char>>(bytes, '\xff');
  if (in) data->assign(x, x + bytes);
  if (out) memset(y, 0xff, bytes);
  asked++;
  if (in || out) transfers.push_back({asked, out ? y : nullptr, in ? x : nullptr, data});
  return data;
}
static void copy_run(char *y, const char *x, size_t bytes, bool out, bool in, std::vector<char> &data) {
  memory_open_array(x, bytes, true);
  memory_open_array(y, bytes, true);
  if (out)
    data.assign(x, x + bytes);
  else
    memcpy(y, in ? data.data() : x, bytes);
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
                     (in || out || x >= y + bytes || y >= x + bytes); /* overlapping copies are undefined */
  if (!sound && capture_refuses(stream, "cudaMemcpyAsync of other memory than pinned and the device's"))
    return cudaErrorStreamCaptureUnsupported;
  if (!sound) return cudaErrorInvalidValue;
  calls.copies++;
  if (capture_is_on(stream)) {
    stream_add(stream, [=] { copy_run(y, x, bytes, out, in, *copy_begin(y, x, bytes, out, in)); });
  } else {
    const auto data = copy_begin(y, x, bytes, out, in);
    stream_add(stream, [=] { copy_run(y, x, bytes, out, in, *data); });
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
  using namespace emulate;
  if (!stream_check(site::here(), stream) || !is_array(p, bytes)) return cudaErrorInvalidValue;
  stream_add(stream, [=] { set_run(p, value, bytes); });
  return cudaSuccess;
}

wn_emulated_calls wn_emulate_calls(void) {
  return emulate::calls;
}
