/* Byte-pair encoding with scores, as in SentencePiece 0.1.97 (bpe_model.cc). Of all neighbours whose joined text is a
 * piece, the pair with the highest score is merged, of equals the leftmost, until none is left. An unused piece is cut
 * again into the two that it was last made of. User-defined symbols are cut out first (at each position the longest)
 * and never merged. Memory: 16 bytes a character and a queued pair. Cost: O(n log n) with a heap. Models of characters
 * (char_model.cc) stop before the merges. Those of words (word_model.cc) have no symbols: a word begins at each space.
 */
#include "text/pieces.h"

#include <string.h>
#include "base/error.h"
#include "text/finder.h"
#include "text/heap.h"
#include "text/utf8.h"

#define FROZEN 0x80000000u

struct merges_symbol {
  int32_t previous, next; /* -1: none */
  uint32_t at, bytes;     /* position in the text; bytes 0: merged into the symbol before; FROZEN: never merged */
};

struct merges {
  const struct wn_pieces *pieces;
  const char *text;
  struct merges_symbol *symbols; /* [count] */
  size_t count;
  struct wn_heap heap;
  uint16_t *cut; /* [V] of an unused piece: the bytes of the left one of the two that it was last made of; or NULL */
};

/* The higher the score, the lower. */
static uint32_t merges_rank(float score) {
  uint32_t bits;
  score += 0.0f; /* -0 is 0 */
  memcpy(&bits, &score, sizeof bits);
  return bits >> 31 ? bits : 0x7fffffffu - bits;
}

/* Queues a symbol and the next one, if together they are a piece. */
static wn_status merges_push(struct merges *m, int32_t left) {
  const int32_t right = left < 0 ? -1 : m->symbols[left].next;
  if (right < 0 || ((m->symbols[left].bytes | m->symbols[right].bytes) & FROZEN)) return WN_OK;
  const uint32_t bytes = m->symbols[left].bytes + m->symbols[right].bytes;
  const int32_t id = wn_pieces_find(m->pieces, m->text + m->symbols[left].at, bytes);
  if (id == WN_NO_PIECE) return WN_OK;
  if (m->cut && wn_spm_unused(m->pieces->tok->spm, id)) m->cut[id] = (uint16_t)m->symbols[left].bytes;
  const uint32_t rank = merges_rank(wn_spm_score(m->pieces->tok->spm, id));
  return wn_heap_push(&m->heap, (struct wn_candidate){.rank = rank, .at = left, .left = (int32_t)bytes});
}

/* The symbols before any merge. */
static wn_status merges_split(struct merges *m, size_t bytes, struct wn_finder_walk *walk) {
  size_t count = 0;
  struct wn_found own;
  bool more;
  const size_t most = wn_utf8_characters(m->text, bytes);
  if (bytes >= INT32_MAX) return WN_ERR_UNSUPPORTED;
  WN_TRY(WN_ALLOC(NULL, "symbols", most, &m->symbols));
  wn_spm_symbols_begin(m->pieces->tok->spm, m->text, bytes, walk);
  WN_TRY(wn_finder_next(walk, 0, &more, &own));
  for (size_t at = 0; at < bytes; count++) {
    if (more && own.at.begin < at) WN_TRY(wn_finder_next(walk, at, &more, &own));
    const bool frozen = more && own.at.begin == at;
    const size_t n = frozen ? own.at.end - at : wn_pieces_character(m->text + at, bytes - at);
    m->symbols[count] = (struct merges_symbol){.previous = (int32_t)count - 1,
                                               .next = at + n < bytes ? (int32_t)count + 1 : -1,
                                               .at = (uint32_t)at,
                                               .bytes = (uint32_t)n | (frozen ? FROZEN : 0)};
    at += n;
  }
  m->count = count;
  return WN_OK;
}

