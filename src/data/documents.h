/* Where the documents of a token file begin and end. */
#ifndef WN_DATA_DOCUMENTS_H
#define WN_DATA_DOCUMENTS_H

#include "winnow/data.h"

/* A document begins at its document token and ends before the next one. Tokens before the first belong to no
 * document. */
struct wn_document_places {
  uint64_t count;
  uint64_t *first, *held; /* [count] position of the document token; number of tokens, including it */
};
/* Documents of at least `least` tokens, in file order: one pass counts, one fills; 16 bytes each. */
wn_status wn_documents_find(wn_context *ctx, const wn_token_file *file, int32_t document_token, uint64_t least,
                            struct wn_document_places *out);
void wn_documents_clear(struct wn_document_places *documents); /* allowed on {0} */
/* For sequences that hold one document and nothing else: how long a document must be to fill a sequence of T tokens. At
 * least 90% of it (how Leviathan et al., §6.2, choose their examples), and at least 2, so that there is something to
 * predict. */
uint64_t wn_documents_long(int64_t T);
/* The document token: `given`; if that is -1, the one in data.json in the token file's folder (wn_data_prepare writes
 * it); -1: none. Fails if it is outside the vocabulary. */
wn_status wn_documents_token(wn_context *ctx, const char *path, int32_t given, int64_t vocab_size, int32_t *out);

#endif
