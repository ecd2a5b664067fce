/* Host memory behind the interface of a backend's memory: wn_alloc allocates, memcpy copies, and waiting returns at
 * once. */
#include "base/memory.h"

#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/error.h"
#include "base/parallel.h"

static wn_status host_copy(wn_context *ctx, void *to, const void *from, size_t bytes) {
  (void)ctx;
  if (bytes > 0 && to != from) memmove(to, from, bytes);
  return WN_OK;
}

static void host_zero_range(void *to, int64_t from, int64_t end) {
  memset((char *)to + from, 0, (size_t)(end - from));
}
static wn_status host_zero(wn_context *ctx, void *to, size_t bytes) {
  const int64_t part = 1 << 20; /* each begins with whole cache lines */
  wn_parallel_blocks(ctx ? ctx->threads : 1, (int64_t)bytes, part, host_zero_range, to);
  return WN_OK;
}

static uint64_t host_record(wn_context *ctx) {
  (void)ctx;
  return 0;
}

static wn_status host_wait(wn_context *ctx, uint64_t mark) {
  (void)ctx, (void)mark;
  return WN_OK;
}

const struct wn_memory wn_host_memory = {.host = true,
                                         .allocate = wn_alloc,
                                         .release = wn_free,
                                         .copy_in = host_copy,
                                         .copy_out = host_copy,
                                         .copy = host_copy,
                                         .zero = host_zero,
                                         .record = host_record,
                                         .wait = host_wait};

void wn_memory_step_begin(wn_context *ctx, const struct wn_memory *memory) {
  if (memory->step_begin) memory->step_begin(ctx);
}

wn_status wn_memory_step_end(wn_context *ctx, const struct wn_memory *memory, wn_status status) {
  const wn_status ended = memory->step_end ? memory->step_end(ctx) : WN_OK;
  return status != WN_OK ? status : ended;
}

wn_status wn_memory_read(wn_context *ctx, const struct wn_memory *memory, void *to, const void *from, size_t bytes) {
  WN_TRY(memory->copy_out(ctx, to, from, bytes));
  return memory->wait(ctx, memory->record(ctx));
}

wn_status wn_memory_open(wn_context *ctx, const struct wn_memory *memory, const char *what, const void *array,
                         size_t bytes, void **out) {
  *out = (void *)(uintptr_t)array;
  if (memory->host) return WN_OK;
  WN_TRY(wn_alloc(ctx, what, bytes, out));
  const wn_status status = wn_memory_read(ctx, memory, *out, array, bytes);
  if (status == WN_OK) return WN_OK;
  wn_free(*out);
  *out = NULL;
  return status;
}

wn_status wn_memory_close(wn_context *ctx, const struct wn_memory *memory, void *array, size_t bytes, void *opened,
                          bool changed) {
  if (memory->host) return WN_OK;
  const wn_status status = changed && opened ? memory->copy_in(ctx, array, opened, bytes) : WN_OK;
  wn_free(opened);
  return status;
}
