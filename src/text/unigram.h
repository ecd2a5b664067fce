/* Encodes a long text with a SentencePiece unigram model: the same ids as SentencePiece, in a tenth of the memory. */
#ifndef WN_TEXT_UNIGRAM_H
#define WN_TEXT_UNIGRAM_H

#include "text/tokenizer_kinds.h"

/* Can this model be used here? It must be unigram and normalise nothing but spaces. */
bool wn_unigram_serves(const wn_tokenizer *tok);

/* Appends the ids of a text, which must be UTF-8 without U+2581, except the first `dropped`; *count: number of all
 * ids. */
wn_status wn_unigram_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                            size_t *count);

#endif
