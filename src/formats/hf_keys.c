/* Keys of config.json: typed reading with messages that name the file and the key, and writing. */
#include "formats/hf_keys.h"

#include <math.h>
#include <string.h>

#include "attention/registry.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/config_set.h"

/* ---- reading ---- */

const json_t *wn_hf_find(const struct wn_hf_keys *k, const char *key) {
  const json_t *v = json_object_get(k->object, key);
  return json_is_null(v) ? NULL : v;
}

wn_status wn_hf_int(const struct wn_hf_keys *k, const char *key, int64_t otherwise, int64_t *out) {
  const json_t *v = wn_hf_find(k, key);
  *out = otherwise;
  if (!v && otherwise >= 0) return WN_OK;
  if (!v) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is missing", k->where, key);
  if (!json_is_integer(v) || json_integer_value(v) < 0)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a whole number of at least 0", k->where, key);
  *out = json_integer_value(v);
  return WN_OK;
}

wn_status wn_hf_count(const struct wn_hf_keys *k, const char *key, int64_t *out) {
  WN_TRY(wn_hf_int(k, key, -1, out));
  return *out > 0 ? WN_OK : wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is 0", k->where, key);
}

wn_status wn_hf_real(const struct wn_hf_keys *k, const char *key, double otherwise, double *out) {
  const json_t *v = wn_hf_find(k, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_number(v)) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a number", k->where, key);
  *out = json_number_value(v);
  return WN_OK;
}

wn_status wn_hf_flag(const struct wn_hf_keys *k, const char *key, bool otherwise, bool *out) {
  const json_t *v = wn_hf_find(k, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_boolean(v)) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not true or false", k->where, key);
  *out = json_is_true(v);
  return WN_OK;
}

wn_status wn_hf_not(const struct wn_hf_keys *k, const char *key, const char *why) {
  bool set;
  WN_TRY(wn_hf_flag(k, key, false, &set));
  return set ? wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" is true; %s", k->where, key, why) : WN_OK;
}

wn_status wn_hf_text(const struct wn_hf_keys *k, const char *key, const char *otherwise, const char **out) {
  const json_t *v = wn_hf_find(k, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_string(v)) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a string", k->where, key);
  *out = json_string_value(v);
  return WN_OK;
}

wn_status wn_hf_refuse(const struct wn_hf_keys *k, const char *const *read) {
  static const struct {
    const char *key, *what;
  } known[] = {
      {"quantization_config", "weights packed by another program's scheme"},
      {"auto_map", "code of its own"},
      {"num_experts", "a mixture of experts"},
      {"num_local_experts", "a mixture of experts"},
      {"attn_logit_softcapping", "soft-capped logits"},
      {"final_logit_softcapping", "soft-capped logits"},
      {"alibi", "ALiBi"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const json_t *v = wn_hf_find(k, known[i].key);
    if (v && !wn_listed(read, known[i].key) && !json_is_false(v) && !(json_is_number(v) && json_number_value(v) == 0))
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" asks for %s, which is not supported", k->where,
                     known[i].key, known[i].what);
  }
  WN_TRY(wn_hf_not(k, "is_encoder_decoder", "decoders alone are read"));
  return wn_hf_not(k, "add_cross_attention", "decoders alone are read");
}

wn_status wn_hf_sizes(const struct wn_hf_keys *k, int64_t kv_heads, int64_t head_size, wn_model_config *c) {
  WN_TRY(wn_hf_int(k, "vocab_size", -1, &c->vocab_size));
  WN_TRY(wn_hf_count(k, "max_position_embeddings", &c->context));
  WN_TRY(wn_hf_int(k, "num_hidden_layers", -1, &c->layers));
  WN_TRY(wn_hf_int(k, "hidden_size", -1, &c->width));
  WN_TRY(wn_hf_int(k, "intermediate_size", -1, &c->ffn_width));
  WN_TRY(wn_hf_int(k, "num_attention_heads", -1, &c->heads));
  WN_TRY(wn_hf_int(k, "num_key_value_heads", kv_heads ? kv_heads : c->heads, &c->kv_heads));
  WN_TRY(wn_hf_int(k, "head_dim", head_size, &c->head_size));
  return wn_hf_real(k, "rms_norm_eps", 1e-6, &c->norm_eps);
}

/* ---- rotary positions ---- */

