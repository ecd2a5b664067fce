/* The module's side of module.h: its symbol, and the functions of the library that host code of kernels calls. Programs
 * that are linked with the library do not include this file. */
#include "backends/cuda/module.h"

#include <stdarg.h>
#include <stdio.h>

#include "backends/cuda/cuda.h"

static const struct wn_cuda_host *library;

wn_status wn_fail(wn_context *ctx, wn_status status, const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return library->fail(ctx, status, line);
}

void wn_log(wn_context *ctx, wn_log_level level, const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  library->log(ctx, level, line);
}

void *wn_cuda_open_library(const char *path) {
  return library->open(path);
}

static wn_status module_begin(wn_context *ctx, const struct wn_cuda_host *host, int place,
                              const struct wn_backend **out) {
  library = host;
  wn_cuda_choose(place);
  WN_TRY(wn_cuda_begin(ctx));
  *out = wn_backend_cuda_table();
  return WN_OK;
}

/* memory.cu */
void wn_cuda_memory_count(unsigned long long *live, unsigned long long *peak);

static wn_status module_device(wn_context *ctx, const struct wn_cuda_host *host, int index, wn_device_info *out) {
  library = host;
  return wn_cuda_device(ctx, index, out);
}

__attribute__((visibility("default"))) const struct wn_cuda_module *wn_cuda_module(void);
const struct wn_cuda_module *wn_cuda_module(void) {
  static struct wn_cuda_module module = {
      .begin = module_begin, .device = module_device, .memory = wn_cuda_memory_count};
  module.version = wn_cuda_module_version();
  return &module;
}
