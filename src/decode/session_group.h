/* The internals of a group (session_group.c). Private to src/decode. */
#ifndef WN_DECODE_SESSION_GROUP_H
#define WN_DECODE_SESSION_GROUP_H

#include "decode/session.h"
#include "winnow/session_group.h"

struct wn_session_group {
  wn_context *ctx;
  const struct wn_model *model;
  int64_t most;
  struct wn_arrays arrays, host; /* the backend's memory, and the host's */
  struct wn_layer_blocks blocks;
  struct wn_layer_temp temp;
  int32_t *tokens, *positions; /* [most] */
  int32_t *tokens_shown, *positions_shown;
  void *x_out, *n_out;  /* [most,C] */
  void *rstd, *mean;    /* [most] */
  void *logits;         /* [most,V] */
  wn_session_row *rows; /* [most] with `order` [most]: for steps of generations (generate_together.c) */
  int64_t *order;
  void *scratch;
  size_t scratch_bytes;
  struct wn_session_room room; /* shared by sessions that were made with the group: one prompt is read at a time */
};

/* wn_session_group_feed. all: every session gets its logits (s->logits), whether or not its row asks for a copy. */
wn_status wn_session_group_advance(wn_context *ctx, struct wn_session_group *group, wn_session_row *rows, int64_t n,
                                   bool all);

#endif
