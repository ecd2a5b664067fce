/* Writes a tokenizer as GGUF metadata, in llama.cpp's terms: tokenizer.ggml.model is "gpt2" (byte-level BPE; .pre names
 * the split pattern), "llama" (SentencePiece BPE) or "t5" (SentencePiece unigram); then tokens, scores, types, merges,
 * ids of special tokens, and the chat template. If the model has more rows than the tokenizer has tokens, the rest get
 * names and are marked unused. A SentencePiece model is also stored whole, because llama.cpp has no byte fallback in
 * unigram models and puts a space after user-defined pieces. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/misuse.h"
#include "text/tokenizer_kinds.h"
#include "text/vocab_gguf.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

static void put_text(wn_gguf_values *values, const char *key, const char *text) {
  wn_gguf_values_put_string(values, key, text, strlen(text));
}

static void add_unused(wn_gguf_values *values, int64_t id) {
  char name[40];
  wn_gguf_values_add_string(values, name, (size_t)snprintf(name, sizeof name, "[PAD%lld]", (long long)id));
}

/* end: the token that llama.cpp takes as end of text if the file names none; a file cannot say that there is none. */
static void put_ids(wn_context *ctx, const wn_tokenizer *tok, int32_t unknown, int32_t end, wn_gguf_values *values) {
  static const char turn[] = "tokenizer.ggml.eot_token_id", message[] = "tokenizer.ggml.eom_token_id";
  const int32_t bos = tok->bos >= 0 ? tok->bos : tok->known_bos;
  if (bos >= 0) wn_gguf_values_put_uint(values, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
  if (tok->eos >= 0)
    wn_gguf_values_put_uint(values, "tokenizer.ggml.eos_token_id", (uint32_t)tok->eos);
  else
    wn_log(ctx, WN_LOG_WARNING, "the tokenizer has no token that ends a text: llama.cpp will take token %d for it",
           end);
  for (int i = 0; i < tok->told_ends; i++) { /* beyond two the model's own list has them (text/declared.h) */
    size_t n;
    const char *name = wn_tokenizer_token_name(tok, tok->ends[i], &n);
    const char *key = name && n == 10 && !memcmp(name, "<|eom_id|>", n) ? message : turn;
    if (!wn_gguf_values_has(values, key)) wn_gguf_values_put_uint(values, key, (uint32_t)tok->ends[i]);
  }
  if (unknown >= 0) wn_gguf_values_put_uint(values, "tokenizer.ggml.unknown_token_id", (uint32_t)unknown);
  wn_gguf_values_put_bool(values, "tokenizer.ggml.add_bos_token", tok->bos >= 0);
  wn_gguf_values_put_bool(values, "tokenizer.ggml.add_eos_token", false); /* unigram: otherwise llama.cpp adds eos */
  const char *chat = wn_tokenizer_chat_template(tok);
  if (chat) put_text(values, WN_GGUF_CHAT_TEMPLATE, chat);
  if (tok->tool_template) put_text(values, WN_GGUF_TOOL_TEMPLATE, tok->tool_template);
}

/* ---- byte-level BPE ---- */

static bool splits_as(const struct wn_bpe *bpe, const struct wn_published *p) {
  const bool nfc = bpe->normalize_count == 1 && bpe->normalize[0].kind == WN_NORMALIZE_NFC;
  int n = 0;
  while (n < 4 && p->patterns[n]) n++;
  if (bpe->split_count != n || bpe->ignore_merges != p->ignore_merges || nfc != p->nfc) return false;
  if (!nfc && bpe->normalize_count > 0) return false;
  for (int i = 0; i < n; i++) {
    const struct wn_split_step *s = &bpe->split[i];
    if (s->kind != WN_SPLIT_PATTERN || s->behavior != WN_SPLIT_ISOLATED || s->invert) return false;
    if (strcmp(wn_pattern_text(s->pattern), p->patterns[i]) != 0) return false;
  }
  return true;
}

/* GGUF's name for a way to split words; NULL: it has none. */
static const char *split_name(const struct wn_bpe *bpe) {
  static const char *const names[] = {"gpt-2",     "smollm", "llama-bpe", "smaug-bpe", "qwen2",
                                      "stablelm2", "tekken", "gpt-4o",    "falcon",    "default"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const struct wn_published *p = wn_published_find(names[i], strlen(names[i]));
    if (p && splits_as(bpe, p)) return names[i];
  }
  return NULL;
}

static int tokenizer_gguf_by_rank(const void *a, const void *b) {
  const struct wn_merge *x = *(const struct wn_merge *const *)a, *y = *(const struct wn_merge *const *)b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static wn_status put_merges(wn_context *ctx, const struct wn_bpe *bpe, wn_gguf_values *values) {
  void *memory, *text;
  const size_t room = 2 * WN_TOKEN_MAX_BYTES + 1;
  WN_TRY(wn_alloc(ctx, "merges", (bpe->merge_count + 1) * sizeof(struct wn_merge *), &memory));
  const wn_status status = wn_alloc(ctx, "a merge", 2 * room + 1, &text);
  if (status != WN_OK) {
    wn_free(memory);
    return status;
  }
  const struct wn_merge **order = memory;
  char *pair = text;
  uint32_t n = 0;
  for (uint32_t i = 0; bpe->merges && i <= bpe->merge_mask; i++)
    if (bpe->merges[i].pair != UINT64_MAX) order[n++] = &bpe->merges[i];
  if (n) qsort(order, n, sizeof *order, tokenizer_gguf_by_rank);
  wn_gguf_values_begin_strings(values, "tokenizer.ggml.merges", n);
  for (uint32_t i = 0; i < n; i++) {
    size_t at = wn_bpe_token_text(bpe, (int32_t)(order[i]->pair >> 32), pair);
    pair[at++] = ' ';
    at += wn_bpe_token_text(bpe, (int32_t)(order[i]->pair & UINT32_MAX), pair + at);
    wn_gguf_values_add_string(values, pair, at);
  }
  wn_free(text);
  wn_free(memory);
  return WN_OK;
}

static int32_t tokenizer_gguf_type_of(const struct wn_token *t) {
  static const int32_t types[] = {[WN_TOKEN_NONE] = TYPE_UNUSED,
                                  [WN_TOKEN_TEXT] = TYPE_NORMAL,
                                  [WN_TOKEN_SPECIAL] = TYPE_CONTROL,
                                  [WN_TOKEN_ADDED] = TYPE_USER,
                                  [WN_TOKEN_BYTE] = TYPE_BYTE};
  return types[t->kind];
}

static wn_status put_bpe(wn_context *ctx, const wn_tokenizer *tok, int64_t rows, wn_gguf_values *values) {
  const struct wn_bpe *bpe = tok->bpe;
  void *types;
  if (!bpe->byte_level)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "a tokenizer.json with byte fallback cannot be written as GGUF; its tokenizer.model can");
  for (int32_t id = 0; id < bpe->vocab.size; id++) {
    const struct wn_token *t = &bpe->vocab.tokens[id];
    if (!t->lstrip && !t->rstrip && !t->single_word) continue;
    wn_log(
        ctx, WN_LOG_WARNING,
        "added token \"%.*s\" (%d) has a setting (lstrip, rstrip, single_word) that GGUF has no field for: it is lost",
        t->bytes < 60 ? (int)t->bytes : 60, wn_vocab_text(&bpe->vocab, id), id);
  }
  const char *name = split_name(bpe);
  if (!name) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the tokenizer splits words in a way that GGUF has no name for");
  WN_TRY(wn_alloc(ctx, "types of tokens", (size_t)rows * sizeof(int32_t), &types));
  char text[2 * WN_TOKEN_MAX_BYTES + 1];
  put_text(values, "tokenizer.ggml.model", "gpt2");
  put_text(values, "tokenizer.ggml.pre", name);
  wn_gguf_values_begin_strings(values, "tokenizer.ggml.tokens", (uint64_t)rows);
  for (int64_t id = 0; id < rows; id++) {
    const bool used = id < bpe->vocab.size && bpe->vocab.tokens[id].kind != WN_TOKEN_NONE;
    ((int32_t *)types)[id] = used ? tokenizer_gguf_type_of(&bpe->vocab.tokens[id]) : TYPE_UNUSED;
    if (used)
      wn_gguf_values_add_string(values, text, wn_bpe_token_text(bpe, (int32_t)id, text));
    else
      add_unused(values, id);
  }
  wn_gguf_values_put_ints(values, "tokenizer.ggml.token_type", types, (uint64_t)rows);
  wn_free(types);
  WN_TRY(put_merges(ctx, bpe, values));
  put_ids(ctx, tok, bpe->unknown, 11, values);
  return WN_OK;
}

/* ---- SentencePiece: sentencepiece_model.proto, already validated (spm_check.h) ---- */

struct proto {
  const uint8_t *at, *end;
};

static uint64_t varint(struct proto *p) {
  uint64_t v = 0;
  for (int shift = 0; p->at < p->end && shift < 64; shift += 7) {
    const uint8_t byte = *p->at++;
    v |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) break;
  }
  return v;
}

