/* Loads and saves tokenizers. A path may be a folder (our checkpoint, or a Hugging Face one), a GGUF file, a
 * tokenizer.json, or a SentencePiece model; the contents decide. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/open.h"
#include "base/text.h"
#include "text/bpe_json.h"
#include "text/declared.h"
#include "text/pieces.h"
#include "text/spm_json.h"
#include "text/token_tree.h"
#include "text/tokenizer_kinds.h"
#include "text/vocab_gguf.h"

#define MODEL_NAME "tokenizer.model"
#define KIND_NAME "tokenizer.json"
#define CONFIG_NAME "tokenizer_config.json"
#define TEMPLATE_NAME "chat_template.jinja"
#define TOOL_TEMPLATE_NAME "additional_chat_templates/tool_use.jinja"

/* Tests whether newline is a token by itself: the ids of "a\nb" must be those of "a", newline, and the rest of
 * "\nb". */
static wn_status find_cuts(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  struct wn_ids ids[4] = {0};
  static const char *const texts[4] = {"\n", "a", "\nb", "a\nb"};
  wn_status status = WN_OK;
  for (int i = 0; i < 4 && status == WN_OK; i++) {
    size_t count;
    status = wn_tokenizer_segment(tok, texts[i], strlen(texts[i]), 0, &ids[i], &count);
    if (status != WN_OK) wn_fail(ctx, status, "%s: the tokenizer does not work: out of memory", path);
  }
  if (status == WN_OK && ids[0].count > 0 && !tok->info.newline_inside) {
    int32_t newline = ids[0].data[ids[0].count - 1];
    const char *text;
    size_t n, prefix = ids[0].count;
    enum wn_spm_type type = wn_spm_piece(tok->spm, newline, &text, &n);
    bool own = (type == WN_SPM_TEXT && n == 1 && *text == '\n') || newline == tok->byte_id['\n'];
    own = own && ids[2].count >= prefix && !memcmp(ids[2].data, ids[0].data, prefix * sizeof(int32_t));
    size_t tail = own ? ids[2].count - prefix : 0;
    own = own && ids[3].count == ids[1].count + 1 + tail && ids[3].data[ids[1].count] == newline &&
          !memcmp(ids[3].data, ids[1].data, ids[1].count * sizeof(int32_t)) &&
          !memcmp(ids[3].data + ids[1].count + 1, ids[2].data + prefix, tail * sizeof(int32_t));
    tok->cuttable = own;
    tok->prefix = prefix;
  }
  for (int i = 0; i < 4; i++) wn_ids_clear(&ids[i]);
  return status;
}

/* --- SentencePiece --- */

/* Collects control tokens and the unknown one, for texts in which they are recognised, and the added tokens of a
 * tokenizer.json, which are recognised in all. */
static wn_status gather_control(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  WN_TRY(wn_vocab_create(ctx, path, tok->vocab_size, &tok->control));
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const char *text;
    size_t n;
    const enum wn_spm_type type = wn_spm_piece(tok->spm, id, &text, &n);
    const bool added = type == WN_SPM_TEXT && tok->info.foreign.marked && wn_spm_user_defined(tok->spm, id);
    if (type != WN_SPM_CONTROL && type != WN_SPM_UNKNOWN && !added) continue;
    if (added && memchr(text, '\n', n)) tok->info.newline_inside = true; /* what follows it begins like a text */
    WN_TRY(wn_vocab_set(ctx, path, &tok->control, id, text, n, added ? WN_TOKEN_ADDED : WN_TOKEN_SPECIAL));
  }
  return wn_finder_create(ctx, &tok->control, false, NULL, NULL, &tok->finder);
}

