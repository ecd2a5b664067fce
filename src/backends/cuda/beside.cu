// The process's second stream. A kernel whose blocks stay and take units by turns leaves multiprocessors idle while its
// last units run; another kernel's blocks take these where it need not wait. Which waits for which is said by events
// alone. They begin at the caller's stream and end there, before the call returns: to the caller, and to a capture of
// its stream, all of the call is in that stream.
//
// Neither stream has a higher priority. Blocks that stay are never interrupted, so that priority could decide but one
// thing, which of two kernels gets a multiprocessor that becomes free; the one that was ready first is the earlier one.
//
// WINNOW_CUDA_OVERLAP=0: launches one after the other, in the caller's stream.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/beside.cuh"
#include "backends/cuda/steps.cuh"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held by the call that has both streams
static cudaStream_t second;                              // NULL: none was made
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

// A step's launches are held back and asked for in one stream (steps.cu).
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