/* Reads the next field and returns its number, 0 at the end. *value: a varint or fixed number; *inner: a run of
 * bytes. */
static uint64_t next_field(struct proto *p, uint64_t *value, struct proto *inner) {
  if (p->at >= p->end) return 0;
  const uint64_t key = varint(p);
  size_t n = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
  *value = 0;
  *inner = (struct proto){p->at, p->at};
  if ((key & 7) == 0) {
    *value = varint(p);
    return key >> 3;
  }
  if ((key & 7) == 2) n = (size_t)varint(p);
  if (n > (size_t)(p->end - p->at)) return 0;
  if ((key & 7) != 2) memcpy(value, p->at, n);
  *inner = (struct proto){p->at, p->at + n};
  p->at += n;
  return key >> 3;
}

struct pieces {
  wn_context *ctx;
  const wn_tokenizer *tok;
  wn_gguf_values *values;
  float *scores;
  int32_t *types;
  int64_t rows;
  int32_t unknown;
  bool unigram, add_dummy_prefix, remove_extra;
  struct proto charsmap;
};

static void read_piece(struct pieces *s, int64_t id, struct proto p) {
  uint64_t value, number;
  struct proto inner, text = {NULL, NULL};
  int32_t type = TYPE_NORMAL;
  float score = 0;
  while ((number = next_field(&p, &value, &inner))) {
    if (number == 1) text = inner;
    if (number == 2) memcpy(&score, &value, sizeof score);
    if (number == 3) type = (int32_t)value;
  }
  if (id >= s->rows) return;
  s->scores[id] = score;
  s->types[id] = type;
  if (type == TYPE_UNKNOWN) s->unknown = (int32_t)id;
  wn_gguf_values_add_string(s->values, (const char *)text.at, (size_t)(text.end - text.at));
}

