/* Drafts: tokens that may follow, guessed from the text so far. The step that feeds a drawn token computes the rows of
 * the drafts after it as well (session_ahead.h), and reads the parameters once for all of them. Each next token is then
 * drawn as always, from its row's logits; while it is the draft's, no step is needed. A text therefore has the same
 * tokens and the same bits with drafts and without, sampled or greedy, whatever the drafts were.
 *
 * A draft model (Leviathan et al. 2023, speculative decoding) guesses greedily, in a session of its own that follows
 * the text: of what it was fed, tokens that did not come are taken back. Where lookup finds more than a few tokens, its
 * guesses are taken, which cost nothing. A guess of the model costs one of its steps.
 *
 * Lookup (Saxena 2023, prompt lookup decoding): the longest end of the text that occurs before, at least two tokens, of
 * equal ones the last; the drafts are what followed there. A search costs one comparison per token of the text, and one
 * for each token of a match. */
#ifndef WN_DECODE_DRAFTS_H
#define WN_DECODE_DRAFTS_H

#include "decode/generation.h"
#include "decode/session_ahead.h"

struct wn_drafts {
  int64_t most, wish; /* drafts of a step: at most, and now: it doubles while all are right and halves if none is */
  int32_t *text;      /* [capacity] the text so far */
  int64_t count, capacity;
  int32_t step[1 + WN_DRAFT_MAX]; /* the last step's token, and the guesses after it */
  int64_t guesses, right;         /* of the last step */
  wn_session *model;              /* a draft model's; NULL: there is none, or it has failed */
  int32_t *read;                  /* [capacity + WN_DRAFT_MAX] what that session has been fed */
  float *logits;                  /* [V] its */
};

/* What the cache of a draft model takes for a text of so many tokens, prompt and answer. */
wn_status wn_drafts_plan_bytes(wn_context *ctx, const wn_model *model, int64_t tokens, size_t *bytes);
/* Opens and closes the drafts of a generation whose options want them. */
wn_status wn_drafts_open(struct wn_generation *g);
void wn_drafts_close(struct wn_generation *g);
/* Notes a token that was drawn. */
void wn_drafts_note(struct wn_generation *g, int32_t id);
/* Adds at most `room` drafts after the token to the feed of a step. */
void wn_drafts_add(struct wn_generation *g, int32_t id, int64_t room, struct wn_feed *feed);
/* Is a token that was drawn the next draft of the last step? Its row is then ahead. */
bool wn_drafts_next(struct wn_generation *g, int32_t id);
/* No further one is: forgets what is ahead. */
wn_status wn_drafts_end(struct wn_generation *g);

#endif
