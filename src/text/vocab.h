/* A vocabulary: tokens by id, and ids by text. */
#ifndef WN_TEXT_VOCAB_H
#define WN_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_TOKEN_MAX_BYTES 16384 /* longest token */

enum wn_token_kind {
  WN_TOKEN_NONE, /* an id without a token */
  WN_TOKEN_TEXT,
  WN_TOKEN_SPECIAL, /* control tokens: recognised only where the caller asks for it, decoded to nothing */
  WN_TOKEN_ADDED,   /* recognised in every text */
  WN_TOKEN_BYTE     /* of the form "<0x41>" */
};

struct wn_token {
  uint32_t at, bytes; /* range in the arena */
  uint8_t kind;
  bool model;  /* the model can produce it (so it is indexed) */
  bool mapped; /* its text in the file is in the byte alphabet */
  /* For added and special tokens: absorbs white space on the left, on the right; is searched for in normalised text; is
   * no part of a longer word. */
  bool lstrip, rstrip, normalized, single_word;
};

struct wn_vocab {
  int32_t size;
  struct wn_token *tokens; /* [size] */
  char *arena;
  size_t used, room;
  int32_t *slots; /* hash table, [mask + 1], -1: free */
  uint32_t mask;
};
wn_status wn_vocab_create(wn_context *ctx, const char *name, int32_t size, struct wn_vocab *out);
void wn_vocab_clear(struct wn_vocab *v);
/* Sets the text of id. */
wn_status wn_vocab_set(wn_context *ctx, const char *name, struct wn_vocab *v, int32_t id, const char *text,
                       size_t bytes, enum wn_token_kind kind);
/* Builds the index of tokens with `model`; two with one text are WN_ERR_FORMAT. */
wn_status wn_vocab_index(wn_context *ctx, const char *name, struct wn_vocab *v);
int32_t wn_vocab_find(const struct wn_vocab *v, const char *text, size_t bytes); /* -1: none */
static inline const char *wn_vocab_text(const struct wn_vocab *v, int32_t id) {
  return v->arena + v->tokens[id].at;
}
uint64_t wn_hash_bytes(const char *data, size_t bytes);

/* GPT-2's byte alphabet (openai/gpt-2, encoder.py): printable bytes map to themselves, the others to U+0100 and up. */
int32_t wn_byte_alphabet(unsigned byte); /* the code point */
/* Decodes a text in the byte alphabet to out [bytes]; false if it has another character. */
bool wn_alphabet_decode(const char *text, size_t bytes, char *out, size_t *out_bytes);

#endif
