/* The backend guard: ref's operations on memory that nothing but an operation or a copy can touch. It proves that the
 * engine is fit for a device, on any machine (docs/adding-a-backend.md). */
#ifndef WN_BACKENDS_GUARD_GUARD_H
#define WN_BACKENDS_GUARD_GUARD_H

#include "ops/ops.h"

extern const struct wn_memory wn_guard_memory;

/* Where the numbers of an address are that wn_guard_memory has given out (NULL: NULL). WN_ERR_ARGUMENT for one that it
 * has not: `what`, of operation or copy `of`, is named. */
wn_status wn_guard_find(wn_context *ctx, const char *of, const char *what, const void *shown, size_t bytes,
                        void **real);

#endif
