/* Shared by our encoders for SentencePiece models: the pieces as a tree, the text with U+2581 for spaces, and the ids
 * of the pieces that a text was cut into. They encode long stretches, for which SentencePiece needs about 130 bytes a
 * byte of text, and all texts in a build without SentencePiece. */
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
  bool unused;       /* some piece is unused: encoding never gives it */
};

/* May our encoders take texts? If SentencePiece is there as well, only if nothing but spaces is normalised. */
bool wn_pieces_serve(const wn_tokenizer *tok);
wn_status wn_pieces_build(const wn_tokenizer *tok, struct wn_pieces *u); /* call clear even after a failure */
/* The tokenizer's tree, or one built into `room`, which the caller clears in any case. */
wn_status wn_pieces_get(const wn_tokenizer *tok, struct wn_pieces *room, const struct wn_pieces **u);
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

#endif
