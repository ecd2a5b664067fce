/* What Hugging Face transformers and llama.cpp can express of our configurations, and how they say it.
 *
 * Two families: Llama (RMSNorm before the branches, SwiGLU, rotary positions; with biases on q, k, v it is Qwen2, with
 * QK-norm Qwen3, with a window everywhere Mistral) and GPT-2 (LayerNorm, GELU, learned positions, biases everywhere).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/registry.h"
#include "model/config.h"
#include "formats/export.h"
#include "model/layer.h"

static bool is_gguf(const struct wn_export *e) {
  return e->options.to == WN_CONVERT_GGUF;
}

static wn_status lacks(wn_context *ctx, const struct wn_export *e, const char *what) {
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: %s cannot be expressed in %s; it can in \"winnow\" and \"winnow-gguf\"",
                 e->from->where, what, is_gguf(e) ? "llama.cpp's GGUF" : "Hugging Face transformers' format");
}

/* What neither program has. */
static wn_status check_standard(wn_context *ctx, const struct wn_export *e) {
  const wn_model_config *c = &e->config;
  char what[128];
  wn_mechanism_use use;
  if (c->encoder.layers > 0) return lacks(ctx, e, "\"encoder\"");
  if (c->memory > 0) return lacks(ctx, e, "\"memory\"");
  if (wn_norm_is_post(c)) return lacks(ctx, e, "\"norm_place\": \"post\"");
  if (c->embed_norm) return lacks(ctx, e, "\"embed_norm\"");
  for (int i = 0; wn_mechanism_use_at(&c->attention, i, 0, &use); i++) {
    if (!strcmp(use.name, "window")) continue;
    snprintf(what, sizeof what, "\"attention.%s\"", use.name);
    return lacks(ctx, e, what);
  }
  const double plain = 1 / sqrt((double)c->head_size), scale = c->attention.scale;
  const bool unscaled_gpt2 = c->position == WN_POS_LEARNED && scale == 1 && !is_gguf(e);
  if (scale != 0 && fabs(scale - plain) > 1e-9 * plain && !unscaled_gpt2) return lacks(ctx, e, "\"attention.scale\"");
  return WN_OK;
}

static wn_status check_gpt2(wn_context *ctx, const struct wn_export *e) {
  const wn_model_config *c = &e->config;
  if (c->norm != WN_NORM_LAYER) return lacks(ctx, e, "\"norm\": \"rmsnorm\" with learned positions");
  if (!c->bias) return lacks(ctx, e, "\"bias\": false with learned positions");
  if (c->ffn == WN_FFN_SWIGLU) return lacks(ctx, e, "\"ffn\": \"swiglu\" with learned positions");
  if (c->ffn != WN_FFN_GELU && is_gguf(e))
    return lacks(ctx, e, "an \"ffn\" other than \"gelu\" with learned positions");
  if (c->qk_norm) return lacks(ctx, e, "\"qk_norm\" with learned positions");
  if (c->kv_heads != c->heads || c->heads * c->head_size != c->width)
    return lacks(ctx, e, "grouped heads, or a head size other than width/heads, with learned positions");
  if (c->attention.window > 0) return lacks(ctx, e, "\"attention.window\" with learned positions");
  return WN_OK;
}

static wn_status check_rope(wn_context *ctx, const struct wn_export *e) {
  const wn_model_config *c = &e->config;
  const int64_t first = c->rope_scaling.context;
  if (!is_gguf(e) && c->rope_size) return lacks(ctx, e, "\"rope_size\"");
  if (!is_gguf(e) && c->rope_scaling.type == WN_ROPE_DYNAMIC && first && first != c->context)
    return lacks(ctx, e, "\"rope_scaling.context\" of type dynamic that is not \"context\"");
  if (!is_gguf(e)) return WN_OK;
  if (c->rope_scaling.type == WN_ROPE_DYNAMIC) return lacks(ctx, e, "\"rope_scaling\" of type dynamic");
  if (c->rope_scaling.type == WN_ROPE_YARN && !c->rope_scaling.truncate)
    return lacks(ctx, e, "\"rope_scaling.truncate\": false");
  return WN_OK;
}

