/* Opens the CUDA backend's module (cuda/module.h) when a context with that backend first computes: a process that uses
 * another backend loads neither the module nor a driver. The module stays loaded until the process ends. */
#include <dlfcn.h>
#include <pthread.h>

#include "backends/backends.h"
#include "backends/cuda/module.h"
#include "base/module.h"
#include "base/open.h"
#include "dist/dist.h"

static const char file[] = "winnow-cuda.so";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct wn_cuda_module *module;
static const struct wn_backend *table;

static wn_status host_fail(wn_context *ctx, wn_status status, const char *line) {
  return wn_fail(ctx, status, "%s", line);
}
static void host_log(wn_context *ctx, wn_log_level level, const char *line) {
  wn_log(ctx, level, "%s", line);
}
static const struct wn_cuda_host host = {.fail = host_fail, .log = host_log, .open = wn_open_module};

/* The lock is held. */
static wn_status module_open(wn_context *ctx) {
  if (module) return WN_OK;
  if (!wn_module_is_there(file))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "this build has no %s, which the CUDA toolkit builds (cmake -DWINNOW_CUDA=ON)", file);
  char why[512];
  void *opened = wn_module_open(file, why, sizeof why);
  if (!opened) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s", why);
  const wn_cuda_module_fn get = (wn_cuda_module_fn)(uintptr_t)dlsym(opened, WN_CUDA_SYMBOL);
  const struct wn_cuda_module *found = get ? get() : NULL;
  if (found && found->version == wn_cuda_module_version()) {
    module = found;
    return WN_OK;
  }
  dlclose(opened);
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s belongs to another build of winnow", file);
}

const struct wn_backend *wn_backend_cuda_for(enum wn_isa isa) {
  (void)isa;
  pthread_mutex_lock(&lock);
  const struct wn_backend *found = table;
  pthread_mutex_unlock(&lock);
  return found;
}

wn_status wn_backend_cuda_open(wn_context *ctx, const struct wn_backend **out) {
  pthread_mutex_lock(&lock);
  wn_status status = table ? WN_OK : module_open(ctx);
  if (!table && status == WN_OK) status = module->begin(ctx, &host, wn_dist_place(ctx), &table);
  *out = table;
  pthread_mutex_unlock(&lock);
  return status == WN_OK ? WN_OK : wn_fail_prefix(ctx, status, "backend cuda");
}

void wn_backend_cuda_linked(const struct wn_backend *backend) {
  pthread_mutex_lock(&lock);
  table = backend;
  pthread_mutex_unlock(&lock);
}

wn_status wn_backend_cuda_device(wn_context *ctx, int index, wn_device_info *out) {
  pthread_mutex_lock(&lock);
  wn_status status = module_open(ctx);
  if (status == WN_OK) status = module->device(ctx, &host, index, out);
  pthread_mutex_unlock(&lock);
  return status;
}

void wn_backend_cuda_memory(unsigned long long *live, unsigned long long *peak) {
  *live = *peak = 0;
  pthread_mutex_lock(&lock);
  if (module) module->memory(live, peak);
  pthread_mutex_unlock(&lock);
}
