// The process's second stream. A persistent kernel, whose blocks take units in turn, leaves multiprocessors idle while
// its last units run; blocks of another kernel can use them if it need not wait. Events alone express which launch
// waits for which. A call starts in the caller's stream and ends there before it returns: for the caller, and for a
// capture of that stream, the whole call is in it.
//
// Both streams have the same priority. Persistent blocks are never interrupted, so priority could only decide which of
// two kernels gets a multiprocessor that becomes free; without it, the kernel that was ready first gets it.
//
// WINNOW_CUDA_OVERLAP=0: all launches one after the other, in the caller's stream.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/beside.cuh"
#include "backends/cuda/steps.cuh"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held by the call that uses both streams
static cudaStream_t second;                              // NULL: not created
static cudaEvent_t marks[wn_cuda::BESIDE_MARKS];
static bool turned_off;

void wn_cuda_overlap_off(bool off) {
  turned_off = off;
}

namespace wn_cuda {

bool beside_wanted() {
  static const char *const wanted = getenv("WINNOW_CUDA_OVERLAP");
  return !turned_off && !(wanted && strcmp(wanted, "0") == 0);
}

cudaError_t beside_prepare() {
  cudaStream_t made;
  cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  for (int i = 0; i < BESIDE_MARKS && error == cudaSuccess; i++)
    error = cudaEventCreateWithFlags(&marks[i], cudaEventDisableTiming);
  if (error == cudaSuccess) second = made;
  return error;
}

// In a step, launches are held back and submitted to one stream (steps.cu).
two_streams::two_streams(cudaStream_t callers, bool wanted)
    : of{callers, callers}, is_two(wanted && second && beside_wanted() && !wn_cuda_step_is_open()) {
  if (!is_two) return;
  pthread_mutex_lock(&lock);
  of[1] = second;
}

two_streams::~two_streams() {
  if (is_two) pthread_mutex_unlock(&lock);
}

cudaError_t two_streams::mark(int which, int n) {
  return is_two ? cudaEventRecord(marks[which], of[n]) : cudaSuccess;
}

cudaError_t two_streams::wait(int which, int n) {
  return is_two ? cudaStreamWaitEvent(of[n], marks[which], 0) : cudaSuccess;
}

cudaError_t two_streams::follow(int to, int from) {
  const cudaError_t error = mark(BESIDE_MARKS - 1, from);
  return error == cudaSuccess ? wait(BESIDE_MARKS - 1, to) : error;
}

} // namespace wn_cuda
