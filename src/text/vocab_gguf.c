/* Reads tokenizers from GGUF files; see vocab_gguf.h. Kind and length of every array, and every id, are checked before
 * use. */
#include "text/vocab_gguf.h"

#include <math.h>
#include <string.h>
#include "base/alloc.h"
#include "base/context.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/spm_proto.h"
#include "text/utf8.h"

struct source {
  wn_context *ctx;
  const char *path;
  const wn_gguf *file;
  const wn_gguf_value *tokens, *types, *scores;
  int32_t size;
};

static wn_status find_array(const struct source *s, const char *key, wn_gguf_kind kind, const char *what,
                            const wn_gguf_value **out) {
  const wn_gguf_value *v = wn_gguf_value_find(s->file, key);
  *out = v;
  if (!v) return WN_OK;
  bool fits = v->is_array && (v->kind == kind || (kind == WN_GGUF_INT && v->kind == WN_GGUF_UINT));
  if (!fits) return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: %s is not an array of %s", s->path, key, what);
  return WN_OK;
}

/* An id, or -1 if the file has none. */
static wn_status vocab_gguf_read_id(const struct source *s, const char *key, int32_t *out) {
  const wn_gguf_value *v = wn_gguf_value_find(s->file, key);
  int64_t id;
  *out = -1;
  if (!v) return WN_OK;
  if (v->is_array || !wn_gguf_value_int(v, 0, &id))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: %s is not a whole number", s->path, key);
  if (id == -1 || id == UINT32_MAX) return WN_OK; /* how some writers express none */
  if (id < 0 || id >= s->size)
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: %s is %lld, the vocabulary has %d tokens", s->path, key, (long long)id,
                   s->size);
  *out = (int32_t)id;
  return WN_OK;
}

static wn_status read_bool(const struct source *s, const char *key, bool *inout) {
  const wn_gguf_value *v = wn_gguf_value_find(s->file, key);
  int64_t value;
  if (!v) return WN_OK;
  if (v->is_array || v->kind != WN_GGUF_BOOL || !wn_gguf_value_int(v, 0, &value))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: %s is not a bool", s->path, key);
  *inout = value != 0;
  return WN_OK;
}

static wn_status token_type(const struct source *s, int32_t id, int *out) {
  int64_t type = WN_PIECE_NORMAL;
  if (s->types && !wn_gguf_value_int(s->types, (uint64_t)id, &type)) type = 0;
  if (type < WN_PIECE_NORMAL || type > WN_PIECE_BYTE)
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.token_type[%d] is %lld, expected 1 to 6", s->path, id,
                   (long long)type);
  *out = (int)type;
  return WN_OK;
}

/* --- byte-level BPE --- */

static wn_status vocab_gguf_read_merges(const struct source *s, struct wn_bpe *bpe) {
  const wn_gguf_value *merges;
  WN_TRY(find_array(s, "tokenizer.ggml.merges", WN_GGUF_STRING, "strings", &merges));
  if (!merges) return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: a BPE tokenizer without tokenizer.ggml.merges", s->path);
  WN_TRY(wn_bpe_reserve_merges(s->ctx, bpe, merges->count));
  for (uint64_t i = 0; i < merges->count; i++) {
    const char *text;
    size_t bytes;
    const char *space = NULL;
    if (wn_gguf_value_string(merges, i, &text, &bytes) && bytes > 2) space = memchr(text + 1, ' ', bytes - 1);
    if (!space || space + 1 == text + bytes)
      return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.merges[%llu] is not two tokens with a space between",
                     s->path, (unsigned long long)i);
    WN_TRY(wn_bpe_add_merge(s->ctx, s->path, bpe, (uint32_t)i, text, (size_t)(space - text), space + 1,
                            (size_t)(text + bytes - space - 1)));
  }
  return WN_OK;
}

/* llama.cpp reads a file that does not name a way to split as "default", which fits hardly any model. Here the caller
 * must name it. */
