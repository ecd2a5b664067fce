/* Reads and writes tokenizer.json. */
#ifndef WN_TEXT_BPE_JSON_H
#define WN_TEXT_BPE_JSON_H

#include <jansson.h>
#include "text/bpe.h"

/* Fills an empty model. bos, eos: the tokens that post_processor adds before and after a text, or -1. */
wn_status wn_bpe_read_json(wn_context *ctx, const char *name, const json_t *root, struct wn_bpe *bpe, int32_t *bos,
                           int32_t *eos);
/* Parts of a tokenizer.json that every kind of model has. decoder: what decoding does, of a file that is not
 * byte-level; spaces: Metaspace may have a space in place of U+2581. scheme: a Metaspace's. */
struct wn_decoder_rules {
  bool marks, bytes; /* U+2581 becomes a space; "<0x41>" becomes a byte */
  enum wn_strip strip;
};
wn_status wn_bpe_json_decoder(wn_context *ctx, const char *name, const json_t *object, bool spaces,
                              struct wn_decoder_rules *out);
extern const char *const wn_bpe_json_schemes[WN_PREPENDS]; /* a Metaspace's prepend_scheme, by enum wn_prepend */
extern const char *const wn_bpe_json_forms[];              /* NULL-terminated; by the kind of a normalisation step */
extern const char *const wn_bpe_json_behaviors[];          /* by the behaviour of a split */
wn_status wn_bpe_json_scheme(wn_context *ctx, const char *name, const json_t *object, enum wn_prepend *out);

/* Appends to a list and takes over the value. On failure the list becomes NULL, and so does everything built from it;
 * NULL is allowed. */
void wn_json_list_add(json_t **list, json_t *value);
/* The post_processor that puts a token before every text; takes over `token`, its text. NULL: out of memory. */
json_t *wn_json_template(json_t *token, int32_t bos);
/* The merges by rank: *out [*count], freed with wn_free. */
wn_status wn_bpe_merges(wn_context *ctx, const struct wn_bpe *bpe, const struct wn_merge ***out, uint32_t *count);
/* A tokenizer.json that gives the same tokens here and in Hugging Face tokenizers. *out: a new reference. */
wn_status wn_bpe_write_json(wn_context *ctx, const struct wn_bpe *bpe, int32_t bos, json_t **out);

#endif
