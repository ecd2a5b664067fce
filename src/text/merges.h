/* Encodes a long text with a SentencePiece BPE model: the same ids as SentencePiece, in less memory and time. */
#ifndef WN_TEXT_MERGES_H
#define WN_TEXT_MERGES_H

#include "text/tokenizer_kinds.h"

/* Can this model be used here? It must be BPE and normalise nothing but spaces. */
bool wn_merges_serve(const wn_tokenizer *tok);

/* Like wn_unigram_encode. WN_ERR_UNSUPPORTED, with nothing appended: the model has pieces that must be split again. */
wn_status wn_merges_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                           size_t *count);

#endif
