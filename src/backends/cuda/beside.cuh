// Two streams for the launches of one call: the caller's, and the process's second stream. Launches that do not depend
// on each other can overlap (beside.cu).
#ifndef WN_BACKENDS_CUDA_BESIDE_CUH
#define WN_BACKENDS_CUDA_BESIDE_CUH

#include "backends/cuda/device.cuh"

namespace wn_cuda {

enum { BESIDE_MARKS = 3 };

// Called once per process: creates the second stream and the events.
cudaError_t beside_prepare();
// Do calls use the second stream? The scratch of a call may depend on this, but not on anything decided later.
bool beside_wanted();

// Stream 0 is the caller's, including its earlier work; stream 1 is the second. Both are the caller's if the call wants
// only one stream or there is no second one; then marks and waits do nothing. Only one call at a time has the second
// stream and the events: others wait on the host while it launches.
class two_streams {
public:
  two_streams(cudaStream_t callers, bool wanted);
  ~two_streams();
  two_streams(const two_streams &) = delete;
  cudaStream_t operator[](int n) const { return of[n]; }
  // Sets mark `which` after all work submitted to stream n so far, replacing its old position.
  cudaError_t mark(int which, int n);
  // Later work of stream n waits for the mark's current position.
  cudaError_t wait(int which, int n);
  // Later work of stream `to` waits for all work of `from` so far; uses the last mark.
  cudaError_t follow(int to, int from);

private:
  cudaStream_t of[2];
  bool is_two;
};

} // namespace wn_cuda

#endif