/* tok->model is set. */
static wn_status open_sentencepiece(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  WN_TRY(wn_spm_check(ctx, path, tok->model, tok->model_bytes, &tok->info));
  WN_TRY(wn_spm_create(ctx, path, tok->model, tok->model_bytes, &tok->info, &tok->spm));
  tok->vocab_size = wn_spm_count(tok->spm);
  tok->bos = tok->known_bos = wn_spm_bos(tok->spm);
  tok->eos = wn_spm_eos(tok->spm);
  for (int i = 0; i < 256; i++) tok->byte_id[i] = -1;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const char *text;
    size_t n;
    unsigned byte;
    if (wn_spm_piece(tok->spm, id, &text, &n) == WN_SPM_BYTE && sscanf(text, "<0x%2X>", &byte) == 1)
      tok->byte_id[byte & 255] = id;
  }
  WN_TRY(WN_ALLOC(ctx, "tokenizer", 1, &tok->pieces));
  if (wn_pieces_build(tok, tok->pieces) != WN_OK) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: tokenizer");
  WN_TRY(gather_control(ctx, path, tok));
  return find_cuts(ctx, path, tok);
}

static wn_status load_sentencepiece(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  WN_TRY(wn_file_read(ctx, path, WN_LIMIT_TOKENIZER_MODEL, &tok->model, &tok->model_bytes));
  return open_sentencepiece(ctx, path, tok);
}

/* --- GGUF --- */

/* The whole SentencePiece model, which wn_tokenizer_gguf stores besides llama.cpp's metadata. */
static wn_status take_model(wn_context *ctx, const wn_gguf_value *value, wn_tokenizer *tok) {
  const void *data;
  size_t bytes;
  if (!wn_gguf_value_bytes(value, &data, &bytes) || bytes == 0) return WN_OK;
  char *copy;
  WN_TRY(WN_ALLOC(ctx, "tokenizer", bytes, &copy));
  tok->model = memcpy(copy, data, bytes);
  tok->model_bytes = bytes;
  return WN_OK;
}

static wn_status load_gguf(wn_context *ctx, const char *path, wn_tokenizer *tok, wn_declared *declared) {
  wn_gguf *file;
  struct wn_gguf_vocab v;
  WN_TRY(wn_gguf_open(ctx, path, &file));
  const wn_status told = wn_declared_read_gguf(ctx, path, file, declared);
  if (told != WN_OK) {
    wn_gguf_close(file);
    return told;
  }
  const wn_gguf_value *own = wn_gguf_value_find(file, "winnow.tokenizer.model");
  if (own) {
    wn_status taken = take_model(ctx, own, tok);
    if (taken == WN_OK) taken = wn_gguf_vocab_template(ctx, file, WN_GGUF_CHAT_TEMPLATE, &tok->chat_template);
    if (taken == WN_OK) taken = wn_gguf_vocab_template(ctx, file, WN_GGUF_TOOL_TEMPLATE, &tok->tool_template);
    wn_gguf_close(file);
    WN_TRY(taken);
    if (!tok->model) return wn_fail(ctx, WN_ERR_FORMAT, "%s: winnow.tokenizer.model is not a list of bytes", path);
    return open_sentencepiece(ctx, path, tok);
  }
  wn_status status = wn_gguf_vocab_read(ctx, path, file, &v);
  wn_gguf_close(file);
  WN_TRY(status);
  tok->bpe = v.bpe;
  tok->model = v.spm;
  tok->model_bytes = v.spm_bytes;
  tok->chat_template = v.chat_template;
  tok->tool_template = v.tool_template;
  tok->configured = true;
  if (tok->bpe)
    tok->vocab_size = tok->bpe->vocab.size;
  else
    WN_TRY(open_sentencepiece(ctx, path, tok));
  tok->known_bos = v.bos;
  tok->bos = v.add_bos ? v.bos : -1;
  tok->eos = v.eos;
  return WN_OK;
}

/* --- all kinds --- */

static void add_end(wn_tokenizer *tok, int32_t id) {
  if (id >= 0 && id < tok->vocab_size && tok->end_count < WN_MAX_ENDS && !wn_tokenizer_is_end(tok, id))
    tok->ends[tok->end_count++] = id;
}

