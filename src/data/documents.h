/* Where the documents of a token file begin and end. */
#ifndef WN_DATA_DOCUMENTS_H
#define WN_DATA_DOCUMENTS_H

#include "winnow/data.h"

/* A document begins at its document token and ends before the next one; tokens before the first are of none. */
struct wn_document_places {
  uint64_t count;
  uint64_t *first, *held; /* [count] the document token's place, and tokens with it */
};
/* Those of at least `least` tokens, in file order: one pass to count, one to fill; 16 bytes each. */
wn_status wn_documents_find(wn_context *ctx, const wn_token_file *file, int32_t document_token, uint64_t least,
                            struct wn_document_places *out);
void wn_documents_clear(struct wn_document_places *documents); /* allowed on {0} */
/* A row of T tokens is one document and holds nothing else: how long it must be to count as long (at least 90% of the
 * row, as Leviathan et al., section 6.2, take their examples). At least 2, so that there is something to predict. */
uint64_t wn_documents_long(int64_t T);
/* `given`, or where it is -1 what data.json in the token file's folder says (wn_data_prepare writes it); -1: nothing.
 * Fails where the vocabulary does not have it. */
wn_status wn_documents_token(wn_context *ctx, const char *path, int32_t given, int64_t vocab_size, int32_t *out);

#endif
