/* The best segmentation under a unigram model (Kudo, "Subword Regularization", ACL 2018) by the recurrence
 *   best(e) = max over pieces text[s..e) of best(s) + score(piece),   best(0) = 0,
 * with the arithmetic of SentencePiece 0.1.97 (unigram_model.cc, EncodeOptimized): scores are summed in double and kept
 * as float, of equals the one from further left stays, a character without a piece of its own is unknown at the lowest
 * score minus 10, and a symbol of the user's always wins. SentencePiece then makes about 130 bytes a byte of text of
 * objects for its pieces; here a byte of text takes 2, for the length of the piece that ends there, and scores live in
 * a window of the longest piece. Cost: a step in the tree of pieces for each byte of every prefix that is one. */
#include "text/unigram.h"

#include <float.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "text/normalize.h"
#include "text/utf8.h"

#define UNKNOWN_PENALTY 10.0f
enum { SLOT_FREE = 0, NO_PIECE = -1, BLOCK = 1024 };

/* The pieces as a tree: the child of a node by a byte, in an open table. Node 0 is the root. */
struct unigram {
  const wn_tokenizer *tok;
  uint64_t *edges;    /* [mask + 1] (node << 8 | byte) + 1; 0: free */
  uint32_t *children; /* [mask + 1] */
  uint32_t mask, nodes;
  int32_t *pieces; /* [nodes] the piece that ends at the node, or NO_PIECE */
  size_t longest;
  float unknown, most; /* scores: of an unknown character; the highest of all */
};

bool wn_unigram_serves(const wn_tokenizer *tok) {
  const struct wn_spm_info *info = &tok->info;
  return tok->spm && info->unigram && !info->charsmap && !info->remove_extra_whitespaces && info->escape_whitespaces &&
         info->user_defined_count <= WN_SPM_USER_DEFINED;
}

static bool unigram_is_user_defined(const wn_tokenizer *tok, int32_t id) {
  for (int i = 0; i < tok->info.user_defined_count; i++)
    if (tok->info.user_defined[i] == id) return true;
  return false;
}

static uint32_t unigram_slot(const struct unigram *u, uint32_t node, unsigned char byte) {
  const uint64_t edge = ((uint64_t)node << 8 | byte) + 1;
  uint64_t hash = edge * 0x9E3779B97F4A7C15u;
  uint32_t at = (uint32_t)(hash >> 32) & u->mask;
  while (u->edges[at] != SLOT_FREE && u->edges[at] != edge) at = (at + 1) & u->mask;
  return at;
}

/* 0: no piece goes on so. */
static inline uint32_t unigram_step(const struct unigram *u, uint32_t node, unsigned char byte) {
  const uint32_t at = unigram_slot(u, node, byte);
  return u->edges[at] == SLOT_FREE ? 0 : u->children[at];
}

static void unigram_insert(struct unigram *u, int32_t id, const char *text, size_t bytes) {
  uint32_t node = 0;
  for (size_t i = 0; i < bytes; i++) {
    const uint32_t at = unigram_slot(u, node, (unsigned char)text[i]);
    if (u->edges[at] == SLOT_FREE) {
      u->edges[at] = ((uint64_t)node << 8 | (unsigned char)text[i]) + 1;
      u->children[at] = u->nodes++;
    }
    node = u->children[at];
  }
  u->pieces[node] = id;
  if (bytes > u->longest) u->longest = bytes;
}

static void unigram_clear(struct unigram *u) {
  wn_free(u->edges);
  wn_free(u->children);
  wn_free(u->pieces);
}

static wn_status unigram_build(const wn_tokenizer *tok, struct unigram *u) {
  size_t total = 1, slots = 1024;
  const char *text;
  size_t bytes;
  void *p;
  float least = FLT_MAX;
  *u = (struct unigram){.tok = tok, .nodes = 1, .most = FLT_MIN};
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    if (wn_spm_piece(tok->spm, id, &text, &bytes) != WN_SPM_TEXT) continue;
    total += bytes;
    if (wn_spm_unused(tok->spm, id) || unigram_is_user_defined(tok, id)) continue;
    const float score = wn_spm_score(tok->spm, id);
    if (score < least) least = score;
    if (score > u->most) u->most = score;
  }
  if (total > UINT32_MAX / 4) return WN_ERR_UNSUPPORTED;
  while (slots < 2 * total) slots *= 2;
  u->mask = (uint32_t)slots - 1;
  u->unknown = least - UNKNOWN_PENALTY;
  WN_TRY(wn_alloc(NULL, "pieces", slots * sizeof *u->edges, &p));
  u->edges = p;
  WN_TRY(wn_alloc(NULL, "pieces", slots * sizeof *u->children, &p));
  u->children = p;
  WN_TRY(wn_alloc(NULL, "pieces", total * sizeof *u->pieces, &p));
  u->pieces = p;
  memset(u->pieces, 0xFF, total * sizeof *u->pieces);
  for (int32_t id = 0; id < tok->vocab_size; id++)
    if (wn_spm_piece(tok->spm, id, &text, &bytes) == WN_SPM_TEXT && !wn_spm_unused(tok->spm, id))
      unigram_insert(u, id, text, bytes);
  return WN_OK;
}

/* ---- the text ---- */

