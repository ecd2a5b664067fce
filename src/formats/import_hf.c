/* config.json of Hugging Face transformers (https://github.com/huggingface/transformers, src/transformers/models) as
 * our configuration: model_type llama (also SmolLM and what calls itself so), mistral, qwen2, qwen3 and gpt2. Keys that
 * those classes do not read have no effect there and have none here; a key that is left out has the class's default,
 * where the class's default is a sensible one. What we cannot compute is refused by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/import.h"
#include "model/layer.h"

#define KNOWN_TYPES "gpt2, llama, mistral, qwen2 and qwen3"

struct reader {
  wn_context *ctx;
  const char *where;
  const json_t *object;
};

/* NULL for a key that is not there, or null. */
static const json_t *get(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  return json_is_null(v) ? NULL : v;
}

/* Whole numbers; `otherwise` where the key is missing, which negative means that it must not be. */
static wn_status whole(const struct reader *r, const char *key, int64_t otherwise, int64_t *out) {
  const json_t *v = get(r->object, key);
  *out = otherwise;
  if (!v && otherwise >= 0) return WN_OK;
  if (!v) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is missing", r->where, key);
  if (!json_is_integer(v) || json_integer_value(v) < 0)
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a whole number of at least 0", r->where, key);
  *out = json_integer_value(v);
  return WN_OK;
}

static wn_status number_of(const struct reader *r, const json_t *object, const char *key, double otherwise,
                           double *out) {
  const json_t *v = get(object, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_number(v)) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a number", r->where, key);
  *out = json_number_value(v);
  return WN_OK;
}

static wn_status flag(const struct reader *r, const json_t *object, const char *key, bool otherwise, bool *out) {
  const json_t *v = get(object, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_boolean(v)) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not true or false", r->where, key);
  *out = json_is_true(v);
  return WN_OK;
}

static wn_status text(const struct reader *r, const json_t *object, const char *key, const char *otherwise,
                      const char **out) {
  const json_t *v = get(object, key);
  *out = otherwise;
  if (!v) return WN_OK;
  if (!json_is_string(v)) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a string", r->where, key);
  *out = json_string_value(v);
  return WN_OK;
}

/* Keys that would change what is computed, whatever the class. */
static wn_status refuse(const struct reader *r) {
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
    const json_t *v = get(r->object, known[i].key);
    if (v && !json_is_false(v) && !(json_is_number(v) && json_number_value(v) == 0))
      return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" asks for %s, which is not supported", r->where,
                     known[i].key, known[i].what);
  }
  bool encoder, cross;
  WN_TRY(flag(r, r->object, "is_encoder_decoder", false, &encoder));
  WN_TRY(flag(r, r->object, "add_cross_attention", false, &cross));
  if (encoder || cross)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" is true; decoders alone are read", r->where,
                   encoder ? "is_encoder_decoder" : "add_cross_attention");
  return WN_OK;
}

/* ---- rotary positions ---- */

static wn_status yarn(const struct reader *r, const json_t *o, wn_model_config *c) {
  double attention, mscale, mscale_all, factor = c->rope_scaling.factor;
  WN_TRY(number_of(r, o, "attention_factor", 0, &attention));
  WN_TRY(number_of(r, o, "mscale", 0, &mscale));
  WN_TRY(number_of(r, o, "mscale_all_dim", 0, &mscale_all));
  WN_TRY(number_of(r, o, "beta_fast", 32, &c->rope_scaling.beta_fast));
  WN_TRY(number_of(r, o, "beta_slow", 1, &c->rope_scaling.beta_slow));
  WN_TRY(flag(r, o, "truncate", true, &c->rope_scaling.truncate));
  if (attention == 0 && mscale > 0 && mscale_all > 0 && factor > 1)
    attention = (0.1 * mscale * log(factor) + 1) / (0.1 * mscale_all * log(factor) + 1);
  c->rope_scaling.attention_factor = attention;
  return WN_OK;
}

