/* A module of another build: its version differs, and calling anything else in it would end the program. */
#include "backends/cuda/module.h"

__attribute__((visibility("default"))) const struct wn_cuda_module *wn_cuda_module(void);
const struct wn_cuda_module *wn_cuda_module(void) {
  static struct wn_cuda_module module;
  module.version = wn_cuda_module_version() + 1;
  return &module;
}
