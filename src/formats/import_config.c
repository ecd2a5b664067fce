/* The configuration of a model that another program wrote: finds the family that the file names, lets the family read
 * the keys, and resolves the result by winnow's rules. */
#include <string.h>

#include "formats/import.h"
#include "model/config.h"

static wn_status import_resolve(wn_context *ctx, const char *where, wn_model_config *c) {
  const wn_status status = wn_model_config_resolve(ctx, c);
  return status == WN_OK ? status : wn_fail_prefix(ctx, status, "%s", where);
}

wn_status wn_import_hf_config(wn_context *ctx, const char *where, const json_t *object, const struct wn_family **family,
                              wn_model_config *out) {
  const struct wn_hf_keys keys = {ctx, where, object};
  const char *type;
  char known[256];
  wn_model_config_init(out);
  *family = NULL;
  if (!json_is_object(object)) return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected a JSON object", where);
  WN_TRY(wn_hf_text(&keys, "model_type", "", &type));
  const struct wn_family *f = wn_family_find(WN_FORM_HF, type);
  if (!f) {
    wn_family_list(WN_FORM_HF, NULL, known, sizeof known);
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: \"model_type\" is \"%.60s\"; %s are known", where, type, known);
  }
  *family = f;
  WN_TRY(wn_hf_refuse(&keys, f->hf.keys));
  WN_TRY(f->hf.read(&keys, out));
  return import_resolve(ctx, where, out);
}

/* Reads winnow's own configuration from the file's metadata. */
static wn_status import_own_config(wn_context *ctx, const char *where, const wn_gguf *file, wn_model_config *out) {
  const char *text;
  size_t bytes;
  if (!wn_gguf_value_string(wn_gguf_value_find(file, "winnow.config"), 0, &text, &bytes))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"winnow.config\" is missing or not a text", where);
  return wn_model_config_parse(ctx, where, text, bytes, out);
}

wn_status wn_import_gguf_config(wn_context *ctx, const char *where, const struct wn_tensors *tensors,
                                const struct wn_family **family, wn_model_config *out) {
  const wn_gguf *file = wn_tensors_gguf(tensors);
  char name[64], known[256];
  wn_model_config_init(out);
  *family = NULL;
  if (!wn_gguf_keys_text(wn_gguf_value_find(file, "general.architecture"), name, sizeof name))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"general.architecture\" is missing or not a text", where);
  if (!strcmp(name, WN_OWN_ARCHITECTURE)) return import_own_config(ctx, where, file, out);
  const struct wn_family *f = wn_family_find(WN_FORM_GGUF, name);
  if (!f) {
    wn_family_list(WN_FORM_GGUF, WN_OWN_ARCHITECTURE, known, sizeof known);
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: \"general.architecture\" is \"%s\"; %s are known", where, name, known);
  }
  *family = f;
  const struct wn_gguf_keys keys = {
      .ctx = ctx, .where = where, .architecture = f->gguf.architecture, .file = file, .tensors = tensors};
  WN_TRY(wn_gguf_keys_refuse(&keys, f->gguf.keys));
  WN_TRY(wn_gguf_keys_sizes(&keys, out));
  out->rope_pairs = f->gguf.pairs;
  WN_TRY(f->gguf.read(&keys, out));
  return import_resolve(ctx, where, out);
}
