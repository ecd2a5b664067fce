/* Lays out arrays in one block of memory; see arrays.h. */
#include "base/arrays.h"

#include <stdarg.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"

#define ARRAYS_LIMIT (SIZE_MAX / 4)

/* Bytes of one array, padded to WN_ALIGN; false: more than the limit. */
static bool array_bytes(const struct wn_array *row, size_t *bytes) {
  size_t n = row->element;
  for (int i = 0; i < row->dims.n; i++)
    if (row->dims.size[i] < 0 || !wn_mul_size(n, (size_t)row->dims.size[i], &n)) return false;
  if (n > ARRAYS_LIMIT - (WN_ALIGN - 1)) return false;
  *bytes = (n + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  return true;
}

/* A dimension of 0 makes the array empty, however large the others are: no error. */
static bool array_empty(const struct wn_array *row) {
  for (int i = 0; i < row->dims.n; i++)
    if (row->dims.size[i] == 0) return true;
  return !row->wanted;
}

void wn_arrays_lay(struct wn_arrays *arrays, const struct wn_array *rows, size_t count) {
  for (size_t i = 0; i < count; i++) {
    void *at = NULL;
    size_t bytes;
    if (!array_empty(&rows[i]) && !arrays->failed) {
      if (array_bytes(&rows[i], &bytes) && bytes <= ARRAYS_LIMIT - arrays->bytes) {
        if (arrays->base) at = arrays->base + arrays->bytes;
        arrays->bytes += bytes;
      } else {
        arrays->failed = rows[i].name;
      }
    }
    memcpy(rows[i].where, &at, sizeof at);
  }
}

wn_status wn_arrays_check(wn_context *ctx, const struct wn_arrays *arrays, const char *format, ...) {
  char what[256];
  va_list args;
  if (!arrays->failed) return WN_OK;
  va_start(args, format);
  wn_print_list(what, sizeof what, format, args);
  va_end(args);
  return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: array %s does not fit in memory", what, arrays->failed);
}

wn_status wn_arrays_allocate(wn_context *ctx, struct wn_arrays *arrays, const char *what) {
  if (arrays->failed)
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s needs more than this machine can address (at array %s)", what,
                   arrays->failed);
  void *base;
  WN_TRY((arrays->memory ? arrays->memory : &wn_host_memory)->allocate(ctx, what, arrays->bytes, &base));
  arrays->base = base;
  arrays->bytes = 0;
  return WN_OK;
}

wn_status wn_arrays_create(wn_context *ctx, struct wn_arrays *arrays, const char *what, const struct wn_array *rows,
                           size_t count) {
  return wn_arrays_create_in(ctx, NULL, arrays, what, rows, count);
}

wn_status wn_arrays_create_in(wn_context *ctx, const struct wn_memory *memory, struct wn_arrays *arrays,
                              const char *what, const struct wn_array *rows, size_t count) {
  *arrays = (struct wn_arrays){.memory = memory};
  wn_arrays_lay(arrays, rows, count);
  WN_TRY(wn_arrays_allocate(ctx, arrays, what));
  wn_arrays_lay(arrays, rows, count);
  return WN_OK;
}

void wn_arrays_clear(struct wn_arrays *arrays) {
  if (arrays->base) (arrays->memory ? arrays->memory : &wn_host_memory)->release(arrays->base);
  *arrays = (struct wn_arrays){0};
}

struct wn_arrays wn_arrays_copy(const struct wn_arrays *counted, void *memory, int64_t i) {
  return (struct wn_arrays){.base = (char *)memory + (size_t)i * counted->bytes};
}

void *wn_arrays_lay_copies(struct wn_arrays *arrays, const struct wn_arrays *counted, int64_t n) {
  void *at;
  const struct wn_array row = WN_ARRAY_SIZED(at, 1, "copies", true, WN_DIMS(n, (int64_t)counted->bytes));
  if (!arrays->failed) arrays->failed = counted->failed;
  wn_arrays_lay(arrays, &row, 1);
  return at;
}

size_t wn_arrays_bytes(const struct wn_arrays *counted) {
  return counted->failed ? ARRAYS_LIMIT : counted->bytes;
}