/* Gathers the tokens that end a text or a turn: those that the files declare, and the control tokens of names that
 * models use. */
static void find_ends(wn_tokenizer *tok, const wn_declared *declared) {
  static const char *const names[] = {"<|eot_id|>",      "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
                                      "<|end_of_text|>", "<|eom_id|>", "<EOT>",   "</s>",          "<|end_of_turn|>"};
  for (int i = 0; i < declared->end_count; i++)
    if (declared->ends[i] != tok->eos) add_end(tok, declared->ends[i]);
  tok->told_ends = tok->end_count;
  add_end(tok, tok->eos);
  const struct wn_vocab *v = tok->bpe ? &tok->bpe->vocab : &tok->control;
  for (int32_t id = 0; id < v->size; id++)
    for (size_t i = 0; v->tokens[id].kind == WN_TOKEN_SPECIAL && i < sizeof names / sizeof *names; i++)
      if (v->tokens[id].bytes == strlen(names[i]) && !memcmp(wn_vocab_text(v, id), names[i], strlen(names[i])))
        add_end(tok, id);
}

/* --- tokenizer.json and the other files of its folder --- */

/* A unigram model: converted to a SentencePiece model. */
static wn_status load_unigram(wn_context *ctx, const char *path, const json_t *json, wn_tokenizer *tok) {
  struct wn_bytes model = {0};
  int32_t bos;
  wn_status status = wn_unigram_read_json(ctx, path, json, &model, &bos);
  tok->model = model.data;
  tok->model_bytes = model.count;
  if (status == WN_OK) status = open_sentencepiece(ctx, path, tok);
  tok->bos = bos;
  tok->configured = true;
  return status;
}

/* {"kind": "bytes"} in a checkpoint; else a Hugging Face tokenizer. */
static wn_status load_json(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  json_t *json;
  int32_t eos;
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TOKENIZER, path, &json));
  const char *kind = json_string_value(json_object_get(json, "kind"));
  wn_status status = WN_OK;
  if (kind) {
    if (strcmp(kind, "bytes"))
      status = wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: \"kind\" is \"%s\", expected \"bytes\"", path, kind);
  } else if (wn_unigram_json_is(json)) {
    status = load_unigram(ctx, path, json, tok);
  } else {
    status = wn_bpe_create(ctx, &tok->bpe);
    if (status == WN_OK) status = wn_bpe_read_json(ctx, path, json, tok->bpe, &tok->bos, &eos);
    if (status == WN_OK) {
      tok->vocab_size = tok->bpe->vocab.size;
      tok->known_bos = tok->bos;
      tok->eos = eos;
      tok->configured = true;
    }
  }
  json_decref(json);
  return status;
}

/* A token given by its text, or by an object that has the text; -1: none. */
static int32_t configured_token(wn_context *ctx, const char *path, const wn_tokenizer *tok, const json_t *config,
                                const char *key) {
  const json_t *value = json_object_get(config, key);
  if (json_is_object(value)) value = json_object_get(value, "content");
  const char *text = json_string_value(value);
  if (!text) return -1;
  int32_t id = wn_tokenizer_find(tok, text, strlen(text));
  if (id < 0 && tok->bpe) id = wn_vocab_find(&tok->bpe->vocab, text, strlen(text));
  if (id < 0)
    wn_log(ctx, WN_LOG_WARNING, "%s: \"%s\" is \"%.60s\", which is no token of the tokenizer; it is not used", path,
           key, text);
  return id;
}

