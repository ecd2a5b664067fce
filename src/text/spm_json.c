/* Writes a SentencePiece model as a tokenizer.json (Hugging Face tokenizers) that gives the same tokens.
 *
 * Spaces. SentencePiece writes U+2581 for a space. Here the pieces contain spaces themselves. A U+2581 in a text is
 * then a character without a piece and becomes its three bytes, as in winnow.
 *
 * BPE. SentencePiece merges the neighbours whose piece has the best score, the leftmost first; tokenizers has a list of
 * pairs by rank. The list is all ways to cut each piece in two, in the order of the pieces' scores.
 *
 * Unigram. The scores are the same. SentencePiece does not match control tokens, bytes ("<0x41>") and the unknown token
 * in a text; tokenizers matches every piece. So these get a score so low that any other segmentation is better. There
 * is another one if each character of the piece is a piece itself. If a character is not ("<", say), no ordinary piece
 * contains it, and the text is split at it beforehand: this separates nothing that belongs together. Without byte
 * fallback adjacent unknown characters become one token, so instead of a split the character is replaced by another
 * unknown character. An unknown character scores ten less than the lowest piece, in both; all segmentations have the
 * same unknown characters, so the exact value does not matter.
 *
 * A model that came from a tokenizer.json gets its Metaspace back, in which a space stands for itself, and its added
 * tokens.
 *
 * Cost: for BPE a search in the tree of pieces for each cut of each piece. */
#include "text/spm_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/bpe_json.h"
#include "text/pieces.h"

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

struct spm_writer {
  wn_context *ctx;
  const wn_tokenizer *tok;
  json_t *splits; /* unigram: the characters at which texts are split */
  double lowest;  /* unigram: the score of pieces that must not match */
};

static wn_status spm_json_cannot(wn_context *ctx, const char *what) {
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the SentencePiece model %s, which cannot be written as a tokenizer.json",
                 what);
}

static wn_status spm_json_cannot_symbol(wn_context *ctx, int32_t id, const char *what) {
  char text[160];
  snprintf(text, sizeof text, "has a user-defined symbol (piece %d) %s", (int)id, what);
  return spm_json_cannot(ctx, text);
}

/* Appends to an object as wn_json_list_add does to a list. */
static void spm_json_object_add(json_t **object, const char *key, json_t *value) {
  if (json_object_set_new_nocheck(*object, key, value) == 0) return;
  json_decref(*object);
  *object = NULL;
}

/* A piece's text with spaces in place of U+2581. */
static json_t *spm_json_text(const char *text, size_t bytes) {
  struct wn_bytes out = {0};
  wn_status status = wn_bytes_add(NULL, &out, "", 0);
  while (bytes > 0 && status == WN_OK) {
    const char *mark = memmem(text, bytes, space_mark, 3);
    const size_t n = mark ? (size_t)(mark - text) : bytes;
    status = wn_bytes_add(NULL, &out, text, n);
    if (mark && status == WN_OK) status = wn_bytes_add(NULL, &out, " ", 1);
    text += n + (mark ? 3 : 0), bytes -= n + (mark ? 3 : 0);
  }
  json_t *string = status == WN_OK ? json_stringn(out.data, out.count) : NULL;
  wn_bytes_clear(&out);
  return string;
}

/* The text of piece id. Only ordinary pieces are part of texts, and only in those U+2581 is replaced. */
static json_t *spm_json_piece(const wn_tokenizer *tok, int32_t id) {
  const char *text;
  size_t bytes;
  return wn_spm_piece(tok->spm, id, &text, &bytes) == WN_SPM_TEXT ? spm_json_text(text, bytes)
                                                                  : json_stringn(text, bytes);
}

static bool spm_json_is_text(const wn_tokenizer *tok, int32_t id, const char **text, size_t *bytes) {
  return wn_spm_piece(tok->spm, id, text, bytes) == WN_SPM_TEXT && !wn_spm_unused(tok->spm, id);
}

/* ---- the BPE model ---- */

struct spm_cut {
  int32_t id;
  uint16_t at; /* bytes of the left part */
  float score;
};

static int spm_json_better(const void *a, const void *b) {
  const struct spm_cut *x = a, *y = b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  if (x->id != y->id) return x->id < y->id ? -1 : 1;
  return (x->at > y->at) - (x->at < y->at);
}

/* Contains a user-defined symbol, which is never merged. */
static bool spm_json_has_symbol(const wn_tokenizer *tok, const char *text, size_t bytes) {
  for (int i = 0; i < tok->info.user_defined_count; i++) {
    const char *symbol;
    size_t n;
    wn_spm_piece(tok->spm, tok->info.user_defined[i], &symbol, &n);
    if (memmem(text, bytes, symbol, n)) return true;
  }
  return false;
}

