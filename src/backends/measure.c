/* What benchmarks need from a context's backend, wherever its arrays are. */
#include "winnow/measure.h"

#include <string.h>

#include "backends/backends.h"
#include "backends/cuda/module.h"
#include "base/misuse.h"

wn_status wn_context_wait(wn_context *ctx) {
  const struct wn_backend *backend;
  WN_CHECK_WORK();
  WN_TRY(wn_backend_of(ctx, &backend));
  return backend->memory->wait(ctx, backend->memory->record(ctx));
}

wn_status wn_context_memory(wn_context *ctx, unsigned long long *live_bytes, unsigned long long *peak_bytes) {
  const struct wn_backend *backend;
  wn_memory_info info;
  WN_CHECK_WORK(WN_POINTER(live_bytes), WN_POINTER(peak_bytes));
  WN_TRY(wn_backend_of(ctx, &backend));
  wn_memory_info_get(&info);
  if (strcmp(backend->name, "cuda") == 0) wn_backend_cuda_memory(&info.live_bytes, &info.peak_bytes);
  *live_bytes = info.live_bytes, *peak_bytes = info.peak_bytes;
  return WN_OK;
}
