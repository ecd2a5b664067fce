/* Lists of ids that grow. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/tokenizer.h"

wn_status wn_text_grow(wn_context *ctx, const char *what, void **data, size_t element, size_t count, size_t more,
                       size_t *capacity) {
  size_t need, bytes;
  if (!wn_add_size(count, more, &need)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  if (need <= *capacity) return WN_OK;
  size_t room = *capacity > SIZE_MAX / 2 ? need : 2 * *capacity;
  if (room < need) room = need;
  if (room < 64) room = 64;
  if (!wn_mul_size(room, element, &bytes)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  void *p;
  WN_TRY(wn_alloc(ctx, what, bytes, &p));
  if (count) memcpy(p, *data, count * element);
  wn_free(*data);
  *data = p;
  *capacity = room;
  return WN_OK;
}

wn_status wn_ids_add(wn_context *ctx, struct wn_ids *ids, const int32_t *more, size_t count) {
  if (count == 0) return WN_OK;
  void *data = ids->data;
  wn_status status = wn_text_grow(ctx, "tokens", &data, sizeof *ids->data, ids->count, count, &ids->capacity);
  ids->data = data;
  WN_TRY(status);
  memcpy(ids->data + ids->count, more, count * sizeof *more);
  ids->count += count;
  return WN_OK;
}
void wn_ids_clear(struct wn_ids *ids) {
  wn_free(ids->data);
  *ids = (struct wn_ids){0};
}
