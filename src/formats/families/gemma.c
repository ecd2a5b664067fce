/* Gemma 2 and Gemma 3's text models (Gemma Team 2024, "Gemma 2", section 2; 2025, "Gemma 3", section 2.1): norms before
 * both branches and on their outputs, a feed-forward gated by GELU, rotary positions, embeddings multiplied by the
 * square root of the width, windows in some layers.
 *   Gemma 2: every other layer has the window; attention logits and output logits are soft-capped.
 *   Gemma 3: five layers of six have the window, with a rotary base of their own that is never scaled; QK-norm.
 *
 * Hugging Face stores the norms' weights minus 1, GGUF the weights themselves. winnow and llama.cpp multiply embeddings
 * by the exact root; transformers rounds it to the type of the weights (bfloat16: 55.5 for a width of 3072). Hugging
 * Face has a key for attention's scale; llama.cpp infers the scale from the number of layers. */
#include <math.h>
#include <string.h>

#include "attention/registry.h"
#include "formats/families/llama_shape.h"

static const struct wn_name gemma_hf_rows[] = {WN_NAME("norm2.gain", "layers.%lld.pre_feedforward_layernorm.weight")};
static const struct wn_names gemma_hf_names = {.title = "Hugging Face Gemma",
                                               .prefix = "model.",
                                               WN_NAME_ROWS(gemma_hf_rows),
                                               .base = &wn_llama_hf_names,
                                               .gain_plus = 1};

/* The differences between the two. */
struct gemma_kind {
  int64_t period;                          /* of so many layers the last has no window, the others do */
  double attention_softcap, logit_softcap; /* where a file gives none; 0: no soft-capping */
  int64_t largest; /* number of layers of the model for which llama.cpp takes the scale 1/sqrt(width/heads) */
};
static const struct gemma_kind gemma2 = {.period = 2, .attention_softcap = 50, .logit_softcap = 30, .largest = 46};
static const struct gemma_kind gemma3 = {.period = 6, .largest = 62};
enum { GEMMA_WINDOW = 4096 }; /* where a file gives none */
#define GEMMA_LOCAL_THETA 10000.0

static void gemma_shape(wn_model_config *c) {
  c->norm = WN_NORM_RMS;
  c->norm_place = WN_NORM_BOTH;
  c->ffn = WN_FFN_GEGLU;
  c->embed_scale = sqrt((double)c->width);
}

static void gemma_set_scale(wn_model_config *c, double scalar) {
  c->attention.scale = scalar == (double)c->head_size ? 0 : 1 / sqrt(scalar);
}

static bool gemma_is_windowed(const void *user, int64_t layer) {
  const int64_t *period = user;
  return (layer + 1) % *period != 0;
}

/* ---- Hugging Face ---- */

/* A value of null means no soft-capping. */
static wn_status gemma_read_softcap(const struct wn_hf_keys *k, const char *key, double otherwise, double *out) {
  return wn_hf_real(k, key, json_object_get(k->object, key) ? 0 : otherwise, out);
}

static wn_status gemma_read_sizes(const struct wn_hf_keys *k, wn_model_config *c) {
  double scalar;
  WN_TRY(wn_hf_sizes(k, -1, 256, c));
  WN_TRY(wn_hf_flag(k, "tie_word_embeddings", true, &c->tied));
  WN_TRY(wn_hf_real(k, "query_pre_attn_scalar", 256, &scalar));
  if (!(scalar > 0))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"query_pre_attn_scalar\" is %g; it must be above 0", k->where, scalar);
  gemma_shape(c);
  gemma_set_scale(c, scalar);
  return WN_OK;
}

static wn_status gemma_read(const struct wn_hf_keys *k, const struct gemma_kind *kind, wn_model_config *c) {
  int64_t window, period;
  const char *act;
  WN_TRY(gemma_read_sizes(k, c));
  WN_TRY(wn_hf_text(k, "hidden_activation", "gelu_pytorch_tanh", &act));
  if (strcmp(act, "gelu_pytorch_tanh") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"hidden_activation\" is \"%.60s\"; gelu_pytorch_tanh is known",
                   k->where, act);
  WN_TRY(wn_hf_not(k, "attention_bias", "it is not supported"));
  WN_TRY(wn_hf_not(k, "use_bidirectional_attention", "it is not supported"));
  WN_TRY(gemma_read_softcap(k, "final_logit_softcapping", kind->logit_softcap, &c->logit_softcap));
  WN_TRY(wn_hf_int(k, "sliding_window", GEMMA_WINDOW, &window));
  WN_TRY(wn_hf_int(k, "sliding_window_pattern", kind->period, &period));
  if (window < 1 || period < 1)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is 0", k->where,
                   window < 1 ? "sliding_window" : "sliding_window_pattern");
  return wn_hf_window(k, window, gemma_is_windowed, &period, c);
}