static wn_status read_splits(const struct source *s, struct wn_bpe *bpe, bool *bos) {
  const wn_gguf_value *pre = wn_gguf_value_find(s->file, "tokenizer.ggml.pre");
  const char *given = s->ctx && s->ctx->pre[0] ? s->ctx->pre : NULL, *name = given ? given : "";
  size_t bytes = strlen(name);
  if (!pre && !given)
    return wn_fail(s->ctx, WN_ERR_UNSUPPORTED,
                   "%s: the file does not say how texts are split into words (tokenizer.ggml.pre); --pre NAME does: "
                   "llama-bpe, qwen2, gpt-2, ..., or default, as llama.cpp reads such files",
                   s->path);
  if (pre && (pre->is_array || !wn_gguf_value_string(pre, 0, &name, &bytes)))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.pre is not a string", s->path);
  if (pre && given && (bytes != strlen(given) || memcmp(name, given, bytes) != 0))
    wn_log(s->ctx, WN_LOG_WARNING, "%s: tokenizer.ggml.pre is \"%.*s\"; \"%s\" is not used", s->path,
           bytes < 60 ? (int)bytes : 60, name, given);
  const struct wn_published *p = wn_published_find(name, bytes);
  if (!p)
    return wn_fail(s->ctx, WN_ERR_UNSUPPORTED, "%s: %s is \"%.*s\", a way to split texts that is not known here",
                   s->path, pre ? "tokenizer.ggml.pre" : "--pre", bytes < 60 ? (int)bytes : 60, name);
  for (int i = 0; i < 4 && p->patterns[i]; i++)
    WN_TRY(wn_bpe_add_split(s->ctx, s->path, bpe, p->patterns[i], WN_SPLIT_ISOLATED, false));
  bpe->ignore_merges = p->ignore_merges;
  if (p->nfc) bpe->normalize[bpe->normalize_count++].kind = WN_NORMALIZE_NFC;
  *bos = p->bos;
  return WN_OK;
}

static wn_status read_bpe(const struct source *s, struct wn_gguf_vocab *out) {
  WN_TRY(wn_bpe_create(s->ctx, &out->bpe));
  struct wn_bpe *bpe = out->bpe;
  bpe->byte_level = true;
  WN_TRY(wn_vocab_create(s->ctx, s->path, s->size, &bpe->vocab));
  for (int32_t id = 0; id < s->size; id++) {
    const char *text;
    size_t bytes, bad;
    int type = WN_PIECE_NORMAL;
    WN_TRY(token_type(s, id, &type));
    if (!wn_gguf_value_string(s->tokens, (uint64_t)id, &text, &bytes) || !wn_utf8_check(text, bytes, &bad) ||
        memchr(text, 0, bytes))
      return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.tokens[%d] is not UTF-8 text", s->path, id);
    if (bytes == 0) continue;
    enum wn_token_kind kind = type == WN_PIECE_CONTROL || type == WN_PIECE_UNKNOWN ? WN_TOKEN_SPECIAL
                              : type == WN_PIECE_USER_DEFINED                      ? WN_TOKEN_ADDED
                                                                                   : WN_TOKEN_TEXT;
    if (id == out->eos || id == out->turn || id == out->bos) kind = WN_TOKEN_SPECIAL;
    WN_TRY(wn_bpe_set_token(s->ctx, s->path, bpe, id, text, bytes, kind));
  }
  WN_TRY(wn_bpe_index(s->ctx, s->path, bpe));
  WN_TRY(vocab_gguf_read_merges(s, bpe));
  WN_TRY(read_splits(s, bpe, &out->add_bos));
  return wn_bpe_finish(s->ctx, s->path, bpe);
}

/* --- SentencePiece: the serialized ModelProto (sentencepiece_model.proto) --- */

