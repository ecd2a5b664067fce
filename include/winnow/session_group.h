/* winnow: steps of several sessions together. The model's weights are read once for all of their tokens;
 * wn_session_feed reads them once for each session. */
#ifndef WINNOW_SESSION_GROUP_H
#define WINNOW_SESSION_GROUP_H

#include "winnow/model.h"

WN_STABLE_BEGIN

/* The memory of a step of up to `most` rows of this model: a session has one, and with drafts (generate.h)
 * some more. It keeps nothing of the sessions: each of them may take
 * part in the next step or not, and may be destroyed in between.
 * Sessions created with wn_session_options.group read their prompts in the group's memory, which grows to what the
 * largest of them needs. Such a session has its cache and little else; a session without a group also has room for a
 * piece of a prompt (10 MB for a model of 135M). One of these sessions at a time may be created, fed or scored. */
typedef struct wn_session_group wn_session_group;
wn_status wn_session_group_create(wn_context *ctx, wn_model *model, int64_t most, wn_session_group **out);
void wn_session_group_destroy(wn_session_group *group); /* NULL is allowed */
/* A session's part of a step. */
typedef struct wn_session_row {
  wn_session *session; /* of one sequence */
  int32_t token;
  float *logits;    /* [V] after the token; NULL: not wanted */
  wn_status status; /* written; WN_OK: the session has taken the token */
} wn_session_row;
/* Feeds each session its token: rows [n], each with a session of its own, n at most `most`. A row gets, to the bit,
 * what wn_session_feed of that token alone would give it, whatever the other rows are. The sessions' caches, budgets
 * and policies may differ; sessions of encoder-decoders are WN_ERR_UNSUPPORTED. A token outside the vocabulary, or a
 * session that is full, occurs twice or belongs to another model is refused before anything changes: the error names
 * it, and every status is that failure's. If one session fails later, the others still take their tokens, and the call
 * returns the first failure. A session that failed so has taken its token in part: it can only be reset. No
 * allocation. */
wn_status wn_session_group_feed(wn_context *ctx, wn_session_group *group, wn_session_row *rows, int64_t n);

WN_API_END
#endif