static wn_status gemma2_read(const struct wn_hf_keys *k, wn_model_config *c) {
  double softcap;
  WN_TRY(gemma_read(k, &gemma2, c));
  WN_TRY(gemma_read_softcap(k, "attn_logit_softcapping", gemma2.attention_softcap, &softcap));
  WN_TRY(wn_config_set_attention(k->ctx, k->where, "softcap.cap", softcap, c));
  return wn_hf_rope(k, WN_HF_ROPE_THETA, c);
}

/* Rotary settings for the two kinds of layers: since transformers 5 one object each in rope_parameters, before that
 * rope_theta with rope_scaling, and rope_local_base_freq. */
static wn_status gemma3_read_rope(const struct wn_hf_keys *k, wn_model_config *c) {
  const json_t *parameters = wn_hf_find(k, "rope_parameters"), *scaling = wn_hf_find(k, "rope_scaling");
  const struct wn_hf_keys both = {k->ctx, k->where, parameters};
  const struct wn_hf_keys full = {k->ctx, k->where, wn_hf_find(&both, "full_attention")};
  const struct wn_hf_keys local = {k->ctx, k->where, wn_hf_find(&both, "sliding_attention")};
  const struct wn_hf_keys stretched = {k->ctx, k->where, scaling ? scaling : full.object};
  double theta, local_theta;
  const char *type;
  if (parameters && (!json_is_object(full.object) || !json_is_object(local.object)))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"rope_parameters\" has no objects full_attention and sliding_attention",
                   k->where);
  if (scaling && !json_is_object(scaling))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"rope_scaling\" is not an object", k->where);
  WN_TRY(wn_hf_real(k, "rope_theta", 1e6, &theta));
  WN_TRY(wn_hf_real(&full, "rope_theta", theta, &theta));
  WN_TRY(wn_hf_real(k, "rope_local_base_freq", GEMMA_LOCAL_THETA, &local_theta));
  WN_TRY(wn_hf_real(&local, "rope_theta", local_theta, &local_theta));
  WN_TRY(wn_hf_text(&local, "rope_type", "default", &type));
  if (strcmp(type, "default") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"rope_parameters\": sliding_attention is of type \"%.60s\"; default is known", k->where, type);
  if (c->attention.window > 0) c->rope_local_theta = local_theta;
  return wn_hf_rope_object(&stretched, NULL, scaling ? "rope_scaling" : "rope_parameters", theta, 1, c);
}

static wn_status gemma3_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(gemma_read(k, &gemma3, c));
  c->qk_norm = true;
  return gemma3_read_rope(k, c);
}

static json_t *gemma_softcap(double cap) {
  return cap > 0 ? json_real(cap) : json_null();
}

/* query_pre_attn_scalar: attention's scale is 1 / sqrt of it. */
static double gemma_scalar(const wn_model_config *c) {
  const double scale = c->attention.scale;
  return scale > 0 ? 1 / (scale * scale) : (double)c->head_size;
}

static void gemma_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_hf_put_sizes(o, c);
  wn_hf_put(o, "hidden_activation", json_string("gelu_pytorch_tanh"));
  wn_hf_put(o, "max_position_embeddings", json_integer(c->context));
  wn_hf_put(o, "rms_norm_eps", json_real(c->norm_eps));
  wn_hf_put(o, "query_pre_attn_scalar", json_integer(llrint(gemma_scalar(c))));
  wn_hf_put(o, "final_logit_softcapping", gemma_softcap(c->logit_softcap));
  wn_hf_put(o, "attention_bias", json_false());
  wn_hf_put(o, "attention_dropout", json_real(0));
  wn_hf_put(o, "sliding_window", json_integer(c->attention.window > 0 ? c->attention.window : GEMMA_WINDOW));
  wn_hf_put_layer_types(o, c);
  wn_hf_put(o, "rope_theta", json_real(c->rope_theta));
  wn_hf_put(o, "rope_scaling", wn_hf_rope_scaling(c));
}