static wn_status put_piece(const struct source *s, struct wn_bytes *model, struct wn_bytes *piece,
                           struct wn_bytes *marked, int32_t id, int32_t unknown) {
  const char *text;
  size_t bytes;
  int type = WN_PIECE_NORMAL;
  double score = 0;
  WN_TRY(token_type(s, id, &type));
  if (!wn_gguf_value_string(s->tokens, (uint64_t)id, &text, &bytes))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.tokens[%d] is not a string", s->path, id);
  if (s->scores && !wn_gguf_value_float(s->scores, (uint64_t)id, &score))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.scores[%d] is not a number", s->path, id);
  if (!isfinite(score))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.scores[%d] is not finite", s->path, id);
  /* A vocabulary has one unknown token; other tokens of that type are unused. */
  if (id == unknown)
    type = WN_PIECE_UNKNOWN;
  else if (type == WN_PIECE_UNKNOWN)
    type = WN_PIECE_UNUSED;
  /* The model from which llama.cpp's converters wrote the file marks the spaces of user-defined pieces too; in the file
   * they are spaces. Gemma has such pieces for runs of spaces. */
  if (type == WN_PIECE_USER_DEFINED && memchr(text, ' ', bytes)) {
    marked->count = 0;
    WN_TRY(wn_mark_spaces(s->ctx, marked, text, bytes));
    text = marked->data;
    bytes = marked->count;
  }
  return wn_proto_piece(s->ctx, model, piece, text, bytes, score, type);
}

static wn_status build_spm(const struct source *s, struct wn_bytes *model, struct wn_bytes *part,
                           struct wn_bytes *marked, struct wn_gguf_vocab *out) {
  int32_t unknown;
  bool prefix = true, squeeze = false;
  WN_TRY(vocab_gguf_read_id(s, "tokenizer.ggml.unknown_token_id", &unknown));
  WN_TRY(read_bool(s, "tokenizer.ggml.add_space_prefix", &prefix));
  WN_TRY(read_bool(s, "tokenizer.ggml.remove_extra_whitespaces", &squeeze));
  if (!s->scores)
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: a SentencePiece tokenizer without tokenizer.ggml.scores", s->path);
  int bytes_found = 0;
  for (int32_t id = 0; id < s->size; id++) {
    int type = WN_PIECE_NORMAL;
    WN_TRY(token_type(s, id, &type));
    bytes_found += type == WN_PIECE_BYTE;
    if (type == WN_PIECE_UNKNOWN && unknown < 0) unknown = id;
  }
  if (unknown < 0)
    wn_log(s->ctx, WN_LOG_WARNING, "%s: no token is of the type \"unknown\": token 0 stands for unknown text", s->path);
  if (unknown < 0) unknown = 0;
  if (bytes_found != 0 && bytes_found != 256)
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: the tokenizer has tokens for %d bytes, expected none or 256", s->path,
                   bytes_found);
  for (int32_t id = 0; id < s->size; id++) WN_TRY(put_piece(s, model, part, marked, id, unknown));
  struct wn_proto_specs specs = {.byte_fallback = bytes_found == 256,
                                 .add_dummy_prefix = prefix,
                                 .remove_extra_whitespaces = squeeze,
                                 .ids = {unknown, out->bos, out->eos}};
  for (int i = 0; i < 3; i++) {
    const char *text;
    size_t bytes;
    if (specs.ids[i] < 0 || !wn_gguf_value_string(s->tokens, (uint64_t)specs.ids[i], &text, &bytes)) continue;
    specs.texts[i] = text, specs.bytes[i] = bytes;
  }
  return wn_proto_put_specs(s->ctx, model, part, &specs);
}

static wn_status read_spm(const struct source *s, struct wn_gguf_vocab *out) {
  struct wn_bytes model = {0}, part = {0}, marked = {0};
  out->add_bos = true;
  wn_status status = build_spm(s, &model, &part, &marked, out);
  wn_bytes_clear(&part);
  wn_bytes_clear(&marked);
  out->spm = model.data;
  out->spm_bytes = model.count;
  return status;
}

/* --- both --- */

