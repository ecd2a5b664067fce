/* Keys of GGUF's metadata: typed reading with messages that name the file and the key, and writing. */
#include "formats/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

/* ---- reading ---- */

/* Finds a key of the architecture; `full` receives its whole name. NULL when absent. */
static const wn_gguf_value *gguf_keys_find(const struct wn_gguf_keys *k, const char *key,
                                           char full[WN_GGUF_KEY_BYTES]) {
  snprintf(full, WN_GGUF_KEY_BYTES, "%s.%s", k->architecture, key);
  return wn_gguf_value_find(k->file, full);
}

wn_status wn_gguf_keys_int(const struct wn_gguf_keys *k, const char *key, int64_t otherwise, int64_t *out) {
  char full[WN_GGUF_KEY_BYTES];
  const wn_gguf_value *v = gguf_keys_find(k, key, full);
  *out = otherwise;
  if (!v && otherwise >= 0) return WN_OK;
  if (!v) return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: key \"%s\" is missing", k->where, full);
  int64_t first;
  if (!wn_gguf_value_int(v, 0, &first) || first < 0)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a whole number of at least 0", k->where, full);
  for (uint64_t i = 1; i < v->count; i++) {
    int64_t other;
    if (!wn_gguf_value_int(v, i, &other) || other != first)
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                     "%s: \"%s\" differs between layers; only one number for all layers is supported", k->where, full);
  }
  *out = first;
  return WN_OK;
}

wn_status wn_gguf_keys_real(const struct wn_gguf_keys *k, const char *key, double otherwise, double *out) {
  char full[WN_GGUF_KEY_BYTES];
  const wn_gguf_value *v = gguf_keys_find(k, key, full);
  int64_t n;
  *out = otherwise;
  if (!v) return WN_OK;
  if (v->is_array || (!wn_gguf_value_float(v, 0, out) && !wn_gguf_value_int(v, 0, &n)))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a number", k->where, full);
  if (v->kind != WN_GGUF_FLOAT) *out = (double)n;
  if (v->kind == WN_GGUF_FLOAT && v->width == 4) *out = wn_number_decimal((float)*out);
  return WN_OK;
}

bool wn_gguf_keys_text(const wn_gguf_value *v, char *out, size_t bytes) {
  const char *s;
  size_t n;
  *out = 0;
  if (!v || v->is_array || !wn_gguf_value_string(v, 0, &s, &n) || memchr(s, 0, n)) return false;
  snprintf(out, bytes, "%.*s", (int)(n < bytes ? n : bytes - 1), s);
  return true;
}

bool wn_gguf_keys_has_tensor(const struct wn_gguf_keys *k, const char *name) {
  return wn_tensors_find(k->tensors, name) >= 0;
}

/* ---- what is refused ---- */

static wn_status gguf_check_known(const struct wn_gguf_keys *k, const char *const *more) {
  static const char *const known[] = {"vocab_size",
                                      "context_length",
                                      "embedding_length",
                                      "block_count",
                                      "feed_forward_length",
                                      "use_parallel_residual",
                                      "expert_count",
                                      "expert_used_count",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "attention.layer_norm_epsilon",
                                      "attention.layer_norm_rms_epsilon",
                                      "attention.sliding_window",
                                      "attention.causal",
                                      "rope.dimension_count",
                                      "rope.freq_base",
                                      "rope.scale_linear",
                                      "rope.scaling.type",
                                      "rope.scaling.factor",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      NULL};
  const size_t n = strlen(k->architecture);
  for (int i = 0; i < wn_gguf_value_count(k->file); i++) {
    const char *key = wn_gguf_value_at(k->file, i)->key;
    if (strncmp(key, k->architecture, n) != 0 || key[n] != '.') continue;
    if (!wn_listed(known, key + n + 1) && !wn_listed(more, key + n + 1))
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                     "%s: key \"%.200s\" is not known: it may ask for something that is not supported", k->where, key);
  }
  return WN_OK;
}

wn_status wn_gguf_keys_refuse(const struct wn_gguf_keys *k, const char *const *more) {
  int64_t n;
  WN_TRY(gguf_check_known(k, more));
  WN_TRY(wn_gguf_keys_int(k, "expert_count", 0, &n));
  if (n > 0 && !wn_listed(more, "expert_count"))
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.expert_count\" is %lld; mixtures of experts are not supported",
                   k->where, k->architecture, (long long)n);
  WN_TRY(wn_gguf_keys_int(k, "use_parallel_residual", 0, &n));
  if (n != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.use_parallel_residual\" is set; it is not supported", k->where,
                   k->architecture);
  WN_TRY(wn_gguf_keys_int(k, "attention.causal", 1, &n));
  if (n != 1)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.attention.causal\" is false; only decoders are supported",
                   k->where, k->architecture);
  const wn_gguf_value *type = wn_gguf_value_find(k->file, "general.type");
  char found[64];
  if (type && (!wn_gguf_keys_text(type, found, sizeof found) || strcmp(found, "model") != 0))
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"general.type\" is \"%s\"; a model is expected", k->where, found);
  return WN_OK;
}

