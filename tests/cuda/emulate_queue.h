/* Work submitted to streams that has not run yet (emulate_queue.cc), for the parts of the emulated run-time library. */
#ifndef TESTS_CUDA_EMULATE_QUEUE_H
#define TESTS_CUDA_EMULATE_QUEUE_H

#include <memory>

#include "cuda/emulate.h"

/* A position in a stream, or in a capture. */
struct emulated_event {
  std::shared_ptr<bool> passed; /* whether the latest record has been reached; NULL: none */
  uint64_t asked;               /* copies submitted before it */
  uint64_t capture;             /* the capture that it was recorded in; 0: none */
  std::vector<cudaGraphNode_t> nodes;
};

namespace emulate {

/* A kernel launch with copies of its arguments. */
struct alignas(64) argument_block {
  char bytes[64];
};
struct kernel_call_copy {
  const void *kernel;
  dim3 grid, block;
  size_t shared_bytes;
  std::vector<argument_block> data;
  std::vector<size_t> at, sizes;

  bool take(const void *address, dim3 g, dim3 b, size_t bytes, void *const *arguments);
  void run();
  bool is_stale() const; /* whether an argument points to freed memory */
};

/* Submits work to a stream. If the stream is captured it becomes a node, otherwise it runs after the stream's earlier
 * work. In a program without streams it runs at once. */
void stream_add(const void *stream, const std::function<void()> &run);
/* Runs submitted work, in an order that streams and their waits allow (by the seed), until the flag is set, or nothing
 * is left in that stream, or in any; or one task. */
void streams_run(const bool *until);
void streams_step();
void stream_run(const void *stream);
void streams_finish();
/* Registers a new stream. Makes a stream wait for a flag. */
void stream_made(const void *stream);
void stream_waits(const void *stream, const std::shared_ptr<bool> &passed);
bool has_streams();

/* During a capture: a position in a captured stream, and a stream that continues after it and is thereby captured. */
uint64_t capture_now(); /* the capture's number; 0: none */
void capture_add(const void *stream, const std::function<void()> &run);
std::vector<cudaGraphNode_t> capture_place(const void *stream);
void capture_follow(const void *stream, const std::vector<cudaGraphNode_t> &nodes);

} // namespace emulate

#endif
