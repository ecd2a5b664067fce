/* The input is a model's configuration: a config.json of Hugging Face transformers if it starts with '{', else a GGUF
 * file. An accepted configuration must survive winnow's own config.json. A GGUF file whose tensors fit it must load, as
 * it is and as floats. */
#include "fuzz/fuzz.h"

#include "base/fields.h"
#include "model/config.h"
#include "formats/import.h"

/* An accepted configuration must fit into winnow's own config.json. */
static void survives(wn_context *ctx, const wn_model_config *config) {
  char *text, *again;
  wn_model_config back;
  HOLDS(wn_model_config_json(ctx, config, &text) == WN_OK);
  HOLDS(wn_model_config_parse(ctx, "config", text, strlen(text), &back) == WN_OK);
  HOLDS(wn_model_config_json(ctx, &back, &again) == WN_OK);
  HOLDS(!strcmp(text, again));
  wn_text_free(text);
  wn_text_free(again);
}

static void configuration(wn_context *ctx, const uint8_t *data, size_t size) {
  json_t *object;
  const struct wn_family *family;
  wn_model_config config;
  if (wn_json_load_text(ctx, WN_JSON_CONFIG, "input", (const char *)data, size, &object) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  if (wn_import_hf_config(ctx, "input", object, &family, &config) == WN_OK)
    survives(ctx, &config);
  else
    fuzz_refused(ctx);
  json_decref(object);
}

static void file(wn_context *ctx, const uint8_t *data, size_t size) {
  struct wn_import import;
  wn_status status = wn_import_open_gguf_memory(ctx, "input", data, size, &import);
  if (status == WN_OK) survives(ctx, &import.config);
  if (status == WN_OK) status = wn_import_check(ctx, &import);
  /* Rotary tables for long contexts would take seconds without testing anything of the file. */
  if (status == WN_OK && import.config.context * import.config.head_size > 1 << 16) {
    wn_import_clear(&import);
    return;
  }
  wn_model *model = NULL;
  if (status == WN_OK) status = wn_import_model(ctx, &import, true, WN_WEIGHTS_AUTO, &model);
  if (status == WN_OK) {
    wn_model_destroy(model);
    status = wn_import_model(ctx, &import, false, WN_WEIGHTS_AUTO, &model);
    HOLDS(status == WN_OK);
  }
  if (status != WN_OK) fuzz_refused(ctx);
  wn_import_clear(&import);
  wn_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  if (size > 0 && data[0] == '{')
    configuration(ctx, data, size);
  else
    file(ctx, data, size);
  return 0;
}