static wn_status check_llama(wn_context *ctx, struct wn_export *e) {
  const wn_model_config *c = &e->config;
  const bool some_layers = strchr(c->attention.window_layers, '0') != NULL, window = c->attention.window > 0;
  const char *arch = c->qk_norm ? "qwen3" : c->qkv_bias ? "qwen2" : "llama";
  if (c->norm != WN_NORM_RMS) return lacks(ctx, e, "\"norm\": \"layernorm\" with rotary positions");
  if (c->ffn != WN_FFN_SWIGLU) return lacks(ctx, e, "an \"ffn\" other than \"swiglu\" with rotary positions");
  if (c->qk_norm && (c->bias || c->qkv_bias)) return lacks(ctx, e, "\"qk_norm\" with biases");
  if (window && is_gguf(e)) return lacks(ctx, e, "\"attention.window\"");
  if (window && !strcmp(arch, "llama")) {
    if (some_layers) return lacks(ctx, e, "\"attention.window_layers\" without \"qkv_bias\" or \"qk_norm\"");
    if (c->bias) return lacks(ctx, e, "\"attention.window\" with \"bias\"");
    arch = "mistral";
  }
  if (!is_gguf(e) && !strcmp(arch, "llama") && c->width % c->heads != 0)
    return lacks(ctx, e, "a \"width\" that is no multiple of \"heads\"");
  snprintf(e->architecture, sizeof e->architecture, "%s", arch);
  return check_rope(ctx, e);
}

/* ---- rope.factors as the scaling that it came from ---- */

static bool is_llama3(const wn_model_config *c, const float *factors, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (fabs(wn_rotary_divisor(c, i) - (double)factors[i]) > 1e-5 * (double)factors[i]) return false;
  return true;
}

/* llama.cpp's converter writes Llama 3's scaling as factors: with the published 1 and 4 the first context is found. */
static wn_status name_factors(wn_context *ctx, struct wn_export *e) {
  wn_model_config *c = &e->config;
  const struct wn_import *im = e->from;
  const struct wn_tensor *t = wn_tensors_at(im->tensors, wn_tensors_find(im->tensors, "rope_freqs.weight"));
  const int64_t n = (c->rope_size ? c->rope_size : c->head_size) / 2;
  void *memory;
  WN_TRY(wn_alloc(ctx, "rope.factors", (size_t)n * sizeof(float), &memory));
  float *factors = memory;
  wn_status status = wn_gguf_dequantize(ctx, &t->t, 0, 1, factors);
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
    found = is_llama3(c, factors, n);
  }
  wn_free(memory);
  WN_TRY(status);
  return found ? WN_OK : lacks(ctx, e, "rope_freqs.weight with other factors than Llama 3's");
}

/* ---- the plan ---- */

static wn_status plan_own(wn_context *ctx, struct wn_export *e) {
  const bool gguf_source = e->from->form == WN_FORM_GGUF && strcmp(e->from->architecture, "winnow") != 0;
  (void)ctx;
  snprintf(e->architecture, sizeof e->architecture, "winnow");
  e->names = &wn_names_own;
  if (gguf_source) e->config.rope_pairs = WN_ROPE_HALVES; /* what the other formats of models have */
  return WN_OK;
}

wn_status wn_export_plan(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                         struct wn_export *e) {
  *e = (struct wn_export){.from = from, .options = *options, .config = from->config, .prefix = ""};
  if (options->to == WN_CONVERT_WINNOW || options->to == WN_CONVERT_WINNOW_GGUF) return plan_own(ctx, e);
  WN_TRY(check_standard(ctx, e));
  if (e->config.position == WN_POS_NONE) return lacks(ctx, e, "\"position\": \"none\"");
  const bool gpt2 = e->config.position == WN_POS_LEARNED;
  if (gpt2) {
    snprintf(e->architecture, sizeof e->architecture, "gpt2");
    WN_TRY(check_gpt2(ctx, e));
  } else {
    WN_TRY(check_llama(ctx, e));
  }
  if (is_gguf(e)) {
    e->names = gpt2 ? &wn_names_gguf_gpt2 : &wn_names_gguf_llama;
    e->config.rope_pairs = strcmp(e->architecture, "llama") ? WN_ROPE_HALVES : WN_ROPE_ADJACENT;
    if (e->config.rope_scaling.type == WN_ROPE_LLAMA3) e->config.rope_factors = true;
    return WN_OK;
  }
  e->names = gpt2 ? &wn_names_hf_gpt2 : &wn_names_hf_llama;
  e->prefix = gpt2 ? "transformer." : "model.";
  e->config.rope_pairs = WN_ROPE_HALVES;
  return e->config.rope_factors ? name_factors(ctx, e) : WN_OK;
}

/* ---- config.json ---- */

struct object {
  json_t *json;
  bool failed; /* something is not in it */
};

/* Takes the reference to value. */
static void put(struct object *o, const char *key, json_t *value) {
  if (json_object_set_new(o->json, key, value) != 0) o->failed = true;
}