static wn_status hf_yarn(const struct wn_hf_keys *in, wn_model_config *c) {
  double attention, mscale, mscale_all, factor = c->rope_scaling.factor;
  WN_TRY(wn_hf_real(in, "attention_factor", 0, &attention));
  WN_TRY(wn_hf_real(in, "mscale", 0, &mscale));
  WN_TRY(wn_hf_real(in, "mscale_all_dim", 0, &mscale_all));
  WN_TRY(wn_hf_real(in, "beta_fast", 32, &c->rope_scaling.beta_fast));
  WN_TRY(wn_hf_real(in, "beta_slow", 1, &c->rope_scaling.beta_slow));
  WN_TRY(wn_hf_flag(in, "truncate", true, &c->rope_scaling.truncate));
  if (attention == 0 && mscale > 0 && mscale_all > 0 && factor > 1)
    attention = (0.1 * mscale * log(factor) + 1) / (0.1 * mscale_all * log(factor) + 1);
  c->rope_scaling.attention_factor = attention;
  return WN_OK;
}

static wn_status hf_llama3(const struct wn_hf_keys *in, bool has_first, const char *key, wn_model_config *c) {
  if (!wn_hf_find(in, "low_freq_factor") || !wn_hf_find(in, "high_freq_factor") || !has_first)
    return wn_fail(in->ctx, WN_ERR_CONFIG,
                   "%s: \"%s\" of type llama3 needs low_freq_factor, high_freq_factor and "
                   "original_max_position_embeddings",
                   in->where, key);
  WN_TRY(wn_hf_real(in, "low_freq_factor", 1, &c->rope_scaling.low_freq_factor));
  return wn_hf_real(in, "high_freq_factor", 4, &c->rope_scaling.high_freq_factor);
}

/* By enum wn_rope_scaling_type; "longrope" is phi3's (families/phi3.c). */
static const char *const rope_names[] = {"default", "linear", "dynamic", "llama3", "yarn"};

wn_status wn_hf_rope_object(const struct wn_hf_keys *in, const struct wn_hf_keys *outer, const char *key, double theta,
                            double partial, wn_model_config *c) {
  static const char first[] = "original_max_position_embeddings";
  const char *type;
  double inner;
  c->position = WN_POS_ROPE;
  WN_TRY(wn_hf_real(in, "partial_rotary_factor", partial, &inner));
  if (inner != 1)
    return wn_fail(in->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"partial_rotary_factor\" is %g; these models rotate whole heads (1)", in->where, inner);
  WN_TRY(wn_hf_real(in, "rope_theta", theta, &c->rope_theta));
  WN_TRY(wn_hf_text(in, "type", "default", &type));
  WN_TRY(wn_hf_text(in, "rope_type", type, &type));
  if (wn_hf_find(in, "mrope_section") || wn_hf_find(in, "full_attention") || wn_hf_find(in, "sliding_attention"))
    return wn_fail(in->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s\" differs between layers or parts of a head; one for all is read", in->where, key);
  int kind = 0;
  while (kind < 5 && strcmp(type, rope_names[kind]) != 0) kind++;
  if (kind == 5)
    return wn_fail(in->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s\" is of type \"%.60s\"; default, linear, dynamic, llama3 and yarn are known", in->where,
                   key, type);
  c->rope_scaling.type = (wn_rope_scaling)kind;
  if (kind == WN_ROPE_PLAIN) return WN_OK;
  const bool outside = outer && (kind == WN_ROPE_LLAMA3 || kind == WN_ROPE_YARN) && wn_hf_find(outer, first);
  WN_TRY(wn_hf_int(outside ? outer : in, first, c->context, &c->rope_scaling.context));
  if (kind == WN_ROPE_LINEAR) c->rope_scaling.context = 0;           /* linear scaling does not use it */
  if (kind == WN_ROPE_DYNAMIC) c->rope_scaling.context = c->context; /* transformers' class uses no other */
  WN_TRY(wn_hf_real(in, "factor", 0, &c->rope_scaling.factor));
  if (c->rope_scaling.factor == 0 && kind == WN_ROPE_YARN && c->rope_scaling.context > 0)
    c->rope_scaling.factor = (double)c->context / (double)c->rope_scaling.context;
  if (c->rope_scaling.factor == 0)
    return wn_fail(in->ctx, WN_ERR_CONFIG, "%s: \"%s\" has no \"factor\"", in->where, key);
  if (kind == WN_ROPE_LLAMA3) return hf_llama3(in, outside || wn_hf_find(in, first), key, c);
  return kind == WN_ROPE_YARN ? hf_yarn(in, c) : WN_OK;
}