/* A user-defined symbol of several characters: an added token in the file (spm_json_added). */
static bool spm_json_is_symbol(const wn_tokenizer *tok, int32_t id) {
  const char *text;
  size_t bytes;
  wn_spm_piece(tok->spm, id, &text, &bytes);
  return wn_spm_user_defined(tok->spm, id) && wn_pieces_character(text, bytes) < bytes;
}

/* tokenizers puts the text's prefix before an added token too and would then look for the token both ways. */
static wn_status spm_json_check_symbols(wn_context *ctx, const wn_tokenizer *tok) {
  for (int32_t id = 0; tok->info.add_dummy_prefix && id < tok->vocab_size; id++)
    if (spm_json_is_symbol(tok, id)) return spm_json_cannot_symbol(ctx, id, "and puts a space before texts");
  return WN_OK;
}

static bool spm_json_known(const struct spm_writer *w, const char *text, size_t bytes) {
  return wn_pieces_find(w->tok->pieces, text, bytes) != WN_NO_PIECE;
}

/* All cuts of all pieces in two pieces; only counts if cuts is NULL. */
static size_t spm_json_cuts(const struct spm_writer *w, struct spm_cut *cuts) {
  const wn_tokenizer *tok = w->tok;
  size_t count = 0;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const char *text;
    size_t bytes, n;
    if (!spm_json_is_text(tok, id, &text, &bytes) || bytes > UINT16_MAX) continue;
    if (spm_json_has_symbol(tok, text, bytes)) continue;
    for (size_t at = wn_pieces_character(text, bytes); at < bytes; at += n) {
      n = wn_pieces_character(text + at, bytes - at);
      if (!spm_json_known(w, text, at) || !spm_json_known(w, text + at, bytes - at)) continue;
      if (cuts) cuts[count] = (struct spm_cut){id, (uint16_t)at, wn_spm_score(tok->spm, id)};
      count++;
    }
  }
  return count;
}

static wn_status spm_json_bpe(struct spm_writer *w, json_t **out) {
  const wn_tokenizer *tok = w->tok;
  const size_t count = spm_json_cuts(w, NULL);
  const int32_t unknown = wn_spm_unknown(tok->spm);
  struct spm_cut *cuts;
  if (w->tok->pieces->unused) return spm_json_cannot(w->ctx, "has pieces that are cut again after they were joined");
  WN_TRY(spm_json_check_symbols(w->ctx, tok));
  WN_TRY(WN_ALLOC(w->ctx, "merges", count + 1, &cuts));
  json_t *vocab = json_object(), *merges = json_array();
  spm_json_cuts(w, cuts);
  if (count) qsort(cuts, count, sizeof *cuts, spm_json_better);
  for (size_t i = 0; i < count; i++) {
    const char *text;
    size_t bytes;
    wn_spm_piece(tok->spm, cuts[i].id, &text, &bytes);
    wn_json_list_add(&merges, json_pack("[o, o]", spm_json_text(text, cuts[i].at),
                                        spm_json_text(text + cuts[i].at, bytes - cuts[i].at)));
  }
  wn_free(cuts);
  bool twice = false;
  for (int32_t id = 0; id < tok->vocab_size && vocab; id++) {
    json_t *text = spm_json_piece(tok, id);
    twice |= text && json_object_get(vocab, json_string_value(text));
    spm_json_object_add(&vocab, json_string_value(text), json_integer(id));
    json_decref(text);
  }
  if (twice) {
    json_decref(vocab);
    json_decref(merges);
    return spm_json_cannot(w->ctx, "has two pieces of the same text");
  }
  *out = json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                   spm_json_piece(tok, unknown), "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   !tok->info.byte_fallback, "byte_fallback", tok->info.byte_fallback, "ignore_merges", 0, "vocab",
                   vocab, "merges", merges);
  return WN_OK;
}

/* ---- the unigram model ---- */

/* The first character of a text that is not a piece itself; NULL: all are. */
static const char *spm_json_foreign(const struct spm_writer *w, const char *text, size_t bytes, size_t *n) {
  for (size_t at = 0; at < bytes; at += *n) {
    *n = wn_pieces_character(text + at, bytes - at);
    if (!spm_json_known(w, text + at, *n)) return text + at;
  }
  return NULL;
}

static bool spm_json_is_listed(const json_t *list, const char *text, size_t n) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *one = json_array_get(list, i);
    if (json_string_length(one) == n && !memcmp(json_string_value(one), text, n)) return true;
  }
  return false;
}

