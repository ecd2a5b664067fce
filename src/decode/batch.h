/* A batch: rows of any sequences, which go through the layers in one pass (batch.c): pieces of prompts, single tokens,
 * tokens with drafts after them, rows to be scored or embedded. Private to src/decode. */
#ifndef WN_DECODE_BATCH_H
#define WN_DECODE_BATCH_H

#include "decode/session.h"

/* A session's part of a batch: its next T tokens. */
struct wn_feed {
  wn_session *session;
  const int32_t *tokens; /* the first T of each row of [B,stride] */
  int64_t stride, T;     /* a run writes how many tokens it fed: fewer if a cache has to be compressed first */
  bool ahead;            /* tokens after the first are guesses (session_ahead.h) */
  bool logits;           /* compute s->logits after the last token; with `ahead` after each */
  float *out;            /* with logits: a copy [B,V], after the first token with `ahead`; or NULL */
  /* Called with the states [B,T,C] of the rows, the final norm's output, in the backend's memory; or NULL. */
  wn_status (*take)(void *user, const struct wn_feed *feed, const void *states);
  void *user;
  int64_t done;     /* tokens of a text that were fed before (wn_batch_feed) */
  int64_t row;      /* written: the first row */
  wn_status status; /* written; WN_OK: the session has taken the tokens */
};

/* Checks, before anything changes, whether these feeds can run together: n sessions of one sequence each, of this
 * model. */
wn_status wn_batch_check(wn_context *ctx, const struct wn_model *model, const struct wn_feed *feeds, int64_t n);
/* Runs the feeds [n]: as many at a time as the room has rows for. A feed's bits depend on it alone. A failure belongs
 * to a feed, unless the pass as a whole fails; the first one is returned. */
wn_status wn_batch_run(wn_context *ctx, struct wn_room *room, struct wn_feed *feeds, int64_t n);
/* Feeds T tokens of each sequence in the session's own room, `chunk` at a time; 0: up to the fixed places of the
 * text. */
wn_status wn_batch_feed(wn_context *ctx, struct wn_feed *feed, int64_t T, int64_t chunk);
/* A context that is read layer by layer: each layer reads all of it and is compressed before the next one begins, with
 * the bits of a reading in pieces and wn_session_compress. */
struct wn_reading {
  struct wn_feed feed; /* T tokens of each sequence; without `ahead` and `take` */
  int64_t layer;       /* the next one */
  void *x; /* [B,C] for each token, by pieces: the residual stream at its entry; NULL: nothing is going on */
};
/* May the session read its context so? It is empty, will be compressed once, where the context ends, and no layer waits
 * for others: nothing reads the context again, and no other session takes over what has been read. */
bool wn_session_reads_by_layer(const struct wn_session *s);
/* _begin: checks, and allocates x. _layer: reads a layer; after the last one x is NULL again. Until then the session
 * can do nothing else. A failure leaves it empty, as it was before, and so does _drop, which ends a reading. */
wn_status wn_reading_begin(wn_context *ctx, struct wn_reading *reading);
wn_status wn_reading_layer(struct wn_reading *reading);
void wn_reading_drop(struct wn_reading *reading);
/* wn_room_fit, with the scratch that rows apart need. */
wn_status wn_batch_room(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart,
                        struct wn_room *room);

#endif
