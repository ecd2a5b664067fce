/* What Hugging Face transformers and llama.cpp can express of winnow's configurations, and how: the family to which a
 * configuration belongs, the settings that the family has no key for, and the keys of the files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/registry.h"
#include "base/text.h"
#include "formats/export.h"
#include "model/config.h"
#include "model/run.h"

static wn_status export_lacks(wn_context *ctx, const struct wn_export *e, const char *what) {
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "%s: %s cannot be expressed in %s; it can in %s\"winnow\" and \"winnow-gguf\"", e->from->where, what,
                 e->form == WN_FORM_GGUF ? "llama.cpp's GGUF" : "Hugging Face transformers' format",
                 e->in_hf ? "\"hf\", " : "");
}

/* ---- what the family can express ---- */

/* Names the key that the family lacks: "key": "value" if the value is a word, else "key". */
static wn_status export_lacks_key(wn_context *ctx, const struct wn_export *e, const char *key, const json_t *value) {
  char what[256];
  if (json_is_string(value))
    snprintf(what, sizeof what, "\"%.100s\": \"%.100s\"", key, json_string_value(value));
  else
    snprintf(what, sizeof what, "\"%.100s\"", key);
  return export_lacks(ctx, e, what);
}

/* Every key of the model that is not at its default must be one of the family's. So a new key that no family knows is
 * refused instead of being dropped. */
static wn_status export_check_keys(wn_context *ctx, const struct wn_export *e) {
  /* Keys that every family has, keys that have no effect without a family's own keys, and keys that concern only
   * training. */
  static const char *const common[] = {"vocab_size", "context",   "layers",         "width",      "heads",
                                       "kv_heads",   "head_size", "ffn_width",      "norm",       "norm_eps",
                                       "ffn",        "tied",      "rope_theta",     "rope_pairs", "dropout",
                                       "init_std",   "init",      "dropout_hidden", NULL};
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  json_t *ours, *defaults;
  const char *key;
  json_t *value;
  wn_model_config plain;
  wn_model_config_init(&plain);
  wn_model_field_groups("", "attention", 0,
                        groups); /* the first group has the model's own keys, the rest are attention's */
  WN_TRY(wn_fields_write(ctx, groups, 1, &e->config, &ours));
  wn_status status = wn_fields_write(ctx, groups, 1, &plain, &defaults);
  if (status == WN_OK) {
    json_object_foreach(ours, key, value) {
      if (wn_listed(common, key) || wn_listed(e->family->keys, key)) continue;
      if (json_equal(value, json_object_get(defaults, key))) continue;
      status = export_lacks_key(ctx, e, key, value);
      break;
    }
    json_decref(defaults);
  }
  json_decref(ours);
  return status;
}

/* Can the family hold longrope's divisors, which are tensors here? */
static bool export_has_longrope(const struct wn_names *names) {
  for (int i = 0; i < names->count; i++)
    if (!strcmp(names->rows[i].ours, "rope.long_factors")) return true;
  return false;
}

static wn_status export_check_family(wn_context *ctx, const struct wn_export *e) {
  char what[128];
  wn_mechanism_use use;
  for (int i = 0; wn_mechanism_use_at(&e->config.attention, i, 0, &use); i++) {
    if (wn_listed(e->family->mechanisms, use.name)) continue;
    snprintf(what, sizeof what, "\"attention.%s\"", use.name);
    return export_lacks(ctx, e, what);
  }
  WN_TRY(export_check_keys(ctx, e));
  if (e->config.rope_scaling.type == WN_ROPE_LONG && !export_has_longrope(wn_family_names(e->family, e->form)))
    return export_lacks(ctx, e, "\"rope_scaling\" of type longrope");
  if (e->form == WN_FORM_GGUF && !e->family->gguf.factors) { /* other architectures ignore them */
    if (e->config.rope_factors) return export_lacks(ctx, e, "\"rope_factors\"");
    if (e->config.rope_scaling.type == WN_ROPE_LLAMA3) return export_lacks(ctx, e, "\"rope_scaling\" of type llama3");
  }
  const char *lacks = e->family->lacks(&e->config, e->form);
  return lacks ? export_lacks(ctx, e, lacks) : WN_OK;
}

/* ---- rope.factors back to the scaling that it came from ---- */

