/* The pieces of a SentencePiece model as a tree, and from pieces to ids. See pieces.h. */
#include "text/pieces.h"

#include <float.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "text/utf8.h"

/* The node of a text that may be in the tree in part. */
static wn_status pieces_insert(struct wn_pieces *u, const char *text, size_t bytes, uint32_t *node) {
  *node = 0;
  for (size_t i = 0; i < bytes; i++) WN_TRY(wn_trie_extend(&u->trie, *node, (unsigned char)text[i], node));
  return WN_OK;
}

void wn_pieces_clear(struct wn_pieces *u) {
  wn_trie_clear(&u->trie);
  wn_free(u->pieces);
}

/* Makes the tree. nodes [V]: the node of each piece that is a text; the root's number: of none. */
static wn_status pieces_fill(struct wn_pieces *u, uint32_t *nodes) {
  const wn_tokenizer *tok = u->tok;
  const char *text;
  size_t bytes;
  u->least = FLT_MAX, u->most = FLT_MIN;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    if (wn_spm_piece(tok->spm, id, &text, &bytes) != WN_SPM_TEXT) continue;
    const bool unused = wn_spm_unused(tok->spm, id);
    if (unused && tok->info.unigram) continue;
    u->unused = u->unused || (unused && tok->info.bpe);
    WN_TRY(pieces_insert(u, text, bytes, &nodes[id]));
    if (bytes > u->longest) u->longest = bytes;
    if (unused || wn_spm_user_defined(tok->spm, id)) continue;
    const float score = wn_spm_score(tok->spm, id);
    if (score < u->least) u->least = score;
    if (score > u->most) u->most = score;
  }
  if (u->trie.nodes == 0) WN_TRY(wn_trie_extend(&u->trie, 0, 0, &(uint32_t){0})); /* no piece is a text */
  WN_TRY(WN_ALLOC(NULL, "pieces", u->trie.nodes, &u->pieces));
  memset(u->pieces, 0xFF, u->trie.nodes * sizeof *u->pieces);
  for (int32_t id = 0; id < tok->vocab_size; id++)
    if (nodes[id]) u->pieces[nodes[id]] = id;
  return WN_OK;
}

wn_status wn_pieces_build(const wn_tokenizer *tok, struct wn_pieces *u) {
  void *nodes;
  *u = (struct wn_pieces){.tok = tok};
  WN_TRY(wn_alloc(NULL, "pieces", (size_t)tok->vocab_size * sizeof(uint32_t), &nodes));
  const wn_status status = pieces_fill(u, nodes);
  wn_free(nodes);
  return status;
}

/* ---- the text ---- */

size_t wn_pieces_character(const char *text, size_t bytes) {
  const int n = wn_utf8_sequence(text, bytes);
  return n > 0 ? (size_t)n : 1;
}

int32_t wn_pieces_find(const struct wn_pieces *u, const char *text, size_t bytes) {
  uint32_t node = 0;
  for (size_t i = 0; i < bytes; i++)
    if ((node = wn_trie_step(&u->trie, node, (unsigned char)text[i])) == 0) return WN_NO_PIECE;
  return u->pieces[node];
}

static wn_status pieces_put(struct wn_piece_out *out, int32_t id) {
  if (out->count++ < out->dropped) return WN_OK;
  out->block[out->held++] = id;
  if (out->held < WN_PIECES_BLOCK) return WN_OK;
  out->held = 0;
  return wn_ids_add(NULL, out->ids, out->block, WN_PIECES_BLOCK);
}

wn_status wn_pieces_emit(const struct wn_pieces *u, const char *text, size_t bytes, const uint16_t *length,
                         struct wn_piece_out *out) {
  const wn_tokenizer *tok = u->tok;
  const int32_t unknown = wn_spm_unknown(tok->spm);
  bool was_unknown = false;
  for (size_t at = 0; at < bytes; at += length[at]) {
    const int32_t id = wn_pieces_find(u, text + at, length[at]);
    if (id != WN_NO_PIECE) {
      WN_TRY(pieces_put(out, id));
    } else if (tok->info.byte_fallback) {
      for (size_t k = 0; k < length[at]; k++) {
        const int32_t byte = tok->byte_id[(unsigned char)text[at + k]];
        WN_TRY(pieces_put(out, byte >= 0 ? byte : unknown));
      }
    } else if (!was_unknown) { /* a run of unknown characters becomes one token */
      WN_TRY(pieces_put(out, unknown));
    }
    was_unknown = id == WN_NO_PIECE;
  }
  return wn_ids_add(NULL, out->ids, out->block, out->held);
}
