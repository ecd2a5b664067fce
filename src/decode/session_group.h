/* The internals of a group (session_group.c). Private to src/decode. */
#ifndef WN_DECODE_SESSION_GROUP_H
#define WN_DECODE_SESSION_GROUP_H

#include "decode/batch.h"
#include "winnow/session_group.h"

struct wn_session_group {
  wn_context *ctx;
  const struct wn_model *model;
  int64_t most;
  struct wn_room room; /* also of sessions that were made with the group */
  struct wn_arrays arrays;
  struct wn_feed *feeds; /* [most] */
  int64_t *order;        /* [most] which generation each feed is of (generate_together.c) */
};

#endif