static void read_specs(struct pieces *s) {
  struct proto p = {(const uint8_t *)s->tok->model, (const uint8_t *)s->tok->model + s->tok->model_bytes};
  struct proto spec, inner;
  uint64_t value, number, inside;
  s->unigram = s->add_dummy_prefix = s->remove_extra = true; /* the defaults of the proto */
  while ((number = next_field(&p, &value, &spec))) {
    if (number != 2 && number != 3) continue;
    while ((inside = next_field(&spec, &value, &inner))) {
      if (number == 2 && inside == 3) s->unigram = value == 1;
      if (number == 3 && inside == 2) s->charsmap = inner;
      if (number == 3 && inside == 3) s->add_dummy_prefix = value != 0;
      if (number == 3 && inside == 4) s->remove_extra = value != 0;
    }
  }
}

static void put_pieces(struct pieces *s) {
  struct proto p = {(const uint8_t *)s->tok->model, (const uint8_t *)s->tok->model + s->tok->model_bytes}, inner;
  uint64_t value, number;
  int64_t id = 0;
  read_specs(s);
  put_text(s->values, "tokenizer.ggml.model", s->unigram ? "t5" : "llama");
  put_text(s->values, "tokenizer.ggml.pre", "default");
  wn_gguf_values_begin_strings(s->values, "tokenizer.ggml.tokens", (uint64_t)s->rows);
  while ((number = next_field(&p, &value, &inner)))
    if (number == 1) read_piece(s, id++, inner);
  for (; id < s->rows; id++) {
    s->types[id] = TYPE_UNUSED;
    s->scores[id] = -1e6f;
    add_unused(s->values, id);
  }
  wn_gguf_values_put_floats(s->values, "tokenizer.ggml.scores", s->scores, (uint64_t)s->rows);
  wn_gguf_values_put_ints(s->values, "tokenizer.ggml.token_type", s->types, (uint64_t)s->rows);
  wn_gguf_values_put_bool(s->values, "tokenizer.ggml.add_space_prefix",
                          s->add_dummy_prefix || s->tok->info.foreign.prepend != WN_PREPEND_NEVER);
  wn_gguf_values_put_bool(s->values, "tokenizer.ggml.remove_extra_whitespaces", s->remove_extra);
  if (s->unigram && s->charsmap.end > s->charsmap.at)
    wn_gguf_values_put_bytes(s->values, "tokenizer.ggml.precompiled_charsmap", s->charsmap.at,
                             (uint64_t)(s->charsmap.end - s->charsmap.at));
  /* winnow reads the model itself: llama.cpp's metadata only approximates it. */
  wn_gguf_values_put_bytes(s->values, "winnow.tokenizer.model", (const uint8_t *)s->tok->model,
                           (uint64_t)s->tok->model_bytes);
  put_ids(s->ctx, s->tok, s->unknown, s->unigram ? 1 : 2, s->values);
}

static wn_status put_spm(wn_context *ctx, const wn_tokenizer *tok, int64_t rows, wn_gguf_values *values) {
  struct pieces s = {.ctx = ctx, .tok = tok, .values = values, .rows = rows, .unknown = -1};
  WN_TRY(WN_ALLOC(ctx, "scores of tokens", rows, &s.scores));
  const wn_status status = WN_ALLOC(ctx, "types of tokens", rows, &s.types);
  if (status == WN_OK) put_pieces(&s);
  if (status == WN_OK) wn_free(s.types);
  wn_free(s.scores);
  return status;
}

wn_status wn_tokenizer_gguf(wn_context *ctx, const wn_tokenizer *tok, int64_t vocab_size, wn_gguf_values *values) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_HANDLE(values, GGUF_VALUES));
  if (vocab_size < wn_tokenizer_vocab_size(tok))
    return wn_fail(ctx, WN_ERR_SHAPE, "the tokenizer has %d tokens, the model %lld", wn_tokenizer_vocab_size(tok),
                   (long long)vocab_size);
  if (tok->bpe) return put_bpe(ctx, tok, vocab_size, values);
  if (tok->spm) return put_spm(ctx, tok, vocab_size, values);
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the tokenizer \"bytes\" has no form in GGUF");
}
