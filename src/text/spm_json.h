/* Converts SentencePiece models to tokenizer.json, for programs without SentencePiece, and back. */
#ifndef WN_TEXT_SPM_JSON_H
#define WN_TEXT_SPM_JSON_H

#include <jansson.h>
#include "text/normalize.h"
#include "text/tokenizer_kinds.h"

/* Marks the space before a text until it is known whether the text begins with U+2581, which gets no space: three
 * noncharacters that no text has in this order. */
#define WN_SPM_JSON_BEGIN "\xEF\xB7\x90\xEF\xB7\x91\xEF\xB7\x92"

/* A character that no model has as a piece: another noncharacter. */
#define WN_SPM_JSON_UNKNOWN "\xEF\xB7\xAF"

/* A tokenizer.json with which Hugging Face tokenizers gives the same tokens. *out: a new reference. WN_ERR_UNSUPPORTED
 * says what the model does that such a file cannot express. */
wn_status wn_spm_write_json(wn_context *ctx, const wn_tokenizer *tok, json_t **out);
/* The same for the tokenizer "bytes". */
wn_status wn_bytes_write_json(wn_context *ctx, json_t **out);

/* Does the file have a model of type Unigram? */
bool wn_unigram_json_is(const json_t *root);
/* Converts a Unigram tokenizer.json (as wn_spm_write_json writes it, or with the same meaning) to a serialized
 * SentencePiece model, appended to *model. bos: the token before every text, or -1. */
wn_status wn_unigram_read_json(wn_context *ctx, const char *name, const json_t *root, struct wn_bytes *model,
                               int32_t *bos);

#endif
