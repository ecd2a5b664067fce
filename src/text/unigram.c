/* The best segmentation under a unigram model (Kudo, "Subword Regularization", ACL 2018) by the recurrence
 *   best(e) = max over pieces text[s..e) of best(s) + score(piece),   best(0) = 0,
 * with the arithmetic of SentencePiece 0.1.97 (unigram_model.cc, EncodeOptimized): scores are summed in double and
 * stored as float, or as double for a model from a tokenizer.json; of equal scores the piece that begins further left
 * wins; a character without a piece is unknown, with the lowest score minus 10; a user-defined symbol always wins.
 * Memory: 2 bytes a byte of text, for the length of the piece that ends there; scores are kept only for the last
 * positions, as many as the longest piece has bytes. Cost: at each position one step in the tree of pieces for each
 * byte that can still continue a piece. */
#include "text/pieces.h"

#include "base/alloc.h"

#define UNKNOWN_PENALTY 10.0f

/* The scores of the last positions. */
struct scores {
  double *at; /* [mask + 1] of the best path to a position, stored at position & mask */
  size_t mask;
  bool exact; /* not rounded to float: the arithmetic of Hugging Face tokenizers */
};

/* back [bytes + 1]: the length of that path's last piece; 0: no path leads there. */
static void unigram_reach(uint16_t *back, struct scores *s, size_t place, size_t length, double value) {
  if (back[place] != 0 && !(value > s->at[place & s->mask])) return;
  s->at[place & s->mask] = s->exact ? value : (double)(float)value;
  back[place] = (uint16_t)length;
}

static void unigram_search(const struct wn_pieces *u, const char *text, size_t bytes, uint16_t *back,
                           struct scores *s) {
  const float unknown = u->least - UNKNOWN_PENALTY;
  s->at[0] = 0;
  for (size_t from = 0, n; from < bytes; from += n) {
    const double here = s->at[from & s->mask];
    uint32_t node = 0;
    bool single = false;
    n = wn_pieces_character(text + from, bytes - from);
    for (size_t at = from; at < bytes && (node = wn_trie_step(&u->trie, node, (unsigned char)text[at])) != 0;) {
      at++;
      const int32_t id = u->pieces[node];
      if (id == WN_NO_PIECE) continue;
      const size_t length = at - from;
      const double own = wn_spm_user_defined(u->tok->spm, id) ? (double)((float)length * u->most) - 0.1
                                                              : wn_spm_score(u->tok->spm, id);
      unigram_reach(back, s, at, length, own + here);
      single = single || length == n;
    }
    if (!single)
      unigram_reach(back, s, from + n, n, s->exact ? (double)unknown + here : (double)(unknown + (float)here));
  }
}

/* Moves each length from the end of its piece to the beginning. */
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

wn_status wn_unigram_encode(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped, struct wn_ids *ids,
                            size_t *count) {
  const struct wn_pieces *u = tok->pieces;
  struct wn_bytes normal = {0};
  struct wn_piece_out out = {.ids = ids, .dropped = dropped};
  struct scores scores = {.exact = tok->info.foreign.marked};
  uint16_t *back = NULL;
  size_t window = 1;
  wn_status status = wn_spm_normalize(tok->spm, text, bytes, &normal);
  while (window <= u->longest + 4) window *= 2;
  if (status == WN_OK) status = WN_ALLOC(NULL, "tokens", normal.count + 1, &back);
  if (status == WN_OK) status = WN_ALLOC(NULL, "tokens", window, &scores.at);
  if (status == WN_OK && normal.count > 0) {
    scores.mask = window - 1;
    unigram_search(u, normal.data, normal.count, back, &scores);
    unigram_turn(back, normal.count);
    status = wn_pieces_emit(u, normal.data, normal.count, back, &out);
  }
  *count = out.count;
  wn_bytes_clear(&normal);
  wn_free(back);
  wn_free(scores.at);
  return status;
}
