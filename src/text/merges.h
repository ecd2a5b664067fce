/* A SentencePiece BPE model on a long text: the same ids as SentencePiece's, in less memory and time. */
#ifndef WN_TEXT_MERGES_H
#define WN_TEXT_MERGES_H

#include "text/tokenizer_kinds.h"

/* Whether the model is one: BPE, nothing is normalised but spaces. */
bool wn_merges_serve(const wn_tokenizer *tok);

/* As wn_unigram_encode; WN_ERR_UNSUPPORTED, with nothing appended: the model has pieces that are split again. */
wn_status wn_merges_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                           size_t *count);

#endif
