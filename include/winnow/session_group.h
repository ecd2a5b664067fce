/* winnow: steps of several sessions together. The weights are read once for all of their tokens, where wn_session_feed
 * reads them once for each session. */
#ifndef WINNOW_SESSION_GROUP_H
#define WINNOW_SESSION_GROUP_H

#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* The memory of a step, for `most` sessions of this model at a time. It holds nothing of the sessions: any of them may
 * be in the next step or not, and be destroyed in between.
 * Sessions that are created with wn_session_options.group read their prompts in the group's memory, which grows to what
 * the largest of them needs: each has then its cache and little else, where a session alone has room for a piece of a
 * prompt (10 MB for a model of 135M). Of these sessions one at a time may be created, fed or scored. */
typedef struct wn_session_group wn_session_group;
wn_status wn_session_group_create(wn_context *ctx, wn_model *model, int64_t most, wn_session_group **out);
void wn_session_group_destroy(wn_session_group *group); /* NULL is allowed */
/* A session's part of a step. */
typedef struct wn_session_row {
  wn_session *session; /* of one sequence */
  int32_t token;
  float *logits;    /* [V] after the token; NULL: not wanted */
  wn_status status; /* written: WN_OK, the session has taken the token */
} wn_session_row;
/* Feeds each session its token; rows [n], each of another session, n at most the group's. A row gets, to the bit, what
 * wn_session_feed of that token alone gives it, whatever the other rows and their number are. The sessions' caches,
 * budgets and policies may differ; those of encoder-decoders are WN_ERR_UNSUPPORTED. What cannot be fed (a token
 * outside the vocabulary, a session that is full, twice there, or of another model) is refused by name before anything
 * changes: every status is that failure's. Where a session fails by itself later, the others take their tokens
 * nevertheless; the call returns the first failure. A session whose status is not WN_OK then has its token in part: it
 * can only be reset. No allocation. */
wn_status wn_session_group_feed(wn_context *ctx, wn_session_group *group, wn_session_row *rows, int64_t n);

WN_API_END
#endif
