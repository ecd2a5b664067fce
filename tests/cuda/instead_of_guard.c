/* Linked into a program: the CUDA backend, emulated, is what contexts of guard get. */
#include "backends/backends.h"
#include "backends/cuda/cuda.h"

__attribute__((constructor)) static void put(void) {
  wn_backend_instead_of_guard = wn_backend_cuda_table();
}
