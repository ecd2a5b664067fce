// Two streams for the launches of one call: the caller's and, beside it, the process's second one, so that what does
// not wait for each other may run together (beside.cu).
#ifndef WN_BACKENDS_CUDA_BESIDE_CUH
#define WN_BACKENDS_CUDA_BESIDE_CUH

#include "backends/cuda/device.cuh"

namespace wn_cuda {

enum { BESIDE_MARKS = 3 };

// Once a process: the second stream and the events.
cudaError_t beside_prepare();
// Do calls use it? What scratch a call needs may depend on this and on nothing that begins later.
bool beside_wanted();

// Stream 0 is the caller's, with what the call found in it; 1 is the other. Both are the caller's where a call is to
// have one alone, and where there is no second; marks and waits then are nothing. One call at a time has the second
// stream and the events: others wait on the host, for as long as launches take.
class two_streams {
public:
  two_streams(cudaStream_t callers, bool wanted);
  ~two_streams();
  two_streams(const two_streams &) = delete;
  cudaStream_t operator[](int n) const { return of[n]; }
  // What stream n has been given so far has mark `which` behind it, whatever had it before.
  cudaError_t mark(int which, int n);
  // What stream n gets from now on waits for the mark as it is now.
  cudaError_t wait(int which, int n);
  // Stream `to` goes on behind what `from` has been given; by the last mark.
  cudaError_t follow(int to, int from);

private:
  cudaStream_t of[2];
  bool is_two;
};

} // namespace wn_cuda

#endif
