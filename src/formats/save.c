/* Checkpoints: config.json, model.safetensors and the tokenizer's files in one folder. Reading is import.c's. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "model/config.h"
#include "formats/import.h"
#include "model/layer.h"

enum { PATH_BYTES = 4096 };

/* A model may have rows that no token reaches: sentinels of what it was trained on, padding to a round number. */
static bool save_tokenizer_fits(const wn_tokenizer *tok, const wn_model_config *c) {
  return wn_tokenizer_vocab_size(tok) <= c->vocab_size;
}

wn_status wn_model_save(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, const char *dir) {
  static const char *const metadata[] = {"format", "pt", "producer", "winnow", NULL};
  char path[PATH_BYTES];
  if (model->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: parameters of dtype %s are not saved; F32 is", dir,
                   wn_dtype_name(model->dtype));
  WN_TRY(wn_model_need_float(ctx, model, "saving a checkpoint"));
  if (tok && !save_tokenizer_fits(tok, &model->config))
    return wn_fail(ctx, WN_ERR_SHAPE, "%s: the tokenizer has %d tokens, the model %lld", dir,
                   wn_tokenizer_vocab_size(tok), (long long)model->config.vocab_size);
  WN_TRY(wn_make_dirs(ctx, dir));
  /* The large file first: where the disk is full, the small ones still match the old one. */
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "model.safetensors"));
  const int count = model->table.count;
  void *memory;
  WN_TRY(wn_alloc(ctx, "list of tensors", (size_t)count * sizeof(wn_safetensors_entry), &memory));
  wn_safetensors_entry *entries = memory;
  wn_status status = WN_OK;
  for (int i = 0; i < count && status == WN_OK; i++) status = wn_model_tensor_at(model, i, &entries[i]);
  if (status == WN_OK) status = wn_safetensors_write(ctx, path, entries, count, metadata);
  wn_free(memory);
  WN_TRY(status);
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "config.json"));
  WN_TRY(wn_model_config_save(ctx, path, &model->config));
  return tok ? wn_tokenizer_save(ctx, tok, dir) : WN_OK;
}

/* A tokenizer beside the weights has to be theirs. */
static wn_status save_check_tokenizer(wn_context *ctx, const char *dir, const struct wn_model *model) {
  static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
  char path[PATH_BYTES];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, dir, names[i]));
    if (!wn_path_exists(path)) continue;
    wn_tokenizer *tok;
    WN_TRY(wn_tokenizer_load(ctx, dir, &tok));
    const int32_t entries = wn_tokenizer_vocab_size(tok);
    const bool fits = save_tokenizer_fits(tok, &model->config);
    wn_tokenizer_destroy(tok);
    if (!fits)
      return wn_fail(ctx, WN_ERR_SHAPE, "%s: the tokenizer has %d tokens, config.json's vocab_size is %lld", path,
                     entries, (long long)model->config.vocab_size);
    break;
  }
  return WN_OK;
}

/* A checkpoint of ours names its tokenizer; others' may lack one that we read, which is theirs to say who wants it. */
static wn_status save_load(wn_context *ctx, const char *path, bool as_float, wn_model **out) {
  struct wn_import import;
  struct wn_model *model = NULL;
  *out = NULL;
  wn_status status = wn_import_open(ctx, path, &import);
  if (status == WN_OK) status = wn_import_check(ctx, &import);
  if (status == WN_OK) status = wn_import_model(ctx, &import, as_float, &model);
  if (status == WN_OK && import.form == WN_FORM_WINNOW) status = save_check_tokenizer(ctx, path, model);
  wn_import_clear(&import);
  if (status != WN_OK) {
    wn_model_destroy(model);
    return status;
  }
  *out = model;
  return WN_OK;
}

wn_status wn_model_load(wn_context *ctx, const char *path, wn_model **out) {
  return save_load(ctx, path, false, out);
}

wn_status wn_model_load_float(wn_context *ctx, const char *path, wn_model **out) {
  return save_load(ctx, path, true, out);
}

wn_status wn_model_origin_read(wn_context *ctx, const char *path, wn_model_origin *out) {
  static const char *const formats[] = {
      [WN_FORM_WINNOW] = "winnow checkpoint", [WN_FORM_HF] = "Hugging Face folder", [WN_FORM_GGUF] = "GGUF file"};
  struct wn_import import;
  const wn_status status = wn_import_open(ctx, path, &import);
  *out = (wn_model_origin){.format = formats[import.form]};
  snprintf(out->architecture, sizeof out->architecture, "%s", import.architecture);
  wn_import_clear(&import);
  return status;
}
