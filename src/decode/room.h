/* The memory in which batches are computed (room.c). It belongs to whoever runs them: a session has a room of its own,
 * or uses its group's. Private to src/decode. */
#ifndef WN_DECODE_ROOM_H
#define WN_DECODE_ROOM_H

#include "model/workspace.h"

/* Rows that are scored together (score.c): enough for an efficient product; 12.6 MB of logits with a vocabulary of
 * 49,152. */
enum { WN_SCORING_ROWS = 64 };
struct wn_room_scoring {
  struct wn_arrays arrays, host;    /* the backend's memory, and the host's; empty until something is scored */
  void *states, *logits;            /* [rows,C], [rows,V] */
  int32_t *targets, *targets_shown; /* [rows] */
  int64_t *at;                      /* [rows] places in the caller's arrays */
  double *loss, *loss_read;         /* [rows] */
  uint8_t *hit, *hit_read;          /* [rows] */
  int64_t count;                    /* rows gathered */
};

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
  struct wn_room_scoring scoring;
};

/* Make the arrays and the scratch large enough, if they are not; pointers into them are then invalid. After a failure
 * they are as they were. A zeroed struct is an empty room. */
wn_status wn_room_fit(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart, struct wn_room *room);
wn_status wn_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes, struct wn_room *room);
void wn_room_clear(struct wn_room *room);

#endif