static json_t *rope_scaling(const wn_model_config *c) {
  static const char *const names[] = {NULL, "linear", "dynamic", "llama3", "yarn"};
  if (c->rope_scaling.type == WN_ROPE_PLAIN) return json_null();
  struct object object = {.json = json_object()}, *o = &object;
  put(o, "rope_type", json_string(names[c->rope_scaling.type]));
  put(o, "factor", json_real(c->rope_scaling.factor));
  const int64_t context = c->rope_scaling.context ? c->rope_scaling.context : c->context;
  if (c->rope_scaling.type == WN_ROPE_LLAMA3 || c->rope_scaling.type == WN_ROPE_YARN)
    put(o, "original_max_position_embeddings", json_integer(context));
  if (c->rope_scaling.type == WN_ROPE_LLAMA3) {
    put(o, "low_freq_factor", json_real(c->rope_scaling.low_freq_factor));
    put(o, "high_freq_factor", json_real(c->rope_scaling.high_freq_factor));
  }
  if (c->rope_scaling.type == WN_ROPE_YARN) {
    if (c->rope_scaling.attention_factor > 0) put(o, "attention_factor", json_real(c->rope_scaling.attention_factor));
    put(o, "beta_fast", json_real(c->rope_scaling.beta_fast));
    put(o, "beta_slow", json_real(c->rope_scaling.beta_slow));
    put(o, "truncate", json_boolean(c->rope_scaling.truncate));
  }
  if (!o->failed) return o->json;
  json_decref(o->json);
  return NULL;
}

static void put_windows(const wn_model_config *c, struct object *o) {
  const bool window = c->attention.window > 0;
  json_t *types = json_array();
  for (int64_t l = 0; l < c->layers; l++)
    o->failed |= json_array_append_new(types, json_string(window && wn_layer_pattern_has(c->attention.window_layers, l)
                                                              ? "sliding_attention"
                                                              : "full_attention")) != 0;
  put(o, "use_sliding_window", json_boolean(window));
  put(o, "sliding_window", window ? json_integer(c->attention.window) : json_null());
  put(o, "max_window_layers", json_integer(window ? 0 : c->layers));
  put(o, "layer_types", types);
}

static void llama_config(const struct wn_export *e, struct object *o) {
  const wn_model_config *c = &e->config;
  const bool qwen = !strncmp(e->architecture, "qwen", 4);
  put(o, "hidden_size", json_integer(c->width));
  put(o, "intermediate_size", json_integer(c->ffn_width));
  put(o, "num_hidden_layers", json_integer(c->layers));
  put(o, "num_attention_heads", json_integer(c->heads));
  put(o, "num_key_value_heads", json_integer(c->kv_heads));
  put(o, "head_dim", json_integer(c->head_size));
  put(o, "hidden_act", json_string("silu"));
  put(o, "max_position_embeddings", json_integer(c->context));
  put(o, "rms_norm_eps", json_real(c->norm_eps));
  put(o, "rope_theta", json_real(c->rope_theta));
  put(o, "rope_scaling", rope_scaling(c));
  put(o, "attention_dropout", json_real(0));
  if (!strcmp(e->architecture, "mistral")) put(o, "sliding_window", json_integer(c->attention.window));
  if (!strcmp(e->architecture, "llama") || !strcmp(e->architecture, "qwen3"))
    put(o, "attention_bias", json_boolean(c->bias));
  if (!strcmp(e->architecture, "llama")) put(o, "mlp_bias", json_boolean(c->bias));
  if (qwen) put_windows(c, o);
}

static void gpt2_config(const struct wn_export *e, struct object *o) {
  const wn_model_config *c = &e->config;
  put(o, "n_embd", json_integer(c->width));
  put(o, "n_layer", json_integer(c->layers));
  put(o, "n_head", json_integer(c->heads));
  put(o, "n_positions", json_integer(c->context));
  put(o, "n_ctx", json_integer(c->context));
  put(o, "n_inner", json_integer(c->ffn_width));
  put(o, "activation_function",
      json_string(c->ffn == WN_FFN_RELU       ? "relu"
                  : c->ffn == WN_FFN_GELU_ERF ? "gelu"
                                              : "gelu_new"));
  put(o, "layer_norm_epsilon", json_real(c->norm_eps));
  put(o, "scale_attn_weights", json_boolean(c->attention.scale != 1));
  put(o, "scale_attn_by_inverse_layer_idx", json_false());
  put(o, "attn_pdrop", json_real(0));
  put(o, "embd_pdrop", json_real(0));
  put(o, "resid_pdrop", json_real(0));
}

