/* Where pieces of prompts are computed (session_room.c): private to src/decode. */
#ifndef WN_DECODE_SESSION_ROOM_H
#define WN_DECODE_SESSION_ROOM_H

#include "model/workspace.h"

struct wn_session_room {
  int64_t B, piece; /* for so many sequences and tokens of each at a time */
  struct wn_arrays arrays;
  struct wn_layer_blocks blocks; /* one layer's arrays, used by all in turn */
  struct wn_layer_temp temp;
  void *scratch;
  size_t scratch_bytes;
};

/* Makes it large enough, where it is not: whoever had pointers into it takes them anew. A failure leaves it as it was.
 * Zeroed: it has no room yet. */
wn_status wn_session_room_fit(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t piece,
                              struct wn_session_room *room);
wn_status wn_session_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes,
                                      struct wn_session_room *room);
void wn_session_room_clear(struct wn_session_room *room);

#endif