/* Sets the score of pieces that must not match and the characters to split at, as explained at the top. */
static wn_status spm_json_hide(struct spm_writer *w) {
  const wn_tokenizer *tok = w->tok;
  const char *text, *foreign;
  size_t bytes, n;
  w->lowest = 1000 * (double)(w->tok->pieces->least < 0 ? w->tok->pieces->least : 0) - 1e6;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const enum wn_spm_type type = wn_spm_piece(tok->spm, id, &text, &bytes);
    foreign = spm_json_foreign(w, text, bytes, &n);
    if (!foreign) continue;
    if (type == WN_SPM_TEXT) {
      if (wn_spm_user_defined(tok->spm, id) || bytes == n) continue;
      return spm_json_cannot(w->ctx, "has a piece with a character that is no piece itself");
    }
    if (!spm_json_is_listed(w->splits, foreign, n)) wn_json_list_add(&w->splits, json_stringn(foreign, n));
  }
  if (!w->splits) return wn_fail(w->ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    if (!wn_spm_user_defined(tok->spm, id)) continue;
    wn_spm_piece(tok->spm, id, &text, &bytes);
    for (size_t i = 0; i < json_array_size(w->splits); i++) {
      const json_t *split = json_array_get(w->splits, i);
      if (memmem(text, bytes, json_string_value(split), json_string_length(split)))
        return spm_json_cannot_symbol(w->ctx, id, "with a character of hidden pieces that is no piece");
    }
  }
  return WN_OK;
}

static wn_status spm_json_unigram(struct spm_writer *w, json_t **out) {
  const wn_tokenizer *tok = w->tok;
  const char *text;
  size_t bytes;
  WN_TRY(spm_json_hide(w));
  json_t *vocab = json_array();
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    double score = w->lowest;
    if (spm_json_is_text(tok, id, &text, &bytes))
      score = wn_spm_user_defined(tok->spm, id) ? (double)((float)bytes * w->tok->pieces->most) - 0.1
                                                : (double)wn_spm_score(tok->spm, id);
    wn_json_list_add(&vocab, json_pack("[o, f]", spm_json_piece(tok, id), score));
  }
  *out = json_pack("{s:s, s:i, s:b, s:o}", "type", "Unigram", "unk_id", wn_spm_unknown(tok->spm), "byte_fallback",
                   tok->info.byte_fallback, "vocab", vocab);
  return WN_OK;
}

/* ---- the other parts ---- */

/* Control tokens, for BPE user-defined symbols of several characters, and for a model that came from a tokenizer.json
 * all its added tokens. */
static json_t *spm_json_added(const struct spm_writer *w) {
  const wn_tokenizer *tok = w->tok;
  json_t *list = json_array();
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const char *text;
    size_t bytes;
    const enum wn_spm_type type = wn_spm_piece(tok->spm, id, &text, &bytes);
    const bool foreign = tok->info.foreign.marked;
    const bool special = type == WN_SPM_CONTROL || (foreign && type == WN_SPM_UNKNOWN && tok->info.unk_surface[0] == 0);
    const bool symbol = tok->info.bpe ? spm_json_is_symbol(tok, id) : foreign && wn_spm_user_defined(tok->spm, id);
    if (!special && !symbol) continue;
    wn_json_list_add(&list, json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", id, "content",
                                      spm_json_piece(tok, id), "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized",
                                      symbol && !foreign, "special", special));
  }
  return list;
}

static void spm_json_replace(json_t **list, const char *from, const char *to) {
  wn_json_list_add(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content", to));
}

static json_t *spm_json_normalizer(const struct spm_writer *w) {
  const wn_tokenizer *tok = w->tok;
  static const char begin[] = WN_SPM_JSON_BEGIN, begin_mark[] = WN_SPM_JSON_BEGIN "\xE2\x96\x81";
  json_t *list = json_array();
  const int32_t *byte_id = tok->byte_id;
  const bool marks =
      !tok->info.foreign.marked && tok->cuttable && byte_id[0xE2] >= 0 && byte_id[0x96] >= 0 && byte_id[0x81] >= 0;
  /* without byte fallback, and in the files of others, a U+2581 in the text is read as a space (tokenizer.c) */
  if (!marks) spm_json_replace(&list, space_mark, " ");
  for (size_t i = 0; !tok->info.byte_fallback && i < json_array_size(w->splits); i++)
    spm_json_replace(&list, json_string_value(json_array_get(w->splits, i)), WN_SPM_JSON_UNKNOWN);
  if (tok->info.add_dummy_prefix)
    wn_json_list_add(&list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", marks ? begin : " "));
  if (tok->info.add_dummy_prefix && marks) {
    spm_json_replace(&list, begin_mark, space_mark);
    spm_json_replace(&list, begin, " ");
  }
  if (!list || json_array_size(list) > 0) return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list);
  json_decref(list);
  return json_null();
}

/* What puts a space before a text that has none, in a text with spaces. */
static json_t *spm_json_metaspace(enum wn_prepend prepend) {
  return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", " ", "prepend_scheme",
                   wn_bpe_json_schemes[prepend], "split", 0);
}

