/* winnow's own models in Hugging Face folders, for models that no family of transformers can express. The folder
 * contains the Python code (src/formats/hf/modeling_winnow.py), which transformers runs with trust_remote_code.
 * config.json holds winnow's whole configuration under "winnow", and tensors have winnow's names; reading the folder
 * gives the same model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fields.h"
#include "formats/families.h"
#include "model/config.h"

static wn_status winnow_read(const struct wn_hf_keys *k, wn_model_config *c) {
  const json_t *own = wn_hf_find(k, "winnow");
  char where[4096 + 16];
  if (!json_is_object(own)) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"winnow\" is missing or no object", k->where);
  char *text = json_dumps(own, 0);
  if (!text) return wn_fail(k->ctx, WN_ERR_MEMORY, "out of memory: %s", k->where);
  snprintf(where, sizeof where, "%s: winnow", k->where);
  const wn_status status = wn_model_config_parse(k->ctx, where, text, strlen(text), c);
  free(text);
  return status;
}

static json_t *winnow_own(const wn_model_config *c) {
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  const int count = wn_model_field_groups("", "attention", 0, groups);
  json_t *object;
  return wn_fields_write(NULL, groups, count, c, &object) == WN_OK ? object : NULL;
}

static void winnow_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_hf_put(o, "auto_map",
            json_pack("{s:s, s:s}", "AutoConfig", "configuration_winnow.WinnowConfig", "AutoModelForCausalLM",
                      "modeling_winnow.WinnowForCausalLM"));
  wn_hf_put_sizes(o, c);
  wn_hf_put(o, "max_position_embeddings", json_integer(c->context));
  wn_hf_put(o, "winnow", winnow_own(c));
}

/* Never chosen by wn_family_of: wn_export_plan takes it if no other family fits. */
static bool winnow_is(const wn_model_config *c, enum wn_model_form form) {
  (void)c, (void)form;
  return false;
}

static const char *winnow_lacks(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  if (c->encoder.layers > 0) return "an encoder (\"encoder.layers\")";
  if (c->norm_place > WN_NORM_BOTH) return "\"norm_place\": \"branch\" with attention of winnow's own";
  if (c->recurrence > 0) return "segment recurrence (\"memory\")";
  return c->attention.bidirectional ? "\"attention.bidirectional\"" : NULL;
}

/* What modeling_winnow.py can compute: a new key or mechanism is refused until it is implemented there. */
static const char *const winnow_keys[] = {"norm_place",       "embed_norm",   "embed_scale", "logit_softcap",
                                          "position",         "rope_scaling", "rope_size",   "rope_factors",
                                          "rope_local_theta", "bias",         "qkv_bias",    "out_bias",
                                          "qk_norm",          "encoder",      "memory",      NULL};
static const char *const winnow_mechanisms[] = {
    "selective", "span",      "relative",  "buckets",    "alibi",   "softcap", "window", "strided", "sqrt",
    "sinks",     "exclusive", "threshold", "off_by_one", "dropout", "forget",  "write",  "fade",    NULL};
static const char *const winnow_read_keys[] = {"auto_map", NULL};

const struct wn_family wn_family_winnow = {
    .hf = WN_FAMILY_HF("winnow", "WinnowForCausalLM", winnow, &wn_names_own, .keys = winnow_read_keys),
    .is = winnow_is,
    .keys = winnow_keys,
    .mechanisms = winnow_mechanisms,
    .lacks = winnow_lacks,
};