/* Sets a template to a text; one or several by name, of which "tool_use" is for conversations with tools. */
static wn_status set_template(wn_context *ctx, const json_t *value, char **plain, char **tools) {
  for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++) {
    const json_t *entry = json_array_get(value, i), *text = json_object_get(entry, "template");
    const char *name = json_string_value(json_object_get(entry, "name"));
    const bool own = !json_is_array(text);
    if (own && name && !strcmp(name, "tool_use")) WN_TRY(set_template(ctx, text, tools, NULL));
    if (own && (i == 0 || (name && !strcmp(name, "default")))) WN_TRY(set_template(ctx, text, plain, NULL));
  }
  if (!json_is_string(value)) return WN_OK;
  wn_free(*plain);
  *plain = wn_strdup(ctx, json_string_value(value));
  return *plain ? WN_OK : WN_ERR_MEMORY;
}

/* A template in a file of its own, if there is one. */
static wn_status load_template(wn_context *ctx, const char *dir, const char *name, wn_tokenizer *tok, char **out) {
  char path[4096];
  size_t bytes;
  if (*out || !wn_folder_has(dir, name)) return WN_OK;
  WN_TRY(wn_folder_file(ctx, path, sizeof path, dir, name));
  tok->configured = true;
  return wn_file_read(ctx, path, WN_LIMIT_TEMPLATE, out, &bytes);
}

/* tokenizer_config.json: special tokens, and the chat template (which may be a separate file). */
static wn_status load_config(wn_context *ctx, const char *dir, wn_tokenizer *tok) {
  char path[4096];
  if (!tok->bpe && !tok->spm) return WN_OK;
  if (wn_folder_has(dir, CONFIG_NAME)) {
    json_t *config;
    WN_TRY(wn_folder_file(ctx, path, sizeof path, dir, CONFIG_NAME));
    WN_TRY(wn_json_load_file(ctx, WN_JSON_TOKENIZER_CONFIG, path, &config));
    int32_t bos = configured_token(ctx, path, tok, config, "bos_token"),
            eos = configured_token(ctx, path, tok, config, "eos_token");
    int32_t turn = configured_token(ctx, path, tok, config, "eot_token");
    const json_t *add = json_object_get(config, "add_bos_token");
    if (bos >= 0) tok->known_bos = bos;
    if (eos >= 0) tok->eos = eos;
    if (turn != tok->eos) add_end(tok, turn);
    if (json_is_boolean(add)) tok->bos = json_is_true(add) ? tok->known_bos : -1;
    wn_status status =
        set_template(ctx, json_object_get(config, "chat_template"), &tok->chat_template, &tok->tool_template);
    json_decref(config);
    WN_TRY(status);
    tok->configured = true;
  }
  WN_TRY(load_template(ctx, dir, TEMPLATE_NAME, tok, &tok->chat_template));
  return load_template(ctx, dir, TOOL_TEMPLATE_NAME, tok, &tok->tool_template);
}

static wn_status has_magic(wn_context *ctx, const char *path, const char *magic, bool *has) {
  char head[4];
  int fd;
  uintmax_t bytes;
  WN_TRY(wn_open_file(ctx, path, &fd, &bytes));
  const ssize_t n = read(fd, head, sizeof head);
  const int error = errno;
  close(fd);
  if (n < 0) return wn_fail(ctx, WN_ERR_IO, "cannot read %s: %s", path, strerror(error));
  *has = n == (ssize_t)sizeof head && !memcmp(head, magic, sizeof head);
  return WN_OK;
}

static wn_status load_file(wn_context *ctx, const char *path, wn_tokenizer *tok, wn_declared *declared) {
  bool gguf = false;
  WN_TRY(has_magic(ctx, path, "GGUF", &gguf));
  if (gguf) return load_gguf(ctx, path, tok, declared);
  if (wn_ends_with(path, ".json")) return load_json(ctx, path, tok);
  return load_sentencepiece(ctx, path, tok);
}

static wn_status create(wn_context *ctx, wn_tokenizer **out) {
  WN_TRY(WN_ALLOC(ctx, "tokenizer", 1, out));
  wn_handle_mark(*out, WN_HANDLE_TOKENIZER);
  (*out)->vocab_size = 256;
  (*out)->bos = (*out)->eos = (*out)->known_bos = -1;
  pthread_mutex_init(&(*out)->tree_lock, NULL);
  return WN_OK;
}

