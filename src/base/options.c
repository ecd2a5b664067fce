/* Option structs: see options.h. */
#include "base/options.h"

#include <string.h>
#include "base/error.h"

#define OPTIONS_MOST 65536 /* a larger size must be uninitialised memory */

wn_status wn_options_read(wn_context *ctx, const char *name, const void *options, void *own, size_t bytes) {
  size_t size;
  if (!options) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s is NULL", name);
  memcpy(&size, options, sizeof size);
  if (size == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the size of %s is 0; the caller sets it to sizeof(%s)", name, name);
  if (size <= sizeof size || size % sizeof size || size > OPTIONS_MOST)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the size of %s is %zu; the caller sets it to sizeof(%s), here %zu", name,
                   size, name, bytes);
  for (size_t i = bytes; i < size; i++)
    if (((const unsigned char *)options)[i])
      return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                     "%s has a field that this library does not know: the caller has %zu bytes of it, this library %zu",
                     name, size, bytes);
  memset(own, 0, bytes);
  memcpy(own, options, size < bytes ? size : bytes);
  memcpy(own, &bytes, sizeof bytes);
  return WN_OK;
}

wn_status wn_reserved_check(wn_context *ctx, const char *name, const uint64_t *reserved, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof *reserved; i++)
    if (reserved[i])
      return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                     "%s has a field that this library does not know, or was not initialised (%s_init)", name, name);
  return WN_OK;
}

void wn_options_default(const void *defaults, size_t bytes, void *options, size_t size) {
  if (size < sizeof size) return;
  memset(options, 0, size);
  memcpy(options, defaults, size < bytes ? size : bytes);
  memcpy(options, &size, sizeof size);
}