/* ---- sizes ---- */

wn_status wn_gguf_keys_sizes(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t value_length, vocab;
  WN_TRY(wn_gguf_keys_int(k, "block_count", -1, &c->layers));
  WN_TRY(wn_gguf_keys_int(k, "context_length", -1, &c->context));
  WN_TRY(wn_gguf_keys_int(k, "embedding_length", -1, &c->width));
  WN_TRY(wn_gguf_keys_int(k, "feed_forward_length", -1, &c->ffn_width));
  WN_TRY(wn_gguf_keys_int(k, "attention.head_count", -1, &c->heads));
  WN_TRY(wn_gguf_keys_int(k, "attention.head_count_kv", c->heads, &c->kv_heads));
  WN_TRY(wn_gguf_keys_int(k, "attention.key_length", 0, &c->head_size));
  WN_TRY(wn_gguf_keys_int(k, "attention.value_length", c->head_size, &value_length));
  if (c->head_size == 0 && c->heads > 0) c->head_size = c->width / c->heads;
  if (value_length != 0 && value_length != c->head_size)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s.attention.value_length\" is %lld, keys have %lld; only equal sizes are supported",
                   k->where, k->architecture, (long long)value_length, (long long)c->head_size);
  if (c->context < 1 || c->ffn_width < 1)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s.%s\" is 0", k->where, k->architecture,
                   c->context < 1 ? "context_length" : "feed_forward_length");
  const int embed = wn_tensors_find(k->tensors, "token_embd.weight");
  const struct wn_tensor *e = embed < 0 ? NULL : wn_tensors_at(k->tensors, embed);
  if (!e || e->t.ndim != 2)
    return wn_fail(k->ctx, WN_ERR_FORMAT, "%s: tensor token_embd.weight is missing or not a matrix", k->where);
  c->vocab_size = e->t.shape[0];
  WN_TRY(wn_gguf_keys_int(k, "vocab_size", c->vocab_size, &vocab));
  if (vocab != c->vocab_size)
    return wn_fail(k->ctx, WN_ERR_SHAPE, "%s: \"%s.vocab_size\" is %lld, token_embd.weight has %lld rows", k->where,
                   k->architecture, (long long)vocab, (long long)c->vocab_size);
  c->tied = !wn_gguf_keys_has_tensor(k, "output.weight");
  return WN_OK;
}

/* ---- rotary positions ---- */

static wn_status gguf_yarn(const struct wn_gguf_keys *k, wn_model_config *c) {
  double attention, factor = c->rope_scaling.factor;
  c->rope_scaling.type = WN_ROPE_YARN;
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.attn_factor", 1, &attention));
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.yarn_beta_fast", 32, &c->rope_scaling.beta_fast));
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.yarn_beta_slow", 1, &c->rope_scaling.beta_slow));
  if (attention != 1) c->rope_scaling.attention_factor = attention * (factor > 1 ? 1 + 0.1 * log(factor) : 1);
  return WN_OK;
}

/* llama.cpp multiplies cos and sin by attn_factor whatever the scaling type. winnow has such a factor with yarn, and
 * with longrope, whose family reads it. */
static wn_status gguf_refuse_magnitude(const struct wn_gguf_keys *k, const char *type) {
  double attention;
  if (wn_gguf_keys_has_tensor(k, "rope_factors_long.weight")) return WN_OK;
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.attn_factor", 1, &attention));
  return attention == 1
             ? WN_OK
             : wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                       "%s: \"%s.rope.scaling.attn_factor\" is %g; with scaling of type %s only 1 is supported",
                       k->where, k->architecture, attention, type);
}

