// Steps that are held back and replayed as CUDA graphs (steps.cu): the interface for memory and products.
#ifndef WN_BACKENDS_CUDA_STEPS_CUH
#define WN_BACKENDS_CUDA_STEPS_CUH

#include "backends/cuda/launch.cuh"

// Called once per process, after its stream was created.
cudaError_t wn_cuda_steps_prepare();
// Is this thread in a step, with its launches held back?
bool wn_cuda_step_is_open();
// Submits what this thread holds back. Returns the first error of the step.
cudaError_t wn_cuda_step_flush();
// Work other than a kernel launch. data: everything that the call depends on; copied, and compared as bytes.
typedef cudaError_t (*wn_step_call)(const void *data, cudaStream_t stream);
void wn_cuda_step_call(wn_step_call call, const void *data, size_t bytes);

#endif