wn_status wn_hf_rope(const struct wn_hf_keys *k, double otherwise, wn_model_config *c) {
  const json_t *scaling = wn_hf_find(k, "rope_scaling");
  const char *key = scaling ? "rope_scaling" : "rope_parameters";
  const struct wn_hf_keys inside = {k->ctx, k->where, scaling ? scaling : wn_hf_find(k, "rope_parameters")};
  double theta, partial;
  WN_TRY(wn_hf_real(k, "rope_theta", otherwise, &theta));
  WN_TRY(wn_hf_real(k, "partial_rotary_factor", 1, &partial));
  if (inside.object && !json_is_object(inside.object))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not an object", k->where, key);
  return wn_hf_rope_object(&inside, k, key, theta, partial, c);
}

/* ---- sliding windows ---- */

/* Is layer `layer` of layer_types a sliding one? All elements have been checked. */
static bool hf_is_sliding(const void *types, int64_t layer) {
  return !strcmp(json_string_value(json_array_get(types, (size_t)layer)), "sliding_attention");
}

wn_status wn_hf_window(const struct wn_hf_keys *k, int64_t window, bool (*windowed)(const void *user, int64_t layer),
                       const void *user, wn_model_config *c) {
  const json_t *types = wn_hf_find(k, "layer_types");
  if (!types) return wn_config_set_window(k->ctx, k->where, window, windowed, user, c);
  if (!json_is_array(types) || (int64_t)json_array_size(types) != c->layers)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"layer_types\" is not a list of %lld", k->where, (long long)c->layers);
  for (int64_t l = 0; l < c->layers; l++) {
    const char *type = json_string_value(json_array_get(types, (size_t)l));
    if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                     "%s: \"layer_types\"[%lld] is %.40s; full_attention and sliding_attention are known", k->where,
                     (long long)l, type ? type : "no string");
  }
  return wn_config_set_window(k->ctx, k->where, window, hf_is_sliding, types, c);
}

/* ---- writing ---- */

void wn_hf_put(struct wn_hf_object *o, const char *key, json_t *value) {
  if (json_object_set_new(o->json, key, value) != 0) o->failed = true;
}

void wn_hf_put_sizes(struct wn_hf_object *o, const wn_model_config *c) {
  wn_hf_put(o, "hidden_size", json_integer(c->width));
  wn_hf_put(o, "intermediate_size", json_integer(c->ffn_width));
  wn_hf_put(o, "num_hidden_layers", json_integer(c->layers));
  wn_hf_put(o, "num_attention_heads", json_integer(c->heads));
  wn_hf_put(o, "num_key_value_heads", json_integer(c->kv_heads));
  wn_hf_put(o, "head_dim", json_integer(c->head_size));
}

json_t *wn_hf_rope_scaling(const wn_model_config *c) {
  if (c->rope_scaling.type == WN_ROPE_PLAIN) return json_null();
  struct wn_hf_object object = {.json = json_object()}, *o = &object;
  wn_hf_put(o, "rope_type", json_string(rope_names[c->rope_scaling.type]));
  wn_hf_put(o, "factor", json_real(c->rope_scaling.factor));
  const int64_t context = c->rope_scaling.context ? c->rope_scaling.context : c->context;
  if (c->rope_scaling.type == WN_ROPE_LLAMA3 || c->rope_scaling.type == WN_ROPE_YARN)
    wn_hf_put(o, "original_max_position_embeddings", json_integer(context));
  if (c->rope_scaling.type == WN_ROPE_LLAMA3) {
    wn_hf_put(o, "low_freq_factor", json_real(c->rope_scaling.low_freq_factor));
    wn_hf_put(o, "high_freq_factor", json_real(c->rope_scaling.high_freq_factor));
  }
  if (c->rope_scaling.type == WN_ROPE_YARN) {
    if (c->rope_scaling.attention_factor > 0)
      wn_hf_put(o, "attention_factor", json_real(c->rope_scaling.attention_factor));
    wn_hf_put(o, "beta_fast", json_real(c->rope_scaling.beta_fast));
    wn_hf_put(o, "beta_slow", json_real(c->rope_scaling.beta_slow));
    wn_hf_put(o, "truncate", json_boolean(c->rope_scaling.truncate));
  }
  if (!o->failed) return o->json;
  json_decref(o->json);
  return NULL;
}

void wn_hf_put_layer_types(struct wn_hf_object *o, const wn_model_config *c) {
  json_t *types = json_array();
  for (int64_t l = 0; l < c->layers; l++) {
    const bool has = c->attention.window > 0 && wn_layer_pattern_has(c->attention.window_layers, l);
    o->failed |= json_array_append_new(types, json_string(has ? "sliding_attention" : "full_attention")) != 0;
  }
  wn_hf_put(o, "layer_types", types);
}
