/* Lists of ids that grow. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/tokenizer.h"

wn_status wn_text_grow(wn_context *ctx, const char *what, void *data, size_t element, size_t count, size_t more,
                       size_t *capacity) {
  size_t need;
  if (!wn_add_size(count, more, &need)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  if (need <= *capacity) return WN_OK;
  size_t room = *capacity > SIZE_MAX / 2 ? need : 2 * *capacity;
  if (room < need) room = need;
  if (room < 64) room = 64;
  WN_TRY(wn_resize(ctx, what, data, element, count, room));
  *capacity = room;
  return WN_OK;
}

wn_status wn_ids_add(wn_context *ctx, struct wn_ids *ids, const int32_t *more, size_t count) {
  if (count == 0) return WN_OK;
  WN_TRY(wn_text_grow(ctx, "tokens", &ids->data, sizeof *ids->data, ids->count, count, &ids->capacity));
  memcpy(ids->data + ids->count, more, count * sizeof *more);
  ids->count += count;
  return WN_OK;
}
void wn_ids_clear(struct wn_ids *ids) {
  wn_free(ids->data);
  *ids = (struct wn_ids){0};
}
