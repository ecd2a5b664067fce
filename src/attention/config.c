/* The attention configuration as one JSON object, read and written by the field tables of all mechanisms. */
#include "attention/registry.h"
#include "base/error.h"
#include "base/misuse.h"

#include <string.h>

void wn_attention_config_init(wn_attention_config *config) {
  WN_CHECK_OR(, WN_POINTER(config));
  *config = (wn_attention_config){0};
  for (int i = 0; i < wn_mechanism_count(); i++)
    if (wn_mechanism_at(i)->init) wn_mechanism_at(i)->init(config);
}

wn_status wn_attention_config_parse(wn_context *ctx, const char *text, wn_attention_config *out) {
  WN_CHECK_CALL(WN_POINTER(text), WN_POINTER(out));
  wn_attention_config_init(out);
  return wn_attention_config_add(ctx, text, out);
}

wn_status wn_attention_config_add(wn_context *ctx, const char *text, wn_attention_config *out) {
  json_t *object;
  WN_TRY(wn_json_load_text(ctx, WN_JSON_CONFIG, "attention", text, strlen(text), &object));
  struct wn_field_group groups[WN_MECHANISMS_MAX];
  int count = wn_attention_field_groups("", 0, groups);
  wn_status status = wn_fields_read(ctx, "attention", object, groups, count, out);
  json_decref(object);
  struct wn_attention_shape unknown = {0};
  if (status == WN_OK) status = wn_attention_config_check(ctx, "attention", out, &unknown);
  return status;
}
