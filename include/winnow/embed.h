/* winnow: hidden states of texts, and embeddings made of them. */
#ifndef WINNOW_EMBED_H
#define WINNOW_EMBED_H

#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* Feeds tokens [B,T] as wn_session_feed does, in the same pieces, and writes the state of each: states [B,T,C], the
 * output of the final norm, from which logits are computed (a transformer's "last hidden state"). The session's
 * budgets, masks and thresholds apply. WN_ERR_ARGUMENT names a token that the vocabulary does not have. */
wn_status wn_session_states(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t T, float *states);

/* How the states of a text become one vector. */
typedef enum wn_pooling {
  WN_POOLING_MEAN, /* "mean": of all tokens */
  WN_POOLING_LAST  /* "last": the last token's */
} wn_pooling;
#define WN_POOLING_COUNT 2
const char *wn_pooling_name(wn_pooling pooling);

/* What wn_session_embed makes of the states; zero but for the size: the defaults. */
typedef struct wn_embed_options {
  size_t size;        /* sizeof the struct (context.h) */
  wn_pooling pooling; /* WN_POOLING_MEAN */
  bool raw;           /* default false: the vector is divided by its Euclidean norm */
} wn_embed_options;
/* Feeds tokens [B,T] to the session and writes their embeddings [B,C]. Tokens that the session has seen before are not
 * part of the mean. options may be NULL. Memory does not grow with the text. */
wn_status wn_session_embed(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t T,
                           const wn_embed_options *options, float *embeddings);

WN_API_END
#endif
