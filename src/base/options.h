/* Option structs of the public API. Each begins with `size_t size`, the caller's sizeof, so that a struct can grow at
 * its end: a field that an older caller lacks is read as 0, which means the default. */
#ifndef WN_BASE_OPTIONS_H
#define WN_BASE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

/* Copies the caller's struct to own [bytes]: the fields that the caller has, zeros after them, and this library's size.
 * WN_ERR_ARGUMENT if the struct is NULL or its size is impossible; WN_ERR_UNSUPPORTED if the caller is newer and sets a
 * field that this library does not know. */
wn_status wn_options_read(wn_context *ctx, const char *name, const void *options, void *own, size_t bytes);
/* Writes the defaults [bytes] to a caller's struct of `size` bytes and sets its field `size`. */
void wn_options_default(const void *defaults, size_t bytes, void *options, size_t size);

/* A configuration has no size but room for later fields, `reserved`, which a caller leaves 0. WN_ERR_UNSUPPORTED if it
 * is not: the caller is newer and sets such a field, or the struct was not initialised. */
wn_status wn_reserved_check(wn_context *ctx, const char *name, const uint64_t *reserved, size_t bytes);

#define WN_RESERVED_CHECK(ctx, type, config) wn_reserved_check(ctx, #type, (config)->reserved, sizeof(config)->reserved)
#define WN_OPTIONS_READ(ctx, type, options, own) wn_options_read(ctx, #type, options, own, sizeof(type))

#endif