/* A fine-tune of a SentencePiece model adds tokens only in tokenizer.json. Does that file have ids that tokenizer.model
 * lacks? */
static wn_status has_more(wn_context *ctx, const char *dir, const wn_tokenizer *tok, bool *more) {
  char path[4096];
  json_t *json;
  *more = false;
  if (!wn_folder_has(dir, KIND_NAME)) return WN_OK;
  WN_TRY(wn_folder_file(ctx, path, sizeof path, dir, KIND_NAME));
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TOKENIZER, path, &json));
  const json_t *added = json_object_get(json, "added_tokens");
  for (size_t i = 0; i < json_array_size(added); i++)
    if (json_integer_value(json_object_get(json_array_get(added, i), "id")) >= tok->vocab_size) *more = true;
  json_decref(json);
  return WN_OK;
}

const char *wn_tokenizer_file_of(const char *dir) {
  return wn_folder_has(dir, MODEL_NAME) ? MODEL_NAME : wn_folder_has(dir, KIND_NAME) ? KIND_NAME : NULL;
}

static wn_status load_spec(wn_context *ctx, const char *spec, wn_tokenizer **out) {
  *out = NULL;
  char path[4096];
  const char *dir = NULL;
  bool bytes = !strcmp(spec, "bytes");
  if (!bytes && wn_path_is_dir(spec)) {
    const char *name = wn_tokenizer_file_of(spec);
    if (!name)
      return wn_fail(ctx, WN_ERR_IO, "%s: the folder has no tokenizer (" MODEL_NAME " or " KIND_NAME ")", spec);
    WN_TRY(wn_folder_file(ctx, path, sizeof path, spec, name));
    dir = spec;
    spec = path;
  }
  wn_tokenizer *tok;
  wn_declared declared = {0};
  bool more = false;
  WN_TRY(create(ctx, &tok));
  wn_status status = bytes ? WN_OK : load_file(ctx, spec, tok, &declared);
  if (status == WN_OK && dir && tok->spm) status = has_more(ctx, dir, tok, &more);
  if (status == WN_OK && more) {
    wn_tokenizer_destroy(tok);
    WN_TRY(create(ctx, &tok));
    status = wn_folder_file(ctx, path, sizeof path, dir, KIND_NAME);
    if (status == WN_OK) status = load_file(ctx, path, tok, &declared);
  }
  if (status == WN_OK && dir) status = load_config(ctx, dir, tok);
  if (status == WN_OK && dir) status = wn_declared_read(ctx, dir, &declared);
  if (status == WN_OK) find_ends(tok, &declared);
  wn_declared_clear(&declared);
  if (status != WN_OK) {
    wn_tokenizer_destroy(tok);
    return status;
  }
  *out = tok;
  return WN_OK;
}

/* Loads files of one generation, even if another process saves into the folder meanwhile. */
wn_status wn_tokenizer_load(wn_context *ctx, const char *spec, wn_tokenizer **out) {
  WN_CHECK_CALL(WN_POINTER(spec), WN_POINTER(out));
  if (!wn_path_is_dir(spec)) return load_spec(ctx, spec, out);
  struct wn_folder_reading reading = {.dir = spec};
  while (wn_folder_reading_begin(&reading)) {
    const wn_status status = load_spec(ctx, spec, out);
    if (wn_folder_reading_end(&reading)) return status;
    wn_tokenizer_destroy(*out);
    *out = NULL;
  }
  return wn_fail(ctx, WN_ERR_IO, "%s: another process keeps replacing the tokenizer", spec);
}

