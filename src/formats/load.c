/* Loads a model, whatever program wrote it. */
#include <stdio.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/misuse.h"
#include "base/options.h"
#include "formats/adapter.h"
#include "text/tokenizer.h"

enum { PATH_BYTES = 4096 };

/* Checks that a tokenizer in the model's folder fits the model. */
static wn_status load_check_tokenizer(wn_context *ctx, const char *dir, const struct wn_model *model) {
  const char *name = wn_tokenizer_file_of(dir);
  char path[PATH_BYTES];
  wn_tokenizer *tok;
  if (!name) return WN_OK;
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, name));
  WN_TRY(wn_tokenizer_load(ctx, dir, &tok));
  const int32_t entries = wn_tokenizer_vocab_size(tok);
  wn_tokenizer_destroy(tok);
  if (entries <= model->config.vocab_size) return WN_OK; /* the model may have more entries: sentinels, padding */
  return wn_fail(ctx, WN_ERR_SHAPE, "%s: the tokenizer has %d tokens, config.json's vocab_size is %lld", path, entries,
                 (long long)model->config.vocab_size);
}

static uint64_t load_bytes(const struct wn_import *im) {
  uint64_t bytes = 0;
  for (int i = 0; i < wn_tensors_count(im->tensors); i++) bytes += wn_tensors_at(im->tensors, i)->t.bytes;
  return bytes;
}

/* With WN_CHECK_AUTO small files are checked, since that takes hardly any time. */
static bool load_checks_values(const struct wn_import *im, wn_check check) {
  return check == WN_CHECK_AUTO ? load_bytes(im) <= WN_LIMIT_CHECKED : check == WN_CHECK_YES;
}

/* Loads a model of any form. winnow's checkpoints must have a fitting tokenizer. Other models may lack one that winnow
 * reads; whoever needs it will report that. */
static wn_status load_any(wn_context *ctx, const char *path, const wn_model_load_options *options, wn_model **out) {
  struct wn_import import;
  struct wn_adapter *adapter = NULL;
  struct wn_model *model = NULL;
  *out = NULL;
  wn_status status = wn_import_open(ctx, path, &import);
  if (status == WN_OK && options->check_tensors != WN_CHECK_NO) status = wn_tensors_check(ctx, import.tensors, true);
  if (status == WN_OK) status = wn_import_check(ctx, &import);
  const bool checks = status == WN_OK && load_checks_values(&import, options->check_tensors);
  struct wn_loading loading = {.progress = options->progress, .user = options->user};
  if (status == WN_OK) loading.total = load_bytes(&import) * (checks ? 2 : 1);
  if (options->progress) ctx->loading = &loading;
  if (checks) status = wn_import_check_values(ctx, &import);
  if (status == WN_OK && options->adapter) status = wn_adapter_open(ctx, options->adapter, &import, &adapter);
  import.adapter = adapter;
  import.unchecked = options->check_tensors == WN_CHECK_NO;
  if (status == WN_OK) status = wn_import_model(ctx, &import, options->as_float, options->weights, &model);
  if (status == WN_OK) {
    model->declared = import.declared;
    import.declared = (wn_declared){0};
  }
  if (status == WN_OK && import.form == WN_FORM_WINNOW) status = load_check_tokenizer(ctx, path, model);
  if (status == WN_OK) wn_loading_add(ctx, loading.total - loading.done);
  ctx->loading = NULL;
  wn_import_clear(&import);
  wn_adapter_close(adapter);
  if (status != WN_OK) {
    wn_model_destroy(model);
    return status;
  }
  *out = model;
  return WN_OK;
}

wn_status wn_model_load(wn_context *ctx, const char *path, const wn_model_load_options *options, wn_model **out) {
  WN_CHECK_WORK(WN_POINTER(path), WN_POINTER(out));
  wn_model_load_options own = {0};
  *out = NULL;
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_model_load_options, options, &own));
  if (own.check_tensors < WN_CHECK_AUTO || own.check_tensors > WN_CHECK_NO)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "check_tensors of wn_model_load_options is %d; 0 to 2 are known",
                   (int)own.check_tensors);
  if (own.weights < WN_WEIGHTS_AUTO || own.weights > WN_WEIGHTS_BFLOAT16)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "weights of wn_model_load_options is %d; 0 to 2 are known", (int)own.weights);
  if (own.as_float && own.weights != WN_WEIGHTS_AUTO)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "weights of wn_model_load_options is %d, and as_float asks for float32",
                   (int)own.weights);
  return load_any(ctx, path, &own, out);
}

wn_status wn_model_origin_read(wn_context *ctx, const char *path, wn_model_origin *out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  static const char *const formats[] = {
      [WN_FORM_WINNOW] = "winnow checkpoint", [WN_FORM_HF] = "Hugging Face folder", [WN_FORM_GGUF] = "GGUF file"};
  struct wn_import import;
  const wn_status status = wn_import_open(ctx, path, &import);
  *out = (wn_model_origin){.format = formats[import.form]};
  snprintf(out->architecture, sizeof out->architecture, "%s", import.architecture);
  wn_import_clear(&import);
  return status;
}
