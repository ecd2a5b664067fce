/* The emulation's controls on a real GPU: the order of threads cannot be chosen, and errors are reported once the
 * device has finished. Linked into device_test_..., the same test programs with kernels compiled by nvcc. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stddef.h>

#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"

void *wn_cuda_open_library(const char *path) { /* normally module.c's */
  return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

bool wn_emulated(void) {
  return false;
}

const void *own_bias_device(void);
const void *own_bias_device(void) {
  return NULL; /* nvcc compiles no kernels of tests */
}

void wn_emulate_seed(uint64_t seed) {
  (void)seed;
}

const char *wn_emulate_error(void) {
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

void wn_emulate_device(int capability, int processors) {
  (void)capability, (void)processors;
}

uint64_t wn_emulate_launches(void) {
  return 0; /* not counted */
}

uint64_t wn_emulate_launches_in(const char *file) {
  (void)file;
  return 0;
}

uint64_t wn_emulate_allocations(void) {
  return 0;
}

wn_emulated_calls wn_emulate_calls(void) {
  return (wn_emulated_calls){0};
}

uint64_t wn_emulate_products(uint64_t *algorithms) {
  return *algorithms = 0;
}
