/* A module of another build: its version is not this one's, and calling anything of it would end the program. */
#include "backends/cuda/module.h"

__attribute__((visibility("default"))) const struct wn_cuda_module *wn_cuda_module(void);
const struct wn_cuda_module *wn_cuda_module(void) {
  static struct wn_cuda_module module;
  module.version = wn_cuda_module_version() + 1;
  return &module;
}