static wn_status rope(const struct reader *r, wn_model_config *c) {
  const json_t *parameters = get(r->object, "rope_parameters"), *scaling = get(r->object, "rope_scaling");
  const json_t *o = scaling ? scaling : parameters;
  const char *type, *key = scaling ? "rope_scaling" : "rope_parameters";
  double partial, inner;
  c->position = WN_POS_ROPE;
  WN_TRY(number_of(r, r->object, "rope_theta", 10000, &c->rope_theta));
  WN_TRY(number_of(r, r->object, "partial_rotary_factor", 1, &partial));

  if (o && !json_is_object(o)) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not an object", r->where, key);
  WN_TRY(number_of(r, o, "partial_rotary_factor", partial, &inner));
  if (inner != 1)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"partial_rotary_factor\" is %g; these models turn whole heads (1)",
                   r->where, inner);
  WN_TRY(number_of(r, o, "rope_theta", c->rope_theta, &c->rope_theta));
  WN_TRY(text(r, o, "type", "default", &type));
  WN_TRY(text(r, o, "rope_type", type, &type));
  if (get(o, "mrope_section") || get(o, "full_attention") || get(o, "sliding_attention"))
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s\" differs between layers or parts of a head; one for all is read", r->where, key);
  static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
  int kind = 0;
  while (kind < 5 && strcmp(type, names[kind]) != 0) kind++;
  if (kind == 5)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s\" is of type \"%.60s\"; default, linear, dynamic, llama3 and yarn are known", r->where,
                   key, type);
  c->rope_scaling.type = (wn_rope_scaling)kind;
  if (kind == WN_ROPE_PLAIN) return WN_OK;
  const struct reader inside = {r->ctx, r->where, o};
  WN_TRY(whole(&inside, "original_max_position_embeddings", c->context, &c->rope_scaling.context));
  if (kind == WN_ROPE_DYNAMIC) c->rope_scaling.context = c->context; /* the class reads no other */
  WN_TRY(number_of(r, o, "factor", 0, &c->rope_scaling.factor));
  if (c->rope_scaling.factor == 0 && kind == WN_ROPE_YARN && c->rope_scaling.context > 0)
    c->rope_scaling.factor = (double)c->context / (double)c->rope_scaling.context;
  if (c->rope_scaling.factor == 0) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" has no \"factor\"", r->where, key);
  if (kind == WN_ROPE_LLAMA3) {
    if (!get(o, "low_freq_factor") || !get(o, "high_freq_factor") || !get(o, "original_max_position_embeddings"))
      return wn_fail(r->ctx, WN_ERR_CONFIG,
                     "%s: \"%s\" of type llama3 needs low_freq_factor, high_freq_factor and "
                     "original_max_position_embeddings",
                     r->where, key);
    WN_TRY(number_of(r, o, "low_freq_factor", 1, &c->rope_scaling.low_freq_factor));
    WN_TRY(number_of(r, o, "high_freq_factor", 4, &c->rope_scaling.high_freq_factor));
  }
  return kind == WN_ROPE_YARN ? yarn(r, o, c) : WN_OK;
}

/* ---- sliding windows ---- */

/* pattern: a '1' for each layer that has the window. */
static wn_status set_window(const struct reader *r, int64_t window, const char *pattern, wn_model_config *c) {
  if (!strchr(pattern, '1')) return WN_OK;
  c->attention.window = window;
  if (strchr(pattern, '0')) snprintf(c->attention.window_layers, sizeof c->attention.window_layers, "%s", pattern);
  if (window < 1)
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"sliding_window\" is %lld; at least 1 is expected", r->where,
                   (long long)window);
  return WN_OK;
}

static wn_status qwen_windows(const struct reader *r, wn_model_config *c) {
  bool use;
  int64_t window, full;
  char pattern[sizeof c->attention.window_layers];
  WN_TRY(flag(r, r->object, "use_sliding_window", false, &use));
  WN_TRY(whole(r, "sliding_window", 0, &window));
  WN_TRY(whole(r, "max_window_layers", 28, &full));
  const json_t *types = get(r->object, "layer_types");
  if (types && (!json_is_array(types) || (int64_t)json_array_size(types) != c->layers))
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"layer_types\" is not a list of %lld", r->where, (long long)c->layers);
  if (!types && !use) return WN_OK;
  if (use && window == 0 && !json_object_get(r->object, "sliding_window")) window = 4096; /* the class's default */
  bool some = false;
  for (int64_t l = 0; l < c->layers; l++) {
    const char *type = types ? json_string_value(json_array_get(types, (size_t)l)) : NULL;
    const bool sliding = types ? type && !strcmp(type, "sliding_attention") : l >= full;
    if (types && !sliding && (!type || strcmp(type, "full_attention") != 0))
      return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                     "%s: \"layer_types\"[%lld] is %.40s; full_attention and sliding_attention are known", r->where,
                     (long long)l, type ? type : "no string");
    some |= sliding;
    if (l < (int64_t)sizeof pattern - 1) pattern[l] = sliding ? '1' : '0';
  }
  if (!some || window == 0) return WN_OK;
  if (c->layers > (int64_t)sizeof pattern - 1)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: sliding windows in some of %lld layers; up to %zu are possible",
                   r->where, (long long)c->layers, sizeof pattern - 1);
  pattern[c->layers] = 0;
  return set_window(r, window, pattern, c);
}

/* ---- the classes ---- */

