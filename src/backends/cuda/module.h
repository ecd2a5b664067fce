/* What the library and the module of the CUDA backend (winnow-cuda.so) give each other. The module does not link the
 * library, which may be part of a program that exports nothing: what it needs of it comes in a table, and what it gives
 * is one symbol's. */
#ifndef WN_BACKENDS_CUDA_MODULE_H
#define WN_BACKENDS_CUDA_MODULE_H

#include "ops/attention.h"
#include "ops/evict.h"
#include "ops/evictions.h"
#include "ops/ops.h"
#include "ops/sample.h"
#include "winnow/version.h"

/* The library's, for the module. */
struct wn_cuda_host {
  wn_status (*fail)(wn_context *ctx, wn_status status, const char *line);
  void (*log)(wn_context *ctx, wn_log_level level, const char *line);
  void *(*open)(const char *path); /* a shared library; NULL: it is not there */
};

struct wn_cuda_module {
  uint64_t version; /* wn_cuda_module_version() */
  /* Finds the device and gives the table that runs on it. Called once at a time, and again where it has failed. */
  wn_status (*begin)(wn_context *ctx, const struct wn_cuda_host *host, const struct wn_backend **out);
  /* The device of this number, of those that CUDA_VISIBLE_DEVICES lets it see. */
  wn_status (*device)(wn_context *ctx, const struct wn_cuda_host *host, int index, wn_device_info *out);
  /* Bytes of the arrays on the device, now and at most. */
  void (*memory)(unsigned long long *live, unsigned long long *peak);
};
/* What it is; zeros where no module was opened. */
void wn_backend_cuda_memory(unsigned long long *live, unsigned long long *peak);

/* The one symbol of the module. */
#define WN_CUDA_SYMBOL "wn_cuda_module"
typedef const struct wn_cuda_module *(*wn_cuda_module_fn)(void);

/* Changes with winnow's version and with the layout of what operations are given, so that a module of another build is
 * not called. */
static inline uint64_t wn_cuda_module_version(void) {
  uint64_t all = WN_VERSION_NUMBER;
#define WN_CUDA_MODULE_SIZE(name, args, has_backward) all = all * 1000003 + sizeof(args);
  WN_OPS(WN_CUDA_MODULE_SIZE)
  return all * 1000003 + sizeof(struct wn_backend) + sizeof(struct wn_exec) + sizeof(struct wn_memory);
}

#endif
