/* A SentencePiece unigram model on a long text: the same ids as SentencePiece's, in a tenth of the memory. */
#ifndef WN_TEXT_UNIGRAM_H
#define WN_TEXT_UNIGRAM_H

#include "text/tokenizer_kinds.h"

/* Whether the model is one: unigram, and nothing is normalised but spaces. */
bool wn_unigram_serves(const wn_tokenizer *tok);

/* Appends the ids of a text, which must be UTF-8 without U+2581, but for the first `dropped`; *count: of all. */
wn_status wn_unigram_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                            size_t *count);

#endif
