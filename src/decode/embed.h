/* Embeddings piece by piece, for programs that read several texts in turn. Private. */
#ifndef WN_DECODE_EMBED_H
#define WN_DECODE_EMBED_H

#include "winnow/embed.h"

/* Feeds T tokens per sequence, tokens [B,stride], up to the next place of the text (session.h), and adds their states
 * to sums [B,C], or, of the last one, puts them there. *now: how many were fed. Allocates. */
wn_status wn_embed_piece(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t stride, int64_t T,
                         wn_pooling pooling, double *sums, int64_t *now);
/* out [C]: the embedding of a text of T tokens, of its first C numbers. False: it has no length to be divided by. */
bool wn_embed_finish(const double *sums, int64_t C, int64_t T, wn_pooling pooling, bool raw, float *out);

#endif
