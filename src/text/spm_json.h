/* SentencePiece models as a tokenizer.json, for programs without SentencePiece, and back. */
#ifndef WN_TEXT_SPM_JSON_H
#define WN_TEXT_SPM_JSON_H

#include <jansson.h>
#include "text/normalize.h"
#include "text/tokenizer_kinds.h"

/* Stands for the space before a text until it is known whether the text begins with a U+2581, which gets none: three
 * noncharacters, which no text has in this order. */
#define WN_SPM_JSON_BEGIN "\xEF\xB7\x90\xEF\xB7\x91\xEF\xB7\x92"

/* A character that is no piece of any model: another noncharacter. */
#define WN_SPM_JSON_UNKNOWN "\xEF\xB7\xAF"

/* A tokenizer.json by which Hugging Face tokenizers gives the same tokens. *out: a new reference. WN_ERR_UNSUPPORTED
 * says what the model does that such a file has no words for. */
wn_status wn_spm_write_json(wn_context *ctx, const wn_tokenizer *tok, json_t **out);
/* Of the tokenizer "bytes". */
wn_status wn_bytes_write_json(wn_context *ctx, json_t **out);

/* Is its model of the type Unigram? */
bool wn_unigram_json_is(const json_t *root);
/* Such a tokenizer.json, of the shape that wn_spm_write_json gives and those that mean the same, as the serialized
 * SentencePiece model, appended to *model; bos: the token before every text, or -1. */
wn_status wn_unigram_read_json(wn_context *ctx, const char *name, const json_t *root, struct wn_bytes *model,
                               int32_t *bos);

/* Appends to a list or an object that may be NULL; one that could not take the value is NULL from then on, and so is
 * what is made of it. Both take the reference to value. */
void wn_json_list_add(json_t **list, json_t *value);
void wn_json_object_add(json_t **object, const char *key, json_t *value);

#endif