wn_status wn_gguf_keys_rope(const struct wn_gguf_keys *k, wn_model_config *c) {
  char full[WN_GGUF_KEY_BYTES], type[64] = "none";
  double linear;
  c->position = WN_POS_ROPE;
  c->rope_factors = wn_gguf_keys_has_tensor(k, "rope_freqs.weight");
  WN_TRY(wn_gguf_keys_real(k, "rope.freq_base", 10000, &c->rope_theta));
  WN_TRY(wn_gguf_keys_int(k, "rope.dimension_count", c->head_size, &c->rope_size));
  if (c->rope_size == c->head_size) c->rope_size = 0;
  const wn_gguf_value *v = gguf_keys_find(k, "rope.scaling.type", full);
  if (v && !wn_gguf_keys_text(v, type, sizeof type))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a text", k->where, full);
  WN_TRY(wn_gguf_keys_real(k, "rope.scale_linear", 0, &linear));
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.factor", 0, &c->rope_scaling.factor));
  if (!v && (linear > 0 || c->rope_scaling.factor > 0)) snprintf(type, sizeof type, "linear");
  if (c->rope_scaling.factor == 0) c->rope_scaling.factor = linear > 0 ? linear : 1;
  WN_TRY(wn_gguf_keys_int(k, "rope.scaling.original_context_length", 0, &c->rope_scaling.context));
  if (!strcmp(type, "none") || !strcmp(type, "linear")) WN_TRY(gguf_refuse_magnitude(k, type));
  if (!strcmp(type, "none") || c->rope_scaling.factor == 1) {
    c->rope_scaling.factor = 1;
    c->rope_scaling.context = 0;
    if (!strcmp(type, "none") || !strcmp(type, "linear")) return WN_OK;
  }
  if (!strcmp(type, "linear")) {
    c->rope_scaling.type = WN_ROPE_LINEAR;
    c->rope_scaling.context = 0;
    return WN_OK;
  }
  if (strcmp(type, "yarn") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s.rope.scaling.type\" is \"%s\"; none, linear and yarn are known", k->where, k->architecture,
                   type);
  return gguf_yarn(k, c);
}

/* ---- writing ---- */

void wn_gguf_out_int(const struct wn_gguf_out *out, const char *name, int64_t value) {
  char key[WN_GGUF_KEY_BYTES];
  snprintf(key, sizeof key, "%s.%s", out->architecture, name);
  wn_gguf_values_put_uint(out->values, key, (uint32_t)value);
}

void wn_gguf_out_real(const struct wn_gguf_out *out, const char *name, double value) {
  char key[WN_GGUF_KEY_BYTES];
  snprintf(key, sizeof key, "%s.%s", out->architecture, name);
  wn_gguf_values_put_float(out->values, key, (float)value);
}

void wn_gguf_out_text(const struct wn_gguf_out *out, const char *name, const char *value) {
  char key[WN_GGUF_KEY_BYTES];
  snprintf(key, sizeof key, "%s.%s", out->architecture, name);
  wn_gguf_values_put_string(out->values, key, value, strlen(value));
}

void wn_gguf_out_sizes(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_gguf_out_int(out, "vocab_size", c->vocab_size);
  wn_gguf_out_int(out, "context_length", c->context);
  wn_gguf_out_int(out, "embedding_length", c->width);
  wn_gguf_out_int(out, "block_count", c->layers);
  wn_gguf_out_int(out, "feed_forward_length", c->ffn_width);
  wn_gguf_out_int(out, "attention.head_count", c->heads);
}

void wn_gguf_out_rope(const struct wn_gguf_out *out, const wn_model_config *c) {
  const double s = c->rope_scaling.factor;
  wn_gguf_out_int(out, "rope.dimension_count", c->rope_size ? c->rope_size : c->head_size);
  wn_gguf_out_real(out, "rope.freq_base", c->rope_theta);
  if (c->rope_scaling.type == WN_ROPE_LINEAR) {
    wn_gguf_out_text(out, "rope.scaling.type", "linear");
    wn_gguf_out_real(out, "rope.scaling.factor", s);
  }
  if (c->rope_scaling.type != WN_ROPE_YARN) return;
  wn_gguf_out_text(out, "rope.scaling.type", "yarn");
  wn_gguf_out_real(out, "rope.scaling.factor", s);
  wn_gguf_out_int(out, "rope.scaling.original_context_length",
                  c->rope_scaling.context ? c->rope_scaling.context : c->context);
  if (c->rope_scaling.attention_factor > 0)
    wn_gguf_out_real(out, "rope.scaling.attn_factor",
                     c->rope_scaling.attention_factor / (s > 1 ? 1 + 0.1 * log(s) : 1));
  if (c->rope_scaling.beta_fast != 32) wn_gguf_out_real(out, "rope.scaling.yarn_beta_fast", c->rope_scaling.beta_fast);
  if (c->rope_scaling.beta_slow != 1) wn_gguf_out_real(out, "rope.scaling.yarn_beta_slow", c->rope_scaling.beta_slow);
}