wn_status wn_export_hf_config(wn_context *ctx, const struct wn_export *e, const char *type, json_t **out) {
  static const char *const classes[][2] = {{"llama", "LlamaForCausalLM"},
                                           {"mistral", "MistralForCausalLM"},
                                           {"qwen2", "Qwen2ForCausalLM"},
                                           {"qwen3", "Qwen3ForCausalLM"},
                                           {"gpt2", "GPT2LMHeadModel"}};
  struct object object = {.json = json_object()}, *o = &object;
  *out = NULL;
  for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
    if (!strcmp(classes[i][0], e->architecture)) put(o, "architectures", json_pack("[s]", classes[i][1]));
  put(o, "model_type", json_string(e->architecture));
  put(o, "vocab_size", json_integer(e->config.vocab_size));
  if (!strcmp(e->architecture, "gpt2"))
    gpt2_config(e, o);
  else
    llama_config(e, o);
  put(o, "tie_word_embeddings", json_boolean(e->config.tied));
  put(o, "initializer_range", json_real(e->config.init_std));
  put(o, "bos_token_id", e->from->bos >= 0 ? json_integer(e->from->bos) : json_null());
  put(o, "eos_token_id", e->from->eos >= 0 ? json_integer(e->from->eos) : json_null());
  put(o, "torch_dtype", json_string(type));
  put(o, "use_cache", json_true());
  if (o->failed) {
    json_decref(o->json);
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: config.json");
  }
  *out = o->json;
  return WN_OK;
}

/* ---- GGUF ---- */

struct keys {
  wn_gguf_values *values;
  const char *arch;
};

static void uint_key(const struct keys *k, const char *name, int64_t value) {
  char key[160];
  snprintf(key, sizeof key, "%s.%s", k->arch, name);
  wn_gguf_values_put_uint(k->values, key, (uint32_t)value);
}

static void float_key(const struct keys *k, const char *name, double value) {
  char key[160];
  snprintf(key, sizeof key, "%s.%s", k->arch, name);
  wn_gguf_values_put_float(k->values, key, (float)value);
}

static void text_key(const struct keys *k, const char *name, const char *value) {
  char key[160];
  snprintf(key, sizeof key, "%s.%s", k->arch, name);
  wn_gguf_values_put_string(k->values, key, value, strlen(value));
}

static void rope_keys(const struct keys *k, const wn_model_config *c) {
  const double s = c->rope_scaling.factor;
  uint_key(k, "rope.dimension_count", c->rope_size ? c->rope_size : c->head_size);
  float_key(k, "rope.freq_base", c->rope_theta);
  if (c->rope_scaling.type == WN_ROPE_LINEAR) {
    text_key(k, "rope.scaling.type", "linear");
    float_key(k, "rope.scaling.factor", s);
  }
  if (c->rope_scaling.type != WN_ROPE_YARN) return;
  text_key(k, "rope.scaling.type", "yarn");
  float_key(k, "rope.scaling.factor", s);
  uint_key(k, "rope.scaling.original_context_length", c->rope_scaling.context ? c->rope_scaling.context : c->context);
  if (c->rope_scaling.attention_factor > 0)
    float_key(k, "rope.scaling.attn_factor", c->rope_scaling.attention_factor / (s > 1 ? 1 + 0.1 * log(s) : 1));
  if (c->rope_scaling.beta_fast != 32) float_key(k, "rope.scaling.yarn_beta_fast", c->rope_scaling.beta_fast);
  if (c->rope_scaling.beta_slow != 1) float_key(k, "rope.scaling.yarn_beta_slow", c->rope_scaling.beta_slow);
}

wn_status wn_export_gguf_values(wn_context *ctx, const struct wn_export *e, wn_gguf_values *values) {
  const wn_model_config *c = &e->config;
  const struct keys k = {values, e->architecture};
  if (e->options.to == WN_CONVERT_WINNOW_GGUF) {
    char *text;
    WN_TRY(wn_model_config_json(ctx, c, &text));
    text_key(&k, "config", text);
    wn_free(text);
    return WN_OK;
  }
  const bool gpt2 = !strcmp(e->architecture, "gpt2");
  uint_key(&k, "vocab_size", c->vocab_size);
  uint_key(&k, "context_length", c->context);
  uint_key(&k, "embedding_length", c->width);
  uint_key(&k, "block_count", c->layers);
  uint_key(&k, "feed_forward_length", c->ffn_width);
  uint_key(&k, "attention.head_count", c->heads);
  if (gpt2) {
    float_key(&k, "attention.layer_norm_epsilon", c->norm_eps);
    return WN_OK;
  }
  uint_key(&k, "attention.head_count_kv", c->kv_heads);
  float_key(&k, "attention.layer_norm_rms_epsilon", c->norm_eps);
  if (c->head_size * c->heads != c->width) {
    uint_key(&k, "attention.key_length", c->head_size);
    uint_key(&k, "attention.value_length", c->head_size);
  }
  rope_keys(&k, c);
  return WN_OK;
}
