/* The memory in which a backend's arrays live. Operations read and write it directly. All other code copies to and from
 * it, unless it is host memory (`host`), which can be used like any other.
 *
 * What a context asks for (operations, copies, zeros) is done in the order of the calls, but possibly after a call
 * returns. A copy to the host is complete once wait returns for a mark recorded after it. On the host everything is
 * done at once, and wait does nothing. */
#ifndef WN_BASE_MEMORY_H
#define WN_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

struct wn_dist_device; /* dist/device.h */

struct wn_memory {
  bool host;
  /* Like wn_alloc and wn_free (alloc.h): zero-filled, aligned to WN_ALIGN, bytes 0 gives NULL. */
  wn_status (*allocate)(wn_context *ctx, const char *what, size_t bytes, void **out);
  void (*release)(void *p);
  /* From the host (`from` may be reused on return); to the host; within this memory (the two may overlap). */
  wn_status (*copy_in)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*copy_out)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*copy)(wn_context *ctx, void *to, const void *from, size_t bytes);
  wn_status (*zero)(wn_context *ctx, void *to, size_t bytes);
  /* Records a mark after everything asked for so far; wait blocks until all before it is done or has failed. */
  uint64_t (*record)(wn_context *ctx);
  wn_status (*wait)(wn_context *ctx, uint64_t mark);
  /* Brackets a step that repeats, such as decoding one token. What the thread asks for between begin and end may be
   * held back and submitted as a whole, at the end or when something is copied or recorded. They nest. Call step_end
   * even after a failure. NULL: the memory gains nothing from it. */
  void (*step_begin)(wn_context *ctx);
  wn_status (*step_end)(wn_context *ctx);
  /* Sends arrays to other processes. NULL: on the host the processes' transport does, elsewhere nothing can. */
  const struct wn_dist_device *device;
};

/* Host memory. */
extern const struct wn_memory wn_host_memory;

/* Brackets a step in any memory. `end` returns the step's own status, or an error of what was held back. */
void wn_memory_step_begin(wn_context *ctx, const struct wn_memory *memory);
wn_status wn_memory_step_end(wn_context *ctx, const struct wn_memory *memory, wn_status status);

/* Copies to the host and waits for it. */
wn_status wn_memory_read(wn_context *ctx, const struct wn_memory *memory, void *to, const void *from, size_t bytes);

/* Gives the host access to an array: on the host the array itself, else an allocated copy. `close` releases it and
 * writes it back if `changed`. */
wn_status wn_memory_open(wn_context *ctx, const struct wn_memory *memory, const char *what, const void *array,
                         size_t bytes, void **out);
wn_status wn_memory_close(wn_context *ctx, const struct wn_memory *memory, void *array, size_t bytes, void *opened,
                          bool changed);

#endif