static wn_status llama(const struct reader *r, const char *type, wn_model_config *c) {
  const bool mistral = !strcmp(type, "mistral"), qwen2 = !strcmp(type, "qwen2"), qwen3 = !strcmp(type, "qwen3");
  bool attention_bias, mlp_bias;
  const char *act;
  c->norm = WN_NORM_RMS;
  c->ffn = WN_FFN_SWIGLU;
  WN_TRY(whole(r, "vocab_size", -1, &c->vocab_size));
  WN_TRY(whole(r, "max_position_embeddings", -1, &c->context));
  WN_TRY(whole(r, "num_hidden_layers", -1, &c->layers));
  WN_TRY(whole(r, "hidden_size", -1, &c->width));
  WN_TRY(whole(r, "intermediate_size", -1, &c->ffn_width));
  WN_TRY(whole(r, "num_attention_heads", -1, &c->heads));
  WN_TRY(whole(r, "num_key_value_heads", mistral || qwen2 || qwen3 ? -1 : c->heads, &c->kv_heads));
  WN_TRY(whole(r, "head_dim", qwen3 ? 128 : 0, &c->head_size));
  WN_TRY(number_of(r, r->object, "rms_norm_eps", 1e-6, &c->norm_eps));
  WN_TRY(flag(r, r->object, "tie_word_embeddings", false, &c->tied));
  WN_TRY(text(r, r->object, "hidden_act", "silu", &act));
  if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"hidden_act\" is \"%.60s\"; silu is known", r->where, act);
  WN_TRY(flag(r, r->object, "attention_bias", false, &attention_bias));
  WN_TRY(flag(r, r->object, "mlp_bias", false, &mlp_bias));
  if (mistral || qwen2) attention_bias = mlp_bias = false; /* not read there */
  if (qwen3) mlp_bias = false;
  if (attention_bias != mlp_bias)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"attention_bias\" is %s and \"mlp_bias\" %s; biases on all maps or on none are known",
                   r->where, attention_bias ? "true" : "false", mlp_bias ? "true" : "false");
  c->bias = attention_bias;
  c->qkv_bias = qwen2;
  c->qk_norm = qwen3;
  WN_TRY(rope(r, c));
  if (qwen2 || qwen3) return qwen_windows(r, c);
  if (!mistral) return WN_OK;
  int64_t window;
  WN_TRY(whole(r, "sliding_window", json_object_get(r->object, "sliding_window") ? 0 : 4096, &window));
  return window > 0 ? set_window(r, window, "1", c) : WN_OK;
}

static wn_status gpt2(const struct reader *r, wn_model_config *c) {
  static const struct {
    const char *name;
    wn_ffn_kind kind;
  } acts[] = {
      {"gelu_new", WN_FFN_GELU}, {"gelu_pytorch_tanh", WN_FFN_GELU}, {"gelu", WN_FFN_GELU_ERF}, {"relu", WN_FFN_RELU}};
  bool scaled, by_layer;
  const char *act;
  c->norm = WN_NORM_LAYER;
  c->position = WN_POS_LEARNED;
  c->bias = true;
  WN_TRY(whole(r, "vocab_size", -1, &c->vocab_size));
  WN_TRY(whole(r, "n_positions", -1, &c->context));
  WN_TRY(whole(r, "n_layer", -1, &c->layers));
  WN_TRY(whole(r, "n_embd", -1, &c->width));
  WN_TRY(whole(r, "n_head", -1, &c->heads));
  WN_TRY(whole(r, "n_inner", 0, &c->ffn_width));
  WN_TRY(number_of(r, r->object, "layer_norm_epsilon", 1e-5, &c->norm_eps));
  WN_TRY(flag(r, r->object, "tie_word_embeddings", true, &c->tied));
  WN_TRY(text(r, r->object, "activation_function", "gelu_new", &act));
  WN_TRY(flag(r, r->object, "scale_attn_weights", true, &scaled));
  WN_TRY(flag(r, r->object, "scale_attn_by_inverse_layer_idx", false, &by_layer));
  size_t i = 0;
  while (i < sizeof acts / sizeof *acts && strcmp(act, acts[i].name) != 0) i++;
  if (i == sizeof acts / sizeof *acts)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"activation_function\" is \"%.60s\"; gelu_new, gelu_pytorch_tanh, gelu and relu are known",
                   r->where, act);
  c->ffn = acts[i].kind;
  if (by_layer)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"scale_attn_by_inverse_layer_idx\" is true; one scale for all layers is known", r->where);
  if (!scaled) c->attention.scale = 1;
  return WN_OK;
}

wn_status wn_import_hf_config(wn_context *ctx, const char *where, const json_t *object, char architecture[64],
                              wn_model_config *out) {
  const struct reader r = {ctx, where, object};
  const char *type;
  wn_model_config_init(out);
  if (!json_is_object(object)) return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected a JSON object", where);
  WN_TRY(text(&r, object, "model_type", "", &type));
  const bool is_gpt2 = !strcmp(type, "gpt2");
  if (!is_gpt2 && strcmp(type, "llama") && strcmp(type, "mistral") && strcmp(type, "qwen2") && strcmp(type, "qwen3"))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: \"model_type\" is \"%.60s\"; " KNOWN_TYPES " are known", where, type);
  snprintf(architecture, 64, "%s", type);
  WN_TRY(refuse(&r));
  WN_TRY(is_gpt2 ? gpt2(&r, out) : llama(&r, type, out));
  if (out->context < 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"%s\" is 0", where, is_gpt2 ? "n_positions" : "max_position_embeddings");
  const wn_status status = wn_model_config_resolve(ctx, out);
  return status == WN_OK ? status : wn_fail_prefix(ctx, status, "%s", where);
}
