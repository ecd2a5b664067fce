/* Saves a model as a checkpoint of winnow: config.json, model.safetensors and the tokenizer's files in one folder.
 * export.c writes other programs' formats. */

#include "base/file.h"
#include "base/misuse.h"
#include "formats/save.h"
#include "model/config.h"
#include "model/layer.h"
#include "text/declared.h"

enum { PATH_BYTES = 4096 };

wn_status wn_model_write(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, struct wn_folder *f) {
  static const char *const metadata[] = {"format", "pt", "producer", "winnow", NULL};
  char path[PATH_BYTES];
  if (model->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: parameters of dtype %s are not saved; F32 is", f->dir,
                   wn_dtype_name(model->dtype));
  WN_TRY(wn_model_need_float(ctx, model, "saving a checkpoint"));
  if (tok && wn_tokenizer_vocab_size(tok) > model->config.vocab_size)
    return wn_fail(ctx, WN_ERR_SHAPE, "%s: the tokenizer has %d tokens, the model %lld", f->dir,
                   wn_tokenizer_vocab_size(tok), (long long)model->config.vocab_size);
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, "model.safetensors"));
  WN_TRY(wn_folder_drop(ctx, f, "model.safetensors.index.json"));
  const int count = model->table.count;
  wn_safetensors_entry *entries;
  WN_TRY(WN_ALLOC(ctx, "list of tensors", count, &entries));
  wn_status status = WN_OK;
  for (int i = 0; i < count && status == WN_OK; i++) status = wn_model_tensor_at(model, i, &entries[i]);
  if (status == WN_OK) status = wn_safetensors_write(ctx, path, entries, count, metadata);
  wn_free(entries);
  WN_TRY(status);
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, "config.json"));
  WN_TRY(wn_model_config_save(ctx, path, &model->config));
  WN_TRY(wn_folder_drop(ctx, f, WN_DECLARED_FILE));
  if (wn_declared_any(&model->declared)) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, WN_DECLARED_FILE));
    WN_TRY(wn_declared_write(ctx, &model->declared, tok ? wn_tokenizer_bos(tok) : -1, path));
  }
  return tok ? wn_tokenizer_write(ctx, tok, f) : WN_OK;
}

wn_status wn_model_save(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, const char *dir) {
  WN_CHECK_CALL(WN_HANDLE(model, MODEL), WN_POINTER(dir));
  if (tok) WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER));
  struct wn_folder f;
  WN_TRY(wn_folder_begin(ctx, dir, &f));
  wn_status status = wn_model_write(ctx, model, tok, &f);
  if (status == WN_OK) status = wn_folder_commit(ctx, &f, NULL);
  wn_folder_abort(&f);
  return status;
}
