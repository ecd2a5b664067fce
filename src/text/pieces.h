/* Shared by the encoders for SentencePiece models: the pieces as a tree, the text with U+2581 for spaces, and the ids
 * of the pieces that a text was cut into. */
#ifndef WN_TEXT_PIECES_H
#define WN_TEXT_PIECES_H

#include "text/tokenizer_kinds.h"
#include "text/trie.h"

enum { WN_NO_PIECE = -1, WN_PIECES_BLOCK = 1024 };

struct wn_pieces {
  const wn_tokenizer *tok;
  struct wn_trie trie;
  int32_t *pieces; /* [nodes] the piece that ends at the node, or WN_NO_PIECE */
  size_t longest;
  float least, most; /* lowest and highest score */
  bool unused;       /* some piece of BPE is unused: it is cut into what it was merged from */
};

wn_status wn_pieces_build(const wn_tokenizer *tok, struct wn_pieces *u); /* call clear even after a failure */
void wn_pieces_clear(struct wn_pieces *u);

int32_t wn_pieces_find(const struct wn_pieces *u, const char *text, size_t bytes); /* or WN_NO_PIECE */
size_t wn_pieces_character(const char *text, size_t bytes);                        /* bytes of the first character */

/* Buffers ids before they go to the caller's list. */
struct wn_piece_out {
  struct wn_ids *ids;
  int32_t block[WN_PIECES_BLOCK];
  size_t held, count, dropped;
};

/* length [bytes]: the length of the piece that begins at each position, if one does. */
wn_status wn_pieces_emit(const struct wn_pieces *u, const char *text, size_t bytes, const uint16_t *length,
                         struct wn_piece_out *out);

/* Appends the ids of a text, which must be UTF-8 without U+2581, except the first `dropped`; *count: number of all ids.
 * For unigram models (unigram.c), and for BPE, words and characters (merges.c). */
wn_status wn_unigram_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                            size_t *count);
wn_status wn_merges_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                           size_t *count);

#endif
