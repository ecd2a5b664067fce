/* What is asked of streams and has not run yet (emulate_queue.cc): for the parts of the emulated run time. */
#ifndef TESTS_CUDA_EMULATE_QUEUE_H
#define TESTS_CUDA_EMULATE_QUEUE_H

#include <memory>

#include "cuda/emulate.h"

/* A place in a stream, or in what is captured. */
struct emulated_event {
  std::shared_ptr<bool> passed; /* was the last record's place come to? NULL: never recorded */
  uint64_t asked;               /* copies that were asked for before */
  uint64_t capture;             /* which it was recorded in; 0: none */
  std::vector<cudaGraphNode_t> nodes;
};

namespace emulate {

/* A kernel's launch with copies of its arguments. */
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
  bool is_stale() const; /* does a word of the arguments point into memory that has been given back? */
};

/* Work for a stream: a node where it is captured; else it runs some time after what the stream has been given before.
 * In a program without streams it runs now. */
void stream_add(const void *stream, const std::function<void()> &run);
/* Runs what is asked of streams, in an order that they and their waits allow (by the seed), until the flag is set, or
 * nothing is left of that stream, or of any. */
void streams_run(const bool *until);
void stream_run(const void *stream);
void streams_finish();
/* The program has made a stream; it is to wait for a flag. */
void stream_made(const void *stream);
void stream_waits(const void *stream, const std::shared_ptr<bool> &passed);
bool has_streams();

/* While streams are captured: a place in one, and one that goes on behind such a place and so becomes captured. */
uint64_t capture_now(); /* its number; 0: none */
void capture_add(const void *stream, const std::function<void()> &run);
std::vector<cudaGraphNode_t> capture_place(const void *stream);
void capture_follow(const void *stream, const std::vector<cudaGraphNode_t> &nodes);

} // namespace emulate

#endif