void wn_tokenizer_destroy(wn_tokenizer *tok) {
  WN_CHECK_OR(, WN_HANDLE(tok, TOKENIZER));
  wn_spm_destroy(tok->spm);
  if (tok->pieces) wn_pieces_clear(tok->pieces);
  wn_free(tok->pieces);
  wn_bpe_destroy(tok->bpe);
  wn_finder_clear(&tok->finder);
  wn_vocab_clear(&tok->control);
  wn_free(tok->chat_template);
  wn_free(tok->tool_template);
  wn_free(tok->model);
  wn_token_tree_destroy(tok->tree);
  pthread_mutex_destroy(&tok->tree_lock);
  wn_free(tok);
}
int32_t wn_tokenizer_vocab_size(const wn_tokenizer *tok) {
  WN_CHECK_OR(0, WN_HANDLE(tok, TOKENIZER));
  return tok->vocab_size;
}
int32_t wn_tokenizer_bos(const wn_tokenizer *tok) {
  WN_CHECK_OR(-1, WN_HANDLE(tok, TOKENIZER));
  return tok->bos;
}
int32_t wn_tokenizer_eos(const wn_tokenizer *tok) {
  WN_CHECK_OR(-1, WN_HANDLE(tok, TOKENIZER));
  return tok->eos;
}
bool wn_tokenizer_is_control(const wn_tokenizer *tok, int32_t id) {
  WN_CHECK_OR(false, WN_HANDLE(tok, TOKENIZER));
  const struct wn_vocab *v = tok->bpe ? &tok->bpe->vocab : &tok->control;
  if (id < 0) return false;
  if (id == tok->bos || id == tok->eos || id == tok->known_bos) return true;
  if (tok->spm && id == wn_spm_unknown(tok->spm)) return false;
  return (tok->bpe || tok->spm) && id < v->size && v->tokens[id].kind == WN_TOKEN_SPECIAL;
}

const char *wn_tokenizer_kind(const wn_tokenizer *tok) {
  WN_CHECK_OR(NULL, WN_HANDLE(tok, TOKENIZER));
  return tok->bpe ? "bpe" : tok->spm ? "sentencepiece" : "bytes";
}
const char *wn_tokenizer_chat_template(const wn_tokenizer *tok) {
  WN_CHECK_OR(NULL, WN_HANDLE(tok, TOKENIZER));
  return tok->chat_template;
}

int32_t wn_tokenizer_find(const wn_tokenizer *tok, const char *text, size_t bytes) {
  WN_CHECK_OR(-1, WN_HANDLE(tok, TOKENIZER), WN_ARRAY(text, bytes));
  const struct wn_vocab *v = tok->bpe ? &tok->bpe->vocab : &tok->control;
  for (int32_t id = 0; id < v->size; id++) {
    const struct wn_token *t = &v->tokens[id];
    if (t->kind != WN_TOKEN_NONE && t->kind != WN_TOKEN_TEXT && t->bytes == bytes &&
        !memcmp(wn_vocab_text(v, id), text, bytes))
      return id;
  }
  return -1;
}

const char *wn_tokenizer_token_name(const wn_tokenizer *tok, int32_t id, size_t *bytes) {
  WN_CHECK_OR(NULL, WN_HANDLE(tok, TOKENIZER), WN_POINTER(bytes));
  const struct wn_vocab *v = tok->bpe ? &tok->bpe->vocab : &tok->control;
  *bytes = 0;
  if (id < 0 || id >= v->size || v->tokens[id].kind == WN_TOKEN_NONE || v->tokens[id].kind == WN_TOKEN_TEXT)
    return NULL;
  *bytes = v->tokens[id].bytes;
  return wn_vocab_text(v, id);
}

/* --- saving --- */

static json_t *token_json(const wn_tokenizer *tok, int32_t id) {
  const char *text = NULL;
  size_t n = 0;
  if (id < 0 || (!tok->bpe && !tok->spm)) return json_null();
  if (tok->bpe) {
    text = wn_vocab_text(&tok->bpe->vocab, id);
    n = tok->bpe->vocab.tokens[id].bytes;
  } else {
    wn_spm_piece(tok->spm, id, &text, &n);
  }
  json_t *string = json_stringn(text, n);
  return string ? string : json_null();
}

