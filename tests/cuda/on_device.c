/* What tests say to the emulation, on a GPU: an order of threads is no choice there, and what went wrong is heard when
 * the device has done all. Linked into device_test_..., the same test programs with kernels that nvcc compiled. */
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "cuda/emulate_api.h"

bool wn_emulated(void) {
  return false;
}

void wn_emulate_seed(uint64_t seed) {
  (void)seed;
}

const char *wn_emulate_error(void) {
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

uint64_t wn_emulate_launches(void) {
  return 0; /* not counted */
}
