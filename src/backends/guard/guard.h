/* The backend guard: ref's operations on memory that only operations and copies can access. It proves on any machine
 * that the engine is fit for a device (docs/adding-a-backend.md). */
#ifndef WN_BACKENDS_GUARD_GUARD_H
#define WN_BACKENDS_GUARD_GUARD_H

#include "ops/ops.h"

extern const struct wn_memory wn_guard_memory;

/* The real address of data that wn_guard_memory allocated (NULL: NULL). WN_ERR_ARGUMENT for any other address; the
 * error names `what`, an argument of the operation or copy `of`. */
wn_status wn_guard_find(wn_context *ctx, const char *of, const char *what, const void *shown, size_t bytes,
                        void **real);

#endif
