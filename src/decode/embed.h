/* Embeddings piece by piece, for programs that read several texts in turn. Private. */
#ifndef WN_DECODE_EMBED_H
#define WN_DECODE_EMBED_H

#include "winnow/embed.h"

/* Feeds a session of one sequence up to T tokens, until the next fixed place of the text (session.h). Adds their states
 * to sums [C]; with pooling "last" sums is set to the last token's state. *now: how many were fed. */
wn_status wn_embed_piece(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t T, wn_pooling pooling,
                         double *sums, int64_t *now);
/* Writes the embedding of a text of T tokens: out [C], the first C numbers. False: its length is 0 or not finite, so it
 * cannot be normalised. */
bool wn_embed_finish(const double *sums, int64_t C, int64_t T, wn_pooling pooling, bool raw, float *out);

#endif