/* json: a tokenizer.json is written too, which has all that transformers needs. */
static wn_status save_config(wn_context *ctx, const wn_tokenizer *tok, bool json, const char *path) {
  json_t *config = json_pack(
      "{s:s, s:o, s:o, s:b}", "tokenizer_class", json ? "PreTrainedTokenizerFast" : "LlamaTokenizer", "bos_token",
      token_json(tok, tok->known_bos), "eos_token", token_json(tok, tok->eos), "add_bos_token", tok->bos >= 0);
  if (config && tok->end_count > 0 && tok->ends[0] != tok->eos)
    json_object_set_new(config, "eot_token", token_json(tok, tok->ends[0]));
  if (config && tok->chat_template) json_object_set_new(config, "chat_template", json_string(tok->chat_template));
  if (config && tok->chat_template && tok->tool_template)
    json_object_set_new(config, "chat_template",
                        json_pack("[{s:s, s:s}, {s:s, s:s}]", "name", "default", "template", tok->chat_template, "name",
                                  "tool_use", "template", tok->tool_template));
  wn_status status =
      config ? wn_json_save_file(ctx, path, config) : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", path);
  json_decref(config);
  return status;
}

wn_status wn_tokenizer_write(wn_context *ctx, const wn_tokenizer *tok, struct wn_folder *f) {
  static const char kind[] = "{\n  \"kind\": \"bytes\"\n}\n";
  char path[4096 + 64], config[4096 + 64];
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, tok->spm ? MODEL_NAME : KIND_NAME));
  WN_TRY(wn_path_join(ctx, config, sizeof config, f->next, CONFIG_NAME));
  /* Files of another tokenizer from an earlier save would be loaded instead. */
  static const char *const others[] = {MODEL_NAME, KIND_NAME, CONFIG_NAME};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) WN_TRY(wn_folder_drop(ctx, f, others[i]));
  if (tok->configured) WN_TRY(wn_folder_drop(ctx, f, TEMPLATE_NAME));
  if (tok->bpe) {
    json_t *json;
    WN_TRY(wn_bpe_write_json(ctx, tok->bpe, tok->bos, &json));
    wn_status status = wn_json_save_file(ctx, path, json);
    json_decref(json);
    WN_TRY(status);
  } else if (tok->spm) {
    WN_TRY(wn_file_write(ctx, path, tok->model, tok->model_bytes));
  } else {
    WN_TRY(wn_file_write(ctx, path, kind, sizeof kind - 1));
  }
  return tok->configured ? save_config(ctx, tok, tok->bpe != NULL, config) : WN_OK;
}

wn_status wn_tokenizer_write_hf(wn_context *ctx, const wn_tokenizer *tok, struct wn_folder *f) {
  char path[4096 + 64];
  json_t *json;
  WN_TRY(wn_tokenizer_write(ctx, tok, f));
  if (!tok->bpe) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, KIND_NAME));
    WN_TRY(tok->spm ? wn_spm_write_json(ctx, tok, &json) : wn_bytes_write_json(ctx, &json));
    const wn_status status = wn_json_save_file(ctx, path, json);
    json_decref(json);
    WN_TRY(status);
  }
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, CONFIG_NAME));
  return save_config(ctx, tok, true, path);
}

wn_status wn_tokenizer_save(wn_context *ctx, const wn_tokenizer *tok, const char *dir) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(dir));
  struct wn_folder f;
  WN_TRY(wn_folder_begin(ctx, dir, &f));
  wn_status status = wn_tokenizer_write(ctx, tok, &f);
  if (status == WN_OK) status = wn_folder_commit(ctx, &f, NULL);
  wn_folder_abort(&f);
  return status;
}
