/* The interface between the library and the CUDA backend's module (winnow-cuda.so). The module does not link the
 * library, which may be inside a program that exports nothing. The library passes its functions to the module in a
 * table; the module exports one symbol. */
#ifndef WN_BACKENDS_CUDA_MODULE_H
#define WN_BACKENDS_CUDA_MODULE_H

#include "dist/device.h"
#include "ops/attention.h"
#include "ops/evict.h"
#include "ops/evictions.h"
#include "ops/ops.h"
#include "ops/sample.h"
#include "winnow/version.h"

/* Functions of the library for the module. */
struct wn_cuda_host {
  wn_status (*fail)(wn_context *ctx, wn_status status, const char *line);
  void (*log)(wn_context *ctx, wn_log_level level, const char *line);
  void *(*open)(const char *path); /* opens a shared library; NULL: it is not there */
};

struct wn_cuda_module {
  uint64_t version; /* wn_cuda_module_version() */
  /* Finds the device and returns the backend's table. place: this process's number on its machine (wn_dist_place).
   * Never called by two threads at once; called again after a failure. */
  wn_status (*begin)(wn_context *ctx, const struct wn_cuda_host *host, int place, const struct wn_backend **out);
  /* Information on a device, by its number among those that CUDA_VISIBLE_DEVICES shows. */
  wn_status (*device)(wn_context *ctx, const struct wn_cuda_host *host, int index, wn_device_info *out);
  /* Bytes of arrays on the device: now, and at most so far. */
  void (*memory)(unsigned long long *live, unsigned long long *peak);
};
/* The same; zeros if no module is open. */
void wn_backend_cuda_memory(unsigned long long *live, unsigned long long *peak);

/* The only symbol of the module. */
#define WN_CUDA_SYMBOL "wn_cuda_module"
typedef const struct wn_cuda_module *(*wn_cuda_module_fn)(void);

/* Changes with winnow's version and with the layout of the operations' structs, so that a module of another build is
 * refused. */
static inline uint64_t wn_cuda_module_version(void) {
  uint64_t all = WN_VERSION_NUMBER;
#define WN_CUDA_MODULE_SIZE(name, args, has_backward) all = all * 1000003 + sizeof(args);
  WN_OPS(WN_CUDA_MODULE_SIZE)
  return all * 1000003 + sizeof(struct wn_backend) + sizeof(struct wn_exec) + sizeof(struct wn_memory) +
         sizeof(struct wn_dist_device);
}

#endif