/* With U+2581 for spaces, and before the text where the model puts one. */
static wn_status unigram_normalize(const wn_tokenizer *tok, const char *text, size_t bytes, struct wn_bytes *out) {
  static const char mark[] = "\xE2\x96\x81";
  if (tok->info.add_dummy_prefix) WN_TRY(wn_bytes_add(NULL, out, mark, 3));
  while (bytes > 0) {
    const char *space = memchr(text, ' ', bytes);
    const size_t n = space ? (size_t)(space - text) : bytes;
    WN_TRY(wn_bytes_add(NULL, out, text, n));
    if (space) WN_TRY(wn_bytes_add(NULL, out, mark, 3));
    text += n + (space != NULL);
    bytes -= n + (space != NULL);
  }
  return WN_OK;
}

static size_t unigram_character(const char *text, size_t bytes) {
  const int n = wn_utf8_sequence(text, bytes);
  return n > 0 ? (size_t)n : 1;
}

/* score [mask + 1]: of the best path to a place, at place & mask; back [bytes + 1]: the length of its last piece, 0: no
 * path leads there. */
static void unigram_reach(uint16_t *back, float *score, size_t mask, size_t place, size_t length, double value) {
  if (back[place] != 0 && !(value > score[place & mask])) return;
  score[place & mask] = (float)value;
  back[place] = (uint16_t)length;
}

static void unigram_search(const struct unigram *u, const char *text, size_t bytes, uint16_t *back, float *score,
                           size_t mask) {
  score[0] = 0;
  for (size_t from = 0, n; from < bytes; from += n) {
    const float here = score[from & mask];
    uint32_t node = 0;
    bool single = false;
    n = unigram_character(text + from, bytes - from);
    for (size_t at = from; at < bytes && (node = unigram_step(u, node, (unsigned char)text[at])) != 0;) {
      at++;
      const int32_t id = u->pieces[node];
      if (id == NO_PIECE) continue;
      const size_t length = at - from;
      const double own =
          unigram_is_user_defined(u->tok, id) ? (double)((float)length * u->most) - 0.1 : wn_spm_score(u->tok->spm, id);
      unigram_reach(back, score, mask, at, length, own + (double)here);
      single = single || length == n;
    }
    if (!single) unigram_reach(back, score, mask, from + n, n, (double)(u->unknown + here));
  }
}

/* Piece by piece from the left: lengths that stand at the ends of pieces go to their beginnings. */
static void unigram_turn(uint16_t *back, size_t bytes) {
  uint16_t length = back[bytes];
  for (size_t end = bytes; end > 0;) {
    const size_t begin = end - length;
    const uint16_t before = back[begin];
    back[begin] = length;
    length = before;
    end = begin;
  }
}

static int32_t unigram_find(const struct unigram *u, const char *text, size_t bytes) {
  uint32_t node = 0;
  for (size_t i = 0; i < bytes; i++)
    if ((node = unigram_step(u, node, (unsigned char)text[i])) == 0) return NO_PIECE;
  return u->pieces[node];
}

/* What is collected before it goes to the caller's list. */
struct unigram_out {
  struct wn_ids *ids;
  int32_t block[BLOCK];
  size_t held, count, dropped;
};

static wn_status unigram_put(struct unigram_out *out, int32_t id) {
  if (out->count++ < out->dropped) return WN_OK;
  out->block[out->held++] = id;
  if (out->held < BLOCK) return WN_OK;
  out->held = 0;
  return wn_ids_add(NULL, out->ids, out->block, BLOCK);
}

static wn_status unigram_emit(const struct unigram *u, const char *text, size_t bytes, const uint16_t *length,
                              struct unigram_out *out) {
  const wn_tokenizer *tok = u->tok;
  const int32_t unknown = wn_spm_unknown(tok->spm);
  bool was_unknown = false;
  for (size_t at = 0; at < bytes; at += length[at]) {
    const int32_t id = unigram_find(u, text + at, length[at]);
    if (id != NO_PIECE) {
      WN_TRY(unigram_put(out, id));
    } else if (tok->info.byte_fallback) {
      for (size_t k = 0; k < length[at]; k++) {
        const int32_t byte = tok->byte_id[(unsigned char)text[at + k]];
        WN_TRY(unigram_put(out, byte >= 0 ? byte : unknown));
      }
    } else if (!was_unknown) { /* a run of unknown characters is one token */
      WN_TRY(unigram_put(out, unknown));
    }
    was_unknown = id == NO_PIECE;
  }
  return wn_ids_add(NULL, out->ids, out->block, out->held);
}

wn_status wn_unigram_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                            size_t *count) {
  struct unigram u;
  struct wn_bytes normal = {0};
  struct unigram_out out = {.ids = ids, .dropped = dropped};
  void *back = NULL, *score = NULL;
  size_t window = 1;
  wn_status status = unigram_build(tok, &u);
  if (status == WN_OK) status = unigram_normalize(tok, text, bytes, &normal);
  while (window <= u.longest + 4) window *= 2;
  if (status == WN_OK) status = wn_alloc(NULL, "tokens", (normal.count + 1) * sizeof(uint16_t), &back);
  if (status == WN_OK) status = wn_alloc(NULL, "tokens", window * sizeof(float), &score);
  if (status == WN_OK) {
    unigram_search(&u, normal.data, normal.count, back, score, window - 1);
    unigram_turn(back, normal.count);
    status = unigram_emit(&u, normal.data, normal.count, back, &out);
  }
  *count = out.count;
  wn_bytes_clear(&normal);
  wn_free(back);
  wn_free(score);
  unigram_clear(&u);
  return status;
}
