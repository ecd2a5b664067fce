/* Rows ahead: a step may compute the rows of tokens that are only guessed to follow (drafts.h). Private to src/decode.
 *
 * A row ahead has the bits that it would have as a step of its own. The session's position does not count it before it
 * is taken; if another token follows, the caches forget it. */
#ifndef WN_DECODE_SESSION_AHEAD_H
#define WN_DECODE_SESSION_AHEAD_H

#include "decode/session.h"

struct wn_session_ahead {
  int64_t most, count, taken; /* rows of the last step beyond its first, and how many of them have been taken */
  struct wn_arrays arrays;    /* in the backend's memory */
  void *states, *logits;      /* [most,C], [most,V] as the session's own */
  void *f;                    /* [layers,1+most,G,capacity] F after each row, in models with selections */
  struct wn_arrays host;
  struct wn_kv_slot *evicted; /* [layers,1+most] what each row evicted, and its content: */
  char *contents;             /* [layers,1+most] of slot_bytes, if a layer has a window */
  size_t slot_bytes;
  void *scratch; /* [threads] of scratch_bytes, as much as a single token takes */
  size_t scratch_bytes;
};

/* How many rows, at most `most`, the next step of this session may compute ahead: none if its caches could not forget
 * them, because a policy would evict tokens. */
int64_t wn_session_ahead_room(const struct wn_session *s, int64_t most);
/* Makes room for rows ahead, for a session of one sequence. */
wn_status wn_session_ahead_open(wn_context *ctx, struct wn_session *s, int64_t most);
void wn_session_ahead_close(struct wn_session *s);
/* The attention of layer l for n rows of the session, at most 1 + most: runs [n] and a [n] are those of single
 * tokens. */
wn_status wn_session_attend_ahead(struct wn_run *runs, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                                  int64_t n, int threads);
/* Keep what row j of the step changes in a layer's cache: the token that it evicts from a full one, and F after it. */
void wn_session_ahead_before(struct wn_session *s, int64_t l, int64_t j);
wn_status wn_session_ahead_after(struct wn_session *s, int64_t l, int64_t j);
/* The next row becomes the session's last. */
wn_status wn_session_ahead_take(struct wn_session *s);
/* Forgets the rows that have not been taken. A failure leaves the session broken. */
wn_status wn_session_ahead_drop(struct wn_session *s);

#endif
