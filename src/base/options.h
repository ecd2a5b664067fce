/* Option structs of the public API. Each begins with `size_t size`, the caller's sizeof, so that a struct may grow at
 * its end: a field that an older caller does not have reads as 0, which stands for its default. */
#ifndef WN_BASE_OPTIONS_H
#define WN_BASE_OPTIONS_H

#include <stddef.h>
#include "winnow/context.h"

/* The caller's struct as this library has it: own [bytes] gets what the caller has, zeros after it, and own's size. One
 * line in WN_ERR_ARGUMENT where the size is 0 or none that such a struct can have, or where there is no struct; in
 * WN_ERR_UNSUPPORTED where the caller is newer and uses a field that this library does not know. */
wn_status wn_options_read(wn_context *ctx, const char *name, const void *options, void *own, size_t bytes);
/* Defaults [bytes] for a caller whose struct has `size` bytes, whose field `size` is set. */
void wn_options_default(const void *defaults, size_t bytes, void *options, size_t size);

#define WN_OPTIONS_READ(ctx, type, options, own) wn_options_read(ctx, #type, options, own, sizeof(type))

#endif
