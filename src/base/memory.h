/* Where a backend's arrays lie. Operations read and write them; everybody else reaches them by copies alone, but where
 * they lie in the host's own memory (`host`), which it may read and write as any other.
 *
 * What a context asks for (operations, copies, zeros) happens in the order of its calls, but not before a call returns:
 * a copy out has arrived once wn_memory's wait has returned for a mark that was recorded after it. On the host all is
 * done at once, and wait has nothing to wait for. */
#ifndef WN_BASE_MEMORY_H
#define WN_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

struct wn_memory {
  bool host;
  /* As wn_alloc and wn_free (alloc.h): zeros, aligned to WN_ALIGN, bytes 0 gives NULL. */
  wn_status (*allocate)(wn_context *ctx, const char *what, size_t bytes, void **out);
  void (*release)(void *p);
  /* From the host, whose `from` is free again when it returns; to the host; within, where the two may overlap. */
  wn_status (*copy_in)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*copy_out)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*copy)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*zero)(wn_context *ctx, void *to, size_t bytes);
  /* A mark behind everything asked for so far; and waiting until all before it is done, or has failed. */
  uint64_t (*record)(wn_context *ctx);
  wn_status (*wait)(wn_context *ctx, uint64_t mark);
  /* A step that comes again and again, as a token's: what its thread asks for between the two may be held back until
   * the end, or until something is copied or recorded, and be asked for as a whole. They nest; step_end is called where
   * the step has failed, too. NULL: nothing is gained. */
  void (*step_begin)(wn_context *ctx);
  wn_status (*step_end)(wn_context *ctx);
};

/* The host's own. */
extern const struct wn_memory wn_host_memory;

/* Around a step, in any memory; `end` returns the step's own status, or what has gone wrong in what was held back. */
void wn_memory_step_begin(wn_context *ctx, const struct wn_memory *memory);
wn_status wn_memory_step_end(wn_context *ctx, const struct wn_memory *memory, wn_status status);

/* Copies out and waits for it. */
wn_status wn_memory_read(wn_context *ctx, const struct wn_memory *memory, void *to, const void *from, size_t bytes);

/* An array where the host can read and write it: the array itself on the host, else a copy of it that is allocated.
 * `close` takes it back, with what has been written to it where `changed`. */
wn_status wn_memory_open(wn_context *ctx, const struct wn_memory *memory, const char *what, const void *array,
                         size_t bytes, void **out);
wn_status wn_memory_close(wn_context *ctx, const struct wn_memory *memory, void *array, size_t bytes, void *opened,
                          bool changed);

#endif
