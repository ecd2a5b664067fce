/* The memory in which batches are computed (room.c). It belongs to whoever runs them: a session has a room of its own,
 * or uses its group's. Private to src/decode. */
#ifndef WN_DECODE_ROOM_H
#define WN_DECODE_ROOM_H

#include "model/workspace.h"

struct wn_room {
  int64_t rows, apart; /* for so many rows at a time, and so many of them with logits that are computed together */
  struct wn_arrays arrays, host;
  struct wn_layer_blocks blocks; /* one layer's arrays, used by all in turn */
  struct wn_layer_temp temp;
  int32_t *tokens, *positions; /* [rows] */
  int32_t *tokens_shown, *positions_shown;
  int64_t *pieces; /* [rows] of struct wn_run */
  void *logits;    /* [apart,V] */
  void *scratch;
  size_t scratch_bytes;
};

/* Makes the room large enough, if it is not; pointers into it are then invalid. After a failure it is as it was. A
 * zeroed struct is an empty room. */
wn_status wn_room_fit(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart, struct wn_room *room);
wn_status wn_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes, struct wn_room *room);
void wn_room_clear(struct wn_room *room);

#endif