static void gemma2_write(struct wn_hf_object *o, const wn_model_config *c) {
  gemma_write(o, c);
  wn_hf_put(o, "attn_logit_softcapping", gemma_softcap(wn_config_attention(c, "softcap.cap")));
}

static double gemma_local_theta(const wn_model_config *c) {
  return c->rope_local_theta > 0 ? c->rope_local_theta : c->rope_theta;
}

static void gemma3_write(struct wn_hf_object *o, const wn_model_config *c) {
  gemma_write(o, c);
  wn_hf_put(o, "rope_local_base_freq", json_real(gemma_local_theta(c)));
}

/* ---- GGUF ---- */

static double gemma_gguf_scalar(const struct gemma_kind *kind, const wn_model_config *c) {
  return c->layers == kind->largest ? (double)c->width / (double)c->heads : (double)c->head_size;
}

static wn_status gemma_gguf_read(const struct wn_gguf_keys *k, const struct gemma_kind *kind, wn_model_config *c) {
  gemma_shape(c);
  if (c->heads > 0) gemma_set_scale(c, gemma_gguf_scalar(kind, c));
  WN_TRY(wn_gguf_keys_real(k, "attention.layer_norm_rms_epsilon", 1e-6, &c->norm_eps));
  WN_TRY(wn_gguf_keys_real(k, "final_logit_softcapping", kind->logit_softcap, &c->logit_softcap));
  return wn_gguf_keys_rope(k, c);
}

static wn_status gemma_gguf_window(const struct wn_gguf_keys *k, const struct gemma_kind *kind, int64_t window,
                                   wn_model_config *c) {
  return wn_config_set_window(k->ctx, k->where, window, gemma_is_windowed, &kind->period, c);
}

static wn_status gemma2_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t window;
  double softcap;
  WN_TRY(gemma_gguf_read(k, &gemma2, c));
  WN_TRY(wn_gguf_keys_int(k, "attention.sliding_window", GEMMA_WINDOW, &window));
  WN_TRY(gemma_gguf_window(k, &gemma2, window, c));
  WN_TRY(wn_gguf_keys_real(k, "attn_logit_softcapping", gemma2.attention_softcap, &softcap));
  return wn_config_set_attention(k->ctx, k->where, "softcap.cap", softcap, c);
}

static wn_status gemma3_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t window;
  WN_TRY(gemma_gguf_read(k, &gemma3, c));
  c->qk_norm = true;
  WN_TRY(wn_gguf_keys_int(k, "attention.sliding_window", 0, &window));
  if (window == 0) return WN_OK;
  WN_TRY(gemma_gguf_window(k, &gemma3, window, c));
  return wn_gguf_keys_real(k, "rope.freq_base_swa", GEMMA_LOCAL_THETA, &c->rope_local_theta);
}

static void gemma_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_gguf_out_int(out, "attention.head_count_kv", c->kv_heads);
  wn_gguf_out_real(out, "attention.layer_norm_rms_epsilon", c->norm_eps);
  wn_gguf_out_int(out, "attention.key_length", c->head_size);
  wn_gguf_out_int(out, "attention.value_length", c->head_size);
  if (c->attention.window > 0) wn_gguf_out_int(out, "attention.sliding_window", c->attention.window);
  wn_gguf_out_rope(out, c);
}

static void gemma2_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  gemma_gguf_write(out, c);
  wn_gguf_out_real(out, "attn_logit_softcapping", wn_config_attention(c, "softcap.cap"));
  wn_gguf_out_real(out, "final_logit_softcapping", c->logit_softcap);
}

/* ---- limits ---- */

static bool gemma_has_period(const struct gemma_kind *kind, const wn_model_config *c) {
  for (int64_t l = 0; l < c->layers; l++)
    if (wn_layer_pattern_has(c->attention.window_layers, l) != gemma_is_windowed(&kind->period, l)) return false;
  return true;
}

