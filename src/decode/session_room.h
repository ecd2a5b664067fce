/* The memory in which pieces of prompts are computed (session_room.c). Private to src/decode. */
#ifndef WN_DECODE_SESSION_ROOM_H
#define WN_DECODE_SESSION_ROOM_H

#include "model/workspace.h"

struct wn_session_room {
  int64_t B, piece; /* for so many sequences, and tokens of each, at a time */
  struct wn_arrays arrays;
  struct wn_layer_blocks blocks; /* one layer's arrays, used by all in turn */
  struct wn_layer_temp temp;
  void *scratch;
  size_t scratch_bytes;
};

/* Makes the room large enough, if it is not; pointers into it are then invalid. After a failure it is as it was. A
 * zeroed struct is an empty room. */
wn_status wn_session_room_fit(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t piece,
                              struct wn_session_room *room);
wn_status wn_session_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes,
                                      struct wn_session_room *room);
void wn_session_room_clear(struct wn_session_room *room);

#endif
