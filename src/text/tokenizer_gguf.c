/* Writes a tokenizer as GGUF metadata, in llama.cpp's terms: tokenizer.ggml.model is "gpt2" (byte-level BPE; .pre names
 * the split pattern), "llama" (SentencePiece BPE) or "t5" (SentencePiece unigram); then tokens, scores, types, merges,
 * ids of special tokens, and the chat template. If the model has more rows than the tokenizer has tokens, the rest get
 * names and are marked unused. A SentencePiece model is also stored whole, because llama.cpp has no byte fallback in
 * unigram models and puts a space after user-defined pieces. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "text/bpe_json.h"
#include "text/spm_inside.h"
#include "text/tokenizer_kinds.h"
#include "text/vocab_gguf.h"

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

static wn_status put_merges(wn_context *ctx, const struct wn_bpe *bpe, wn_gguf_values *values) {
  const struct wn_merge **order;
  char *pair;
  uint32_t n;
  WN_TRY(wn_bpe_merges(ctx, bpe, &order, &n));
  const wn_status status = WN_ALLOC(ctx, "a merge", 4 * WN_TOKEN_MAX_BYTES + 3, &pair);
  if (status != WN_OK) {
    wn_free(order);
    return status;
  }
  wn_gguf_values_begin_strings(values, "tokenizer.ggml.merges", n);
  for (uint32_t i = 0; i < n; i++) {
    size_t at = wn_bpe_token_text(bpe, (int32_t)(order[i]->pair >> 32), pair);
    pair[at++] = ' ';
    at += wn_bpe_token_text(bpe, (int32_t)(order[i]->pair & UINT32_MAX), pair + at);
    wn_gguf_values_add_string(values, pair, at);
  }
  wn_free(pair);
  wn_free(order);
  return WN_OK;
}

static int32_t tokenizer_gguf_type_of(const struct wn_token *t) {
  static const int32_t types[] = {[WN_TOKEN_NONE] = WN_PIECE_UNUSED,
                                  [WN_TOKEN_TEXT] = WN_PIECE_NORMAL,
                                  [WN_TOKEN_SPECIAL] = WN_PIECE_CONTROL,
                                  [WN_TOKEN_ADDED] = WN_PIECE_USER_DEFINED,
                                  [WN_TOKEN_BYTE] = WN_PIECE_BYTE};
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
    ((int32_t *)types)[id] = used ? tokenizer_gguf_type_of(&bpe->vocab.tokens[id]) : WN_PIECE_UNUSED;
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

/* ---- SentencePiece ---- */

static wn_status put_spm(wn_context *ctx, const wn_tokenizer *tok, int64_t rows, wn_gguf_values *values) {
  const struct wn_spm *spm = tok->spm;
  const struct wn_spm_trie *rules = &spm->rules;
  const bool unigram = tok->info.unigram;
  int32_t unknown = -1;
  float *scores;
  int32_t *types;
  WN_TRY(WN_ALLOC(ctx, "scores of tokens", rows, &scores));
  const wn_status status = WN_ALLOC(ctx, "types of tokens", rows, &types);
  if (status != WN_OK) {
    wn_free(scores);
    return status;
  }
  put_text(values, "tokenizer.ggml.model", unigram ? "t5" : "llama");
  put_text(values, "tokenizer.ggml.pre", "default");
  wn_gguf_values_begin_strings(values, "tokenizer.ggml.tokens", (uint64_t)rows);
  for (int64_t id = 0; id < rows; id++) {
    const struct wn_spm_piece *p = id < spm->count ? &spm->pieces[id] : NULL;
    types[id] = p ? p->type : WN_PIECE_UNUSED;
    scores[id] = p ? p->score : -1e6f;
    if (types[id] == WN_PIECE_UNKNOWN) unknown = (int32_t)id;
    if (p)
      wn_gguf_values_add_string(values, spm->texts + p->at, p->bytes);
    else
      add_unused(values, id);
  }
  wn_gguf_values_put_floats(values, "tokenizer.ggml.scores", scores, (uint64_t)rows);
  wn_gguf_values_put_ints(values, "tokenizer.ggml.token_type", types, (uint64_t)rows);
  wn_free(scores);
  wn_free(types);
  wn_gguf_values_put_bool(values, "tokenizer.ggml.add_space_prefix",
                          tok->info.add_dummy_prefix || tok->info.foreign.prepend != WN_PREPEND_NEVER);
  wn_gguf_values_put_bool(values, "tokenizer.ggml.remove_extra_whitespaces", tok->info.remove_extra_whitespaces);
  if (unigram && rules->count) /* the table with its size before it */
    wn_gguf_values_put_bytes(values, "tokenizer.ggml.precompiled_charsmap", rules->units - 4,
                             4 + 4 * (uint64_t)rules->count + rules->text_bytes);
  /* winnow reads the model itself: llama.cpp's metadata only approximates it. */
  wn_gguf_values_put_bytes(values, "winnow.tokenizer.model", (const uint8_t *)tok->model, (uint64_t)tok->model_bytes);
  put_ids(ctx, tok, unknown, unigram ? 1 : 2, values);
  return WN_OK;
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
