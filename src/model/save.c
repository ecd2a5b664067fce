/* Checkpoints: config.json, model.safetensors and the tokenizer's files in one folder.
 *
 * Reading trusts nothing: the configuration is checked by its table, then every tensor that it implies is looked up in
 * the file (name, dtype, shape) before a byte for the model is allocated, so that a few lines of JSON cannot ask for
 * terabytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "model/config.h"
#include "model/layer.h"

enum { PATH_BYTES = 4096 };

/* An encoder-decoder has entries beside the tokenizer's: the sentinels of what it was trained on. */
static bool tokenizer_fits(const wn_tokenizer *tok, const wn_model_config *c) {
  const int64_t entries = wn_tokenizer_vocab_size(tok);
  return c->encoder.layers > 0 ? entries <= c->vocab_size : entries == c->vocab_size;
}

wn_status wn_model_save(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, const char *dir) {
  static const char *const metadata[] = {"format", "pt", "producer", "winnow", NULL};
  char path[PATH_BYTES];
  if (model->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: parameters of dtype %s are not saved; F32 is", dir,
                   wn_dtype_name(model->dtype));
  WN_TRY(wn_model_need_float(ctx, model, "saving a checkpoint"));
  if (tok && !tokenizer_fits(tok, &model->config))
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

static void shape_text(char *out, size_t bytes, int ndim, const int64_t *shape) {
  size_t at = 0;
  at += (size_t)snprintf(out, bytes, "[");
  for (int i = 0; i < ndim && at < bytes; i++)
    at += (size_t)snprintf(out + at, bytes - at, "%s%lld", i ? "," : "", (long long)shape[i]);
  if (at < bytes) snprintf(out + at, bytes - at, "]");
}

/* The file's entry for a tensor that the configuration implies. */
static wn_status find_tensor(wn_context *ctx, const char *path, const wn_safetensors *file, const struct wn_param *row,
                             const wn_safetensors_entry **out) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, row->name);
  char expected[128], found[256];
  shape_text(expected, sizeof expected, row->ndim, row->shape);
  if (!e)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is missing; config.json implies it with shape %s", path,
                   row->name, expected);
  if (e->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is of dtype %s, expected F32", path, row->name,
                   wn_dtype_name(e->dtype));
  bool same = e->ndim == row->ndim;
  for (int i = 0; same && i < row->ndim; i++) same = e->shape[i] == row->shape[i];
  shape_text(found, sizeof found, e->ndim, e->shape);
  if (!same)
    return wn_fail(ctx, WN_ERR_SHAPE, "%s: tensor %s has shape %s, expected %s by config.json", path, row->name, found,
                   expected);
  if (e->bytes != row->count * sizeof(float))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s has %zu bytes, expected %zu", path, row->name, e->bytes,
                   row->count * sizeof(float));
  *out = e;
  return WN_OK;
}

static wn_status check_file(wn_context *ctx, const char *path, const wn_safetensors *file,
                            const wn_model_config *config) {
  const int64_t slots = wn_param_slot_count(config);
  int wanted = 0;
  for (int64_t p = 0; p < slots; p++) {
    struct wn_param row;
    const wn_safetensors_entry *e;
    WN_TRY(wn_param_slot(ctx, config, p, &row));
    if (!row.ndim) continue;
    WN_TRY(find_tensor(ctx, path, file, &row, &e));
    wanted++;
  }
  if (wn_safetensors_count(file) == wanted) return WN_OK;
  for (int i = 0; i < wn_safetensors_count(file); i++) { /* name one that is too many */
    const char *name = wn_safetensors_at(file, i)->name;
    bool known = false;
    for (int64_t p = 0; p < slots && !known; p++) {
      struct wn_param row;
      WN_TRY(wn_param_slot(ctx, config, p, &row));
      known = row.ndim && !strcmp(row.name, name);
    }
    if (!known)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is not part of the model that config.json describes", path,
                     name);
  }
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: %d tensors, expected %d by config.json", path, wn_safetensors_count(file),
                 wanted);
}

static wn_status copy_tensors(wn_context *ctx, const char *path, const wn_safetensors *file, struct wn_model *model) {
  for (int t = 0; t < model->table.count; t++) {
    const struct wn_param *row = &model->table.rows[t];
    const wn_safetensors_entry *e;
    WN_TRY(find_tensor(ctx, path, file, row, &e));
    float *to = (float *)model->params + row->offset;
    memcpy(to, e->data, e->bytes);
    bool finite = true;
    for (size_t i = 0; i < row->count; i++) finite &= isfinite(to[i]) != 0;
    if (!finite) return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s holds values that are not finite", path, row->name);
  }
  return WN_OK;
}

/* A tokenizer beside the weights has to be theirs. */
static wn_status check_tokenizer(wn_context *ctx, const char *dir, const struct wn_model *model) {
  static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
  char path[PATH_BYTES];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, dir, names[i]));
    if (!wn_path_exists(path)) continue;
    wn_tokenizer *tok;
    WN_TRY(wn_tokenizer_load(ctx, dir, &tok));
    const int32_t entries = wn_tokenizer_vocab_size(tok);
    const bool fits = tokenizer_fits(tok, &model->config);
    wn_tokenizer_destroy(tok);
    if (!fits)
      return wn_fail(ctx, WN_ERR_SHAPE, "%s: the tokenizer has %d tokens, config.json's vocab_size is %lld", path,
                     entries, (long long)model->config.vocab_size);
    break;
  }
  return WN_OK;
}

wn_status wn_model_load(wn_context *ctx, const char *dir, wn_model **out) {
  char path[PATH_BYTES];
  wn_model_config config;
  wn_safetensors *file = NULL;
  struct wn_model *model = NULL;
  *out = NULL;
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "config.json"));
  WN_TRY(wn_model_config_load(ctx, path, &config));
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "model.safetensors"));
  WN_TRY(wn_safetensors_open(ctx, path, &file));
  wn_status status = check_file(ctx, path, file, &config);
  if (status == WN_OK) status = wn_model_allocate(ctx, &config, WN_F32, &model);
  if (status == WN_OK) status = copy_tensors(ctx, path, file, model);
  wn_safetensors_close(file);
  if (status == WN_OK) status = check_tokenizer(ctx, dir, model);
  if (status != WN_OK) {
    wn_model_destroy(model);
    return status;
  }
  *out = model;
  return WN_OK;
}