static const char *gemma_lacks(const struct gemma_kind *kind, const wn_model_config *c, enum wn_model_form form) {
  const double scalar = gemma_scalar(c), wanted = form == WN_FORM_GGUF ? gemma_gguf_scalar(kind, c) : rint(scalar);
  if (c->position != WN_POS_ROPE) return "\"norm_place\": \"both\" without rotary positions";
  if (c->norm != WN_NORM_RMS) return "\"norm\": \"layernorm\" with \"norm_place\": \"both\"";
  if (c->ffn != WN_FFN_GEGLU) return "an \"ffn\" other than \"geglu\" with \"norm_place\": \"both\"";
  if (fabs(c->embed_scale * c->embed_scale - (double)c->width) > 1e-6 * (double)c->width)
    return "an \"embed_scale\" other than the root of \"width\"";
  if (fabs(scalar - wanted) > 1e-6 * wanted) return "\"attention.scale\"";
  if (c->width % c->heads != 0 && form == WN_FORM_HF) return "a \"width\" that is no multiple of \"heads\"";
  if (form == WN_FORM_HF) return NULL;
  if (c->attention.window > 0 && !gemma_has_period(kind, c))
    return "an \"attention.window_layers\" other than this family's";
  if (c->rope_scaling.type == WN_ROPE_DYNAMIC) return "\"rope_scaling\" of type dynamic";
  return c->rope_scaling.type == WN_ROPE_YARN && !c->rope_scaling.truncate ? "\"rope_scaling.truncate\": false" : NULL;
}

static const char *gemma2_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = gemma_lacks(&gemma2, c, form);
  if (what || form == WN_FORM_HF) return what;
  if (!c->tied) return "\"tied\": false with \"norm_place\": \"both\"";
  if (c->attention.window == 0) return "\"norm_place\": \"both\" without \"attention.window\"";
  if (!(c->logit_softcap > 0)) return "\"norm_place\": \"both\" without \"logit_softcap\"";
  return wn_config_attention(c, "softcap.cap") > 0 ? NULL : "\"norm_place\": \"both\" without \"attention.softcap\"";
}

static const char *gemma3_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = gemma_lacks(&gemma3, c, form);
  const bool window = c->attention.window > 0;
  if (what) return what;
  if (window && c->rope_scaling.type != WN_ROPE_PLAIN && c->rope_local_theta == 0)
    return "\"rope_scaling\" without \"rope_local_theta\"";
  if (form == WN_FORM_HF) return NULL;
  if (window && gemma_local_theta(c) != GEMMA_LOCAL_THETA) return "a \"rope_local_theta\" other than 10000";
  return c->logit_softcap > 0 ? "\"logit_softcap\" with \"qk_norm\"" : NULL;
}

static bool gemma2_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->norm_place == WN_NORM_BOTH && !c->qk_norm;
}

static bool gemma3_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->norm_place == WN_NORM_BOTH && c->qk_norm;
}

/* ---- the rows ---- */

static const char *const gemma2_keys[] = {"norm_place",    "position",     "embed_scale",
                                          "logit_softcap", "rope_scaling", NULL};
static const char *const gemma3_keys[] = {"norm_place",   "position", "embed_scale",      "logit_softcap",
                                          "rope_scaling", "qk_norm",  "rope_local_theta", NULL};
static const char *const gemma2_mechanisms[] = {"window", "softcap", NULL};
static const char *const gemma3_mechanisms[] = {"window", NULL};
static const char *const gemma_softcaps[] = {"attn_logit_softcapping", "final_logit_softcapping", NULL};
static const char *const gemma3_softcaps[] = {"final_logit_softcapping", NULL};
static const char *const gemma3_gguf_keys[] = {"final_logit_softcapping", "rope.freq_base_swa", NULL};

const struct wn_family wn_family_gemma2 = {
    .hf = WN_FAMILY_HF("gemma2", "Gemma2ForCausalLM", gemma2, &gemma_hf_names, .keys = gemma_softcaps),
    .gguf = WN_FAMILY_GGUF("gemma2", HALVES, gemma2_gguf_read, gemma2_gguf_write, &wn_llama_gguf_names,
                           .keys = gemma_softcaps),
    .is = gemma2_is,
    .keys = gemma2_keys,
    .mechanisms = gemma2_mechanisms,
    .lacks = gemma2_lacks,
};

const struct wn_family wn_family_gemma3 = {
    .hf = WN_FAMILY_HF("gemma3_text", "Gemma3ForCausalLM", gemma3, &gemma_hf_names, .keys = gemma3_softcaps),
    .gguf = WN_FAMILY_GGUF("gemma3", HALVES, gemma3_gguf_read, gemma_gguf_write, &wn_llama_gguf_names,
                           .keys = gemma3_gguf_keys),
    .is = gemma3_is,
    .keys = gemma3_keys,
    .mechanisms = gemma3_mechanisms,
    .lacks = gemma3_lacks,
};