static wn_status merges_run(struct merges *m) {
  for (size_t i = 0; i < m->count; i++) WN_TRY(merges_push(m, (int32_t)i));
  while (m->heap.count > 0) {
    const struct wn_candidate pair = wn_heap_pop(&m->heap);
    const uint32_t bytes = (uint32_t)pair.left;
    struct merges_symbol *left = &m->symbols[pair.at];
    /* stale: one of the two was merged in the meantime */
    if (left->bytes == 0 || left->next < 0) continue;
    struct merges_symbol *right = &m->symbols[left->next];
    if (left->bytes + right->bytes != bytes) continue;
    left->bytes = bytes;
    right->bytes = 0;
    left->next = right->next;
    if (left->next >= 0) m->symbols[left->next].previous = pair.at;
    WN_TRY(merges_push(m, left->previous));
    WN_TRY(merges_push(m, pair.at));
  }
  return WN_OK;
}

/* Writes the lengths of a symbol's pieces: its own, or those of the pieces that it is cut into. */
static void merges_measure(const struct merges *m, size_t at, size_t bytes, uint16_t *length) {
  const int32_t id = m->cut ? wn_pieces_find(m->pieces, m->text + at, bytes) : WN_NO_PIECE;
  const size_t left = id == WN_NO_PIECE ? 0 : m->cut[id];
  if (left == 0) {
    length[at] = (uint16_t)bytes;
    return;
  }
  merges_measure(m, at, left, length);
  merges_measure(m, at + left, bytes - left, length);
}

static wn_status merges_lengths(struct merges *m, size_t bytes, uint16_t *length) {
  struct wn_finder_walk walk = {0};
  wn_status status = merges_split(m, bytes, &walk);
  wn_bytes_clear(&walk.matches);
  if (status == WN_OK && m->pieces->unused) status = WN_ALLOC(NULL, "merges", m->pieces->tok->vocab_size, &m->cut);
  if (status == WN_OK && m->pieces->tok->info.bpe) status = merges_run(m);
  for (int32_t i = status == WN_OK && m->count ? 0 : -1; i >= 0; i = m->symbols[i].next)
    merges_measure(m, m->symbols[i].at, m->symbols[i].bytes & ~FROZEN, length);
  wn_free(m->heap.all);
  wn_free(m->symbols);
  wn_free(m->cut);
  return status;
}

/* A word longer than any piece is unknown, and so are its parts: it is cut so that a length is one number. */
enum { WORD_MOST = 60000, WORD_PART = 30000 };

static void words_lengths(const char *text, size_t bytes, uint16_t *length) {
  for (size_t at = 0, n; at < bytes; at += n) {
    const char *space = memmem(text + at + 1, bytes - at - 1, "\xE2\x96\x81", 3);
    n = (space ? (size_t)(space - text) : bytes) - at;
    if (n > WORD_MOST)
      for (n = WORD_PART; ((unsigned char)text[at + n] & 0xC0) == 0x80;) n--; /* not within a character */
    length[at] = (uint16_t)n;
  }
}

wn_status wn_merges_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                           size_t *count) {
  struct wn_bytes normal = {0};
  struct wn_piece_out out = {.ids = ids, .dropped = dropped};
  uint16_t *lengths = NULL;
  wn_status status = wn_spm_normalize(tok->spm, text, bytes, &normal);
  struct merges m = {.pieces = tok->pieces, .text = normal.data};
  if (status == WN_OK) status = WN_ALLOC(NULL, "tokens", normal.count + 1, &lengths);
  if (status == WN_OK && tok->info.words)
    words_lengths(normal.data, normal.count, lengths);
  else if (status == WN_OK && normal.count > 0)
    status = merges_lengths(&m, normal.count, lengths);
  if (status == WN_OK) status = wn_pieces_emit(tok->pieces, normal.data, normal.count, lengths, &out);
  *count = out.count;
  wn_free(lengths);
  wn_bytes_clear(&normal);
  return status;
}