static wn_status vocab_gguf_read_vocab(struct source *s, struct wn_gguf_vocab *out) {
  const char *text;
  size_t bytes;
  const wn_gguf_value *model = wn_gguf_value_find(s->file, "tokenizer.ggml.model");
  if (!model) return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: the file has no tokenizer (tokenizer.ggml.model)", s->path);
  if (model->is_array || !wn_gguf_value_string(model, 0, &text, &bytes))
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.model is not a string", s->path);
  bool bpe = bytes == 4 && !memcmp(text, "gpt2", 4), spm = bytes == 5 && !memcmp(text, "llama", 5);
  if (!bpe && !spm)
    return wn_fail(s->ctx, WN_ERR_UNSUPPORTED,
                   "%s: tokenizer.ggml.model is \"%.*s\", known here are \"gpt2\" and \"llama\"", s->path,
                   bytes < 60 ? (int)bytes : 60, text);
  WN_TRY(find_array(s, "tokenizer.ggml.tokens", WN_GGUF_STRING, "strings", &s->tokens));
  WN_TRY(find_array(s, "tokenizer.ggml.token_type", WN_GGUF_INT, "whole numbers", &s->types));
  WN_TRY(find_array(s, "tokenizer.ggml.scores", WN_GGUF_FLOAT, "floats", &s->scores));
  if (!s->tokens || s->tokens->count == 0 || s->tokens->count > WN_LIMIT_VOCABULARY)
    return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: tokenizer.ggml.tokens has %llu tokens, expected 1 to %d", s->path,
                   s->tokens ? (unsigned long long)s->tokens->count : 0ull, WN_LIMIT_VOCABULARY);
  s->size = (int32_t)s->tokens->count;
  if (!s->types)
    wn_log(s->ctx, WN_LOG_WARNING,
           "%s: the file does not say which tokens are control tokens (tokenizer.ggml.token_type): only those that it "
           "names to begin and end texts are",
           s->path);
  const wn_gguf_value *both[2] = {s->types, s->scores};
  for (int i = 0; i < 2; i++)
    if (both[i] && both[i]->count != s->tokens->count)
      return wn_fail(s->ctx, WN_ERR_FORMAT, "%s: %s has %llu entries for %d tokens", s->path, both[i]->key,
                     (unsigned long long)both[i]->count, s->size);
  int32_t eom;
  WN_TRY(vocab_gguf_read_id(s, "tokenizer.ggml.bos_token_id", &out->bos));
  WN_TRY(vocab_gguf_read_id(s, "tokenizer.ggml.eos_token_id", &out->eos));
  WN_TRY(vocab_gguf_read_id(s, "tokenizer.ggml.eot_token_id", &out->turn));
  WN_TRY(vocab_gguf_read_id(s, "tokenizer.ggml.eom_token_id", &eom));
  if (out->turn < 0) out->turn = eom;
  WN_TRY(bpe ? read_bpe(s, out) : read_spm(s, out));
  WN_TRY(read_bool(s, "tokenizer.ggml.add_bos_token", &out->add_bos));
  WN_TRY(wn_gguf_vocab_template(s->ctx, s->file, WN_GGUF_CHAT_TEMPLATE, &out->chat_template));
  return wn_gguf_vocab_template(s->ctx, s->file, WN_GGUF_TOOL_TEMPLATE, &out->tool_template);
}

wn_status wn_gguf_vocab_template(wn_context *ctx, const wn_gguf *file, const char *key, char **out) {
  const wn_gguf_value *chat = wn_gguf_value_find(file, key);
  const char *text;
  size_t bytes;
  *out = NULL;
  if (!chat || chat->is_array || !wn_gguf_value_string(chat, 0, &text, &bytes) || memchr(text, 0, bytes)) return WN_OK;
  struct wn_bytes copy = {0};
  WN_TRY(wn_bytes_add(ctx, &copy, text, bytes));
  *out = copy.data;
  return WN_OK;
}

static void vocab_gguf_clear(struct wn_gguf_vocab *v) {
  wn_bpe_destroy(v->bpe);
  wn_free(v->spm);
  wn_free(v->chat_template);
  wn_free(v->tool_template);
  *v = (struct wn_gguf_vocab){.bos = -1, .eos = -1, .turn = -1};
}

wn_status wn_gguf_vocab_read(wn_context *ctx, const char *path, const wn_gguf *file, struct wn_gguf_vocab *out) {
  struct source s = {.ctx = ctx, .path = path, .file = file};
  *out = (struct wn_gguf_vocab){.bos = -1, .eos = -1, .turn = -1};
  wn_status status = vocab_gguf_read_vocab(&s, out);
  if (status != WN_OK) vocab_gguf_clear(out);
  return status;
}
