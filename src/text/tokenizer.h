/* Tokenizers, for the layers above: long documents encoded in pieces. */
#ifndef WN_TEXT_TOKENIZER_H
#define WN_TEXT_TOKENIZER_H

#include "io/folder.h"
#include "winnow/tokenizer.h"

/* The file that is a folder's tokenizer: "tokenizer.model" or "tokenizer.json"; NULL: neither is there. */
const char *wn_tokenizer_file_of(const char *dir);
/* wn_tokenizer_save as part of a larger save. */
wn_status wn_tokenizer_write(wn_context *ctx, const wn_tokenizer *tok, struct wn_folder *f);
/* The same for Hugging Face transformers: a tokenizer.json for any kind of tokenizer, and a tokenizer_config.json.
 * WN_ERR_UNSUPPORTED if no such file gives the same tokens. */
wn_status wn_tokenizer_write_hf(wn_context *ctx, const wn_tokenizer *tok, struct wn_folder *f);

/* A growing list of ids in counted memory; {0} is an empty one. */
struct wn_ids {
  int32_t *data;
  size_t count, capacity;
};
wn_status wn_ids_add(wn_context *ctx, struct wn_ids *ids, const int32_t *more, size_t count);
void wn_ids_clear(struct wn_ids *ids); /* frees */

/* Where a document may be cut: the largest n <= bytes such that encoding [0,n) and [n,bytes) separately gives the ids
 * of the whole, whatever follows; 0 if there is no such n. */
size_t wn_tokenizer_cut(const wn_tokenizer *tok, const char *text, size_t bytes);
/* Appends the ids of one piece of a document; first: the document begins here. For SentencePiece the text must be
 * UTF-8. Several threads may call it at once (with ctx NULL; *why, which may be NULL, gets the error). */
struct wn_encode_detail {
  char text[512];
};
wn_status wn_tokenizer_encode_piece(const wn_tokenizer *tok, const char *text, size_t bytes, bool first,
                                    struct wn_ids *ids, struct wn_encode_detail *why);
bool wn_tokenizer_wants_utf8(const wn_tokenizer *tok);

#endif