static json_t *spm_json_pre_tokenizer(const struct spm_writer *w) {
  const struct wn_spm_foreign *foreign = &w->tok->info.foreign;
  json_t *list = json_array();
  if (foreign->marked && !w->tok->info.add_dummy_prefix) wn_json_list_add(&list, spm_json_metaspace(foreign->prepend));
  for (size_t i = 0; w->tok->info.byte_fallback && i < json_array_size(w->splits); i++)
    wn_json_list_add(&list, json_pack("{s:s, s:{s:O}, s:s, s:b}", "type", "Split", "pattern", "String",
                                      json_array_get(w->splits, i), "behavior", "Isolated", "invert", 0));
  if (!list || json_array_size(list) > 0) return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
  json_decref(list);
  return json_null();
}

static json_t *spm_json_decoder(const wn_tokenizer *tok) {
  json_t *list = json_array();
  const struct wn_spm_foreign *foreign = &tok->info.foreign;
  wn_json_list_add(&list, json_pack("{s:s}", "type", "ByteFallback"));
  if (foreign->strip == WN_STRIP_MARKS) wn_json_list_add(&list, spm_json_metaspace(WN_PREPEND_ALWAYS));
  wn_json_list_add(&list, json_pack("{s:s}", "type", "Fuse"));
  if (foreign->marked ? foreign->strip == WN_STRIP_SPACE : tok->info.add_dummy_prefix)
    wn_json_list_add(&list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
  return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static wn_status spm_json_write(struct spm_writer *w, json_t **out) {
  json_t *model = NULL;
  WN_TRY(w->tok->info.bpe ? spm_json_bpe(w, &model) : spm_json_unigram(w, &model));
  *out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                   "added_tokens", spm_json_added(w), "normalizer", spm_json_normalizer(w), "pre_tokenizer",
                   spm_json_pre_tokenizer(w), "post_processor",
                   w->tok->bos < 0 ? json_null() : wn_json_template(spm_json_piece(w->tok, w->tok->bos), w->tok->bos),
                   "decoder", spm_json_decoder(w->tok), "model", model);
  return *out ? WN_OK : wn_fail(w->ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
}

wn_status wn_spm_write_json(wn_context *ctx, const wn_tokenizer *tok, json_t **out) {
  const struct wn_spm_info *info = &tok->info;
  *out = NULL;
  if (info->charsmap) return spm_json_cannot(ctx, "rewrites characters before it encodes them (a normalisation table)");
  if (info->remove_extra_whitespaces) return spm_json_cannot(ctx, "removes white space");
  if (!info->escape_whitespaces) return spm_json_cannot(ctx, "does not mark spaces");
  if (!info->bpe && !info->unigram) return spm_json_cannot(ctx, "is neither BPE nor unigram");
  if (info->user_defined_count > WN_SPM_USER_DEFINED) return spm_json_cannot(ctx, "has too many user-defined symbols");
  struct spm_writer w = {.ctx = ctx, .tok = tok, .splits = json_array()};
  wn_status status = spm_json_write(&w, out);
  json_decref(w.splits);
  return status;
}

/* ---- the bytes tokenizer ---- */

wn_status wn_bytes_write_json(wn_context *ctx, json_t **out) {
  json_t *vocab = json_object();
  for (unsigned byte = 0; byte < 256; byte++) {
    const int32_t point = wn_byte_alphabet(byte);
    const char text[3] = {(char)(point < 0x80 ? point : 0xC0 | point >> 6),
                          (char)(point < 0x80 ? 0 : 0x80 | (point & 0x3F)), 0};
    spm_json_object_add(&vocab, text, json_integer(byte));
  }
  json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
                            "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                            "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges");
  json_t *split =
      json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0);
  *out = json_pack("{s:s, s:n, s:n, s:[], s:n, s:O, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
                   "added_tokens", "normalizer", "pre_tokenizer", split, "post_processor", "decoder", split, "model",
                   model);
  return *out ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
}
