// The kernels of a mechanism that only tests have (own_bias.h).
#include "cuda/emulate.h"

#include "backends/cuda/device.cuh"

#pragma GCC diagnostic ignored "-Wunused-function" // kernels of the headers that this file does not launch
#include "backends/cuda/attention/score.cuh"
#include "backends/cuda/launch.cuh"
#include "own_bias.h"

namespace wn_cuda {
WN_SCORE_KERNELS(own_bias)
}

extern "C" const void *own_bias_device(void);
extern "C" const void *own_bias_device(void) {
  return &wn_cuda::own_bias_kernels;
}