static bool export_is_llama3(const wn_model_config *c, const float *factors, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (fabs(wn_rotary_divisor(c, i) - (double)factors[i]) > 1e-5 * (double)factors[i]) return false;
  return true;
}

/* llama.cpp's converter writes Llama 3's scaling as factors. With the published 1 and 4 the original context can be
 * found from them. */
static wn_status export_name_factors(wn_context *ctx, struct wn_export *e) {
  wn_model_config *c = &e->config;
  const struct wn_import *im = e->from;
  const int64_t n = (c->rope_size ? c->rope_size : c->head_size) / 2;
  const struct wn_param row = {.name = "rope.factors", .ndim = 1, .shape = {n}};
  struct wn_import_row source;
  if (c->rope_scaling.type != WN_ROPE_PLAIN) return export_lacks(ctx, e, "\"rope_factors\" with a \"rope_scaling\"");
  wn_import_row(im, &row, &source);
  float *factors;
  WN_TRY(WN_ALLOC(ctx, "rope.factors", n, &factors));
  wn_status status = wn_tensor_read(ctx, source.tensor[0], 0, n, factors);
  double largest = 1;
  for (int64_t i = 0; status == WN_OK && i < n; i++) largest = fmax(largest, (double)factors[i]);
  bool found = false;
  c->rope_factors = false;
  c->rope_scaling.type = WN_ROPE_LLAMA3;
  c->rope_scaling.factor = largest;
  c->rope_scaling.low_freq_factor = 1;
  c->rope_scaling.high_freq_factor = 4;
  for (int64_t context = 8; status == WN_OK && context <= c->context && !found; context++) {
    c->rope_scaling.context = context;
    found = export_is_llama3(c, factors, n);
  }
  wn_free(factors);
  WN_TRY(status);
  return found ? WN_OK : export_lacks(ctx, e, "rope_freqs.weight with other factors than Llama 3's");
}

/* ---- the plan ---- */

static void export_plan_own(struct wn_export *e) {
  const bool gguf_source = e->from->form == WN_FORM_GGUF && e->from->family;
  e->architecture = WN_OWN_ARCHITECTURE;
  e->names = &wn_names_own;
  if (gguf_source) e->config.rope_pairs = WN_ROPE_HALVES; /* other formats have halves */
}

static struct wn_export export_begin(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options) {
  return (struct wn_export){
      .ctx = ctx, .from = from, .options = *options, .config = from->config, .bos = from->bos, .eos = from->eos};
}

static wn_status export_plan_family(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                                    bool in_hf, struct wn_export *e) {
  static const enum wn_model_form forms[] = {[WN_CONVERT_HF] = WN_FORM_HF, [WN_CONVERT_GGUF] = WN_FORM_GGUF};
  *e = export_begin(ctx, from, options);
  e->in_hf = in_hf;
  if (options->to == WN_CONVERT_WINNOW || options->to == WN_CONVERT_WINNOW_GGUF) {
    export_plan_own(e);
    return WN_OK;
  }
  e->form = forms[options->to];
  e->family = wn_family_of(&e->config, e->form);
  if (!e->family) /* kinds that no family has */
    return export_lacks(
        ctx, e, e->config.experts.count > 0 ? "\"experts\" without \"position\": \"rope\"" : "\"position\": \"none\"");
  WN_TRY(export_check_family(ctx, e));
  e->architecture = wn_family_name(e->family, e->form);
  e->names = wn_family_names(e->family, e->form);
  e->config.rope_pairs = e->form == WN_FORM_GGUF ? e->family->gguf.pairs : WN_ROPE_HALVES;
  if (e->form == WN_FORM_GGUF) {
    if (e->config.rope_scaling.type == WN_ROPE_LLAMA3) e->config.rope_factors = true;
    return WN_OK;
  }
  return e->config.rope_factors ? export_name_factors(ctx, e) : WN_OK;
}

const struct wn_family *wn_export_own_family(void) {
  return wn_family_find(WN_FORM_HF, WN_OWN_ARCHITECTURE);
}

