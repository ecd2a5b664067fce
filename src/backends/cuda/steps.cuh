// Steps that are held back and replayed as CUDA graphs (steps.cu): what memory and products ask of them.
#ifndef WN_BACKENDS_CUDA_STEPS_CUH
#define WN_BACKENDS_CUDA_STEPS_CUH

#include "backends/cuda/launch.cuh"

// Once a process, after its stream was made.
cudaError_t wn_cuda_steps_prepare();
// Is this thread within a step, so that its launches are held back?
bool wn_cuda_step_is_open();
// What this thread holds back is asked for now. Returns the first error of the step.
cudaError_t wn_cuda_step_flush();
// Work that is no kernel's launch. data: all that the call depends on, compared as bytes; it is copied.
typedef cudaError_t (*wn_step_call)(const void *data, cudaStream_t stream);
void wn_cuda_step_call(wn_step_call call, const void *data, size_t bytes);

#endif
