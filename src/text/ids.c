/* Lists of ids that grow. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/tokenizer.h"

wn_status wn_ids_add(wn_context *ctx, struct wn_ids *ids, const int32_t *more, size_t count) {
  if (count == 0) return WN_OK;
  WN_TRY(WN_GROW(ctx, "tokens", &ids->data, ids->count, count, &ids->capacity));
  memcpy(ids->data + ids->count, more, count * sizeof *more);
  ids->count += count;
  return WN_OK;
}
void wn_ids_clear(struct wn_ids *ids) {
  wn_free(ids->data);
  *ids = (struct wn_ids){0};
}