/* For transformers: a model of no family is written as it is, with winnow's own Python code. */
static wn_status export_plan_hf(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                                struct wn_export *e) {
  const wn_status status = export_plan_family(ctx, from, options, false, e);
  if (status != WN_ERR_UNSUPPORTED) return status;
  *e = export_begin(ctx, from, options);
  e->form = WN_FORM_HF;
  e->family = wn_export_own_family();
  WN_TRY(export_check_family(ctx, e));
  e->architecture = WN_OWN_ARCHITECTURE;
  e->names = wn_family_names(e->family, e->form);
  return WN_OK;
}

wn_status wn_export_plan(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                         struct wn_export *e) {
  if (options->to == WN_CONVERT_HF) return export_plan_hf(ctx, from, options, e);
  wn_convert_options hf = *options;
  hf.to = WN_CONVERT_HF;
  const bool in_hf = options->to == WN_CONVERT_GGUF && export_plan_hf(NULL, from, &hf, e) == WN_OK;
  return export_plan_family(ctx, from, options, in_hf, e);
}

/* ---- the keys ---- */

/* Writes the tensors that are lists in config.json. */
static wn_status export_put_lists(wn_context *ctx, const struct wn_export *e, struct wn_hf_object *o) {
  struct wn_hf_object scaling = {.json = json_object_get(o->json, "rope_scaling")};
  for (int64_t p = 0; p < wn_param_slot_count(&e->config); p++) {
    struct wn_param row;
    struct wn_name_part parts[3];
    struct wn_import_row source;
    float value;
    WN_TRY(wn_param_slot(ctx, &e->config, p, &row));
    if (!row.ndim || !wn_names_parts(e->names, &e->config, e->names->prefix, &row, parts) || !parts[0].listed) continue;
    wn_import_row(e->from, &row, &source);
    json_t *list = json_array();
    wn_hf_put(&scaling, parts[0].name, list);
    for (int64_t i = 0; i < parts[0].rows && !scaling.failed; i++) {
      WN_TRY(wn_tensor_read(ctx, source.tensor[0], i, 1, &value));
      scaling.failed |= json_array_append_new(list, json_real((double)value)) != 0;
    }
  }
  o->failed |= scaling.failed;
  return WN_OK;
}

static json_t *export_token(int64_t id) {
  return id >= 0 ? json_integer(id) : json_null();
}

/* All tokens that end a text, if several are declared. */
static json_t *export_ends(const struct wn_export *e) {
  const wn_declared *d = &e->from->declared;
  if (d->end_count < 2) return export_token(e->eos);
  json_t *list = json_array();
  for (int i = 0; i < d->end_count; i++) json_array_append_new(list, json_integer(d->ends[i]));
  return list;
}

wn_status wn_export_hf_config(wn_context *ctx, const struct wn_export *e, const char *type, json_t **out) {
  struct wn_hf_object object = {.json = json_object()}, *o = &object;
  *out = NULL;
  wn_hf_put(o, "architectures", json_pack("[s]", e->family->hf.class_name));
  wn_hf_put(o, "model_type", json_string(e->architecture));
  wn_hf_put(o, "vocab_size", json_integer(e->config.vocab_size));
  e->family->hf.write(o, &e->config);
  wn_hf_put(o, "tie_word_embeddings", json_boolean(e->config.tied));
  wn_hf_put(o, "initializer_range", json_real(e->config.init_std));
  wn_hf_put(o, "bos_token_id", export_token(e->bos));
  wn_hf_put(o, "eos_token_id", export_ends(e));
  wn_hf_put(o, "torch_dtype", json_string(type));
  wn_hf_put(o, "use_cache", json_true());
  wn_status status = export_put_lists(ctx, e, o);
  if (status == WN_OK && o->failed) status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: config.json");
  if (status != WN_OK) {
    json_decref(o->json);
    return status;
  }
  *out = o->json;
  return WN_OK;
}

wn_status wn_export_gguf_values(wn_context *ctx, const struct wn_export *e, wn_gguf_values *values) {
  const struct wn_gguf_out out = {values, e->architecture};
  if (e->family) {
    wn_gguf_out_sizes(&out, &e->config);
    e->family->gguf.write(&out, &e->config);
    return WN_OK;
  }
  char *text;
  WN_TRY(wn_model_config_json(ctx, &e->config, &text));
  wn_gguf_out_text(&out, "config", text);
  wn_free(text);
  return WN_OK;
}
