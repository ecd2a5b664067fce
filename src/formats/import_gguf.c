/* The metadata of a GGUF file as our configuration: architectures llama (with Mistral's and SmolLM's models), qwen2,
 * qwen3 and gpt2. The size of the vocabulary, what is tied and which biases there are is what the tensors say, as in
 * llama.cpp. In the llama architecture rows of q and k are stored so that adjacent elements turn together. Every key of
 * the architecture must be one that is known: one that is not might change what is computed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "formats/import.h"
#include "model/layer.h"

struct reader {
  wn_context *ctx;
  const char *where, *arch;
  const wn_gguf *file;
};

static const wn_gguf_value *find(const struct reader *r, const char *key, char full[160]) {
  snprintf(full, 160, "%s.%s", r->arch, key);
  return wn_gguf_value_find(r->file, full);
}

/* Whole numbers of at least 0, or a list of equal ones (what some programs write for layers that could differ);
 * `otherwise` where the key is missing, which negative means that it must not be. */
static wn_status whole(const struct reader *r, const char *key, int64_t otherwise, int64_t *out) {
  char full[160];
  const wn_gguf_value *v = find(r, key, full);
  *out = otherwise;
  if (!v && otherwise >= 0) return WN_OK;
  if (!v) return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: key \"%s\" is missing", r->where, full);
  int64_t first;
  if (!wn_gguf_value_int(v, 0, &first) || first < 0)
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a whole number of at least 0", r->where, full);
  for (uint64_t i = 1; i < v->count; i++) {
    int64_t other;
    if (!wn_gguf_value_int(v, i, &other) || other != first)
      return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" differs between layers; one number for all is known",
                     r->where, full);
  }
  *out = first;
  return WN_OK;
}

static wn_status number_of(const struct reader *r, const char *key, double otherwise, double *out) {
  char full[160];
  const wn_gguf_value *v = find(r, key, full);
  int64_t n;
  *out = otherwise;
  if (!v) return WN_OK;
  if (v->is_array || (!wn_gguf_value_float(v, 0, out) && !wn_gguf_value_int(v, 0, &n)))
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a number", r->where, full);
  if (v->kind != WN_GGUF_FLOAT) *out = (double)n;
  /* A float that was written from a short decimal number is meant as that number. */
  if (v->kind == WN_GGUF_FLOAT && v->width == 4) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.7g", *out);
    double parsed = 0;
    if (sscanf(digits, "%lf", &parsed) == 1 && (float)parsed == (float)*out) *out = parsed;
  }
  return WN_OK;
}

static bool is_text(const wn_gguf_value *v, const char *text) {
  const char *s;
  size_t n;
  return v && wn_gguf_value_string(v, 0, &s, &n) && n == strlen(text) && !memcmp(s, text, n);
}

/* A string without NUL into out, cut. */
static bool text_of(const wn_gguf_value *v, char *out, size_t bytes) {
  const char *s;
  size_t n;
  *out = 0;
  if (!v || v->is_array || !wn_gguf_value_string(v, 0, &s, &n) || memchr(s, 0, n)) return false;
  snprintf(out, bytes, "%.*s", (int)(n < bytes ? n : bytes - 1), s);
  return true;
}

static wn_status known_keys(const struct reader *r) {
  static const char *const known[] = {"vocab_size",
                                      "context_length",
                                      "embedding_length",
                                      "block_count",
                                      "feed_forward_length",
                                      "use_parallel_residual",
                                      "tensor_data_layout",
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
  const size_t n = strlen(r->arch);
  for (int i = 0; i < wn_gguf_value_count(r->file); i++) {
    const char *key = wn_gguf_value_at(r->file, i)->key;
    if (strncmp(key, r->arch, n) != 0 || key[n] != '.') continue;
    int k = 0;
    while (known[k] && strcmp(key + n + 1, known[k]) != 0) k++;
    if (!known[k])
      return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                     "%s: key \"%.200s\" is not known: it may ask for something that is not supported", r->where, key);
  }
  return WN_OK;
}

static wn_status refuse(const struct reader *r) {
  char full[160];
  int64_t n;
  WN_TRY(whole(r, "expert_count", 0, &n));
  if (n > 0)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.expert_count\" is %lld; mixtures of experts are not supported",
                   r->where, r->arch, (long long)n);
  WN_TRY(whole(r, "use_parallel_residual", 0, &n));
  if (n != 0)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.use_parallel_residual\" is set; it is not supported", r->where,
                   r->arch);
  WN_TRY(whole(r, "attention.causal", 1, &n));
  if (n != 1)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s.attention.causal\" is false; decoders alone are read",
                   r->where, r->arch);
  if (find(r, "tensor_data_layout", full) && strcmp(r->arch, "llama") != 0)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" is known for the llama architecture alone", r->where, full);
  const wn_gguf_value *type = wn_gguf_value_find(r->file, "general.type");
  char found[64];
  if (type && !is_text(type, "model")) {
    text_of(type, found, sizeof found);
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: \"general.type\" is \"%s\"; a model is expected", r->where, found);
  }
  return WN_OK;
}

static wn_status rope(const struct reader *r, wn_model_config *c) {
  char full[160], type[64] = "none";
  double linear, attention;
  c->position = WN_POS_ROPE;
  c->rope_pairs = strcmp(r->arch, "llama") ? WN_ROPE_HALVES : WN_ROPE_ADJACENT;
  WN_TRY(number_of(r, "rope.freq_base", 10000, &c->rope_theta));
  WN_TRY(whole(r, "rope.dimension_count", c->head_size, &c->rope_size));
  if (c->rope_size == c->head_size) c->rope_size = 0;
  const wn_gguf_value *v = find(r, "rope.scaling.type", full);
  if (v && !text_of(v, type, sizeof type))
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a text", r->where, full);
  WN_TRY(number_of(r, "rope.scale_linear", 0, &linear));
  WN_TRY(number_of(r, "rope.scaling.factor", 0, &c->rope_scaling.factor));
  if (!v && (linear > 0 || c->rope_scaling.factor > 0)) snprintf(type, sizeof type, "linear");
  if (c->rope_scaling.factor == 0) c->rope_scaling.factor = linear > 0 ? linear : 1;
  WN_TRY(whole(r, "rope.scaling.original_context_length", 0, &c->rope_scaling.context));
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
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s.rope.scaling.type\" is \"%s\"; none, linear and yarn are known", r->where, r->arch, type);
  c->rope_scaling.type = WN_ROPE_YARN;
  WN_TRY(number_of(r, "rope.scaling.attn_factor", 1, &attention));
  WN_TRY(number_of(r, "rope.scaling.yarn_beta_fast", 32, &c->rope_scaling.beta_fast));
  WN_TRY(number_of(r, "rope.scaling.yarn_beta_slow", 1, &c->rope_scaling.beta_slow));
  if (attention != 1)
    c->rope_scaling.attention_factor =
        attention * (c->rope_scaling.factor > 1 ? 1 + 0.1 * log(c->rope_scaling.factor) : 1);
  return WN_OK;
}

static wn_status read_config(const struct reader *r, const struct wn_tensors *tensors, wn_model_config *c) {
  const bool is_gpt2 = !strcmp(r->arch, "gpt2");
  int64_t value_length, vocab, window;
  WN_TRY(known_keys(r));
  WN_TRY(refuse(r));
  WN_TRY(whole(r, "block_count", -1, &c->layers));
  WN_TRY(whole(r, "context_length", -1, &c->context));
  WN_TRY(whole(r, "embedding_length", -1, &c->width));
  WN_TRY(whole(r, "feed_forward_length", -1, &c->ffn_width));
  WN_TRY(whole(r, "attention.head_count", -1, &c->heads));
  WN_TRY(whole(r, "attention.head_count_kv", c->heads, &c->kv_heads));
  WN_TRY(whole(r, "attention.key_length", 0, &c->head_size));
  WN_TRY(whole(r, "attention.value_length", c->head_size, &value_length));
  if (c->head_size == 0 && c->heads > 0) c->head_size = c->width / c->heads;
  if (value_length != 0 && value_length != c->head_size)
    return wn_fail(r->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"%s.attention.value_length\" is %lld, keys have %lld; the same size is known", r->where,
                   r->arch, (long long)value_length, (long long)c->head_size);
  if (c->context < 1 || c->ffn_width < 1)
    return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s.%s\" is 0", r->where, r->arch,
                   c->context < 1 ? "context_length" : "feed_forward_length");
  WN_TRY(
      number_of(r, is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5, &c->norm_eps));
  const int embed = wn_tensors_find(tensors, "token_embd.weight");
  const struct wn_tensor *e = embed < 0 ? NULL : wn_tensors_at(tensors, embed);
  if (!e || e->t.ndim != 2)
    return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: tensor token_embd.weight is missing or not a matrix", r->where);
  c->vocab_size = e->t.shape[0];
  WN_TRY(whole(r, "vocab_size", c->vocab_size, &vocab));
  if (vocab != c->vocab_size)
    return wn_fail(r->ctx, WN_ERR_SHAPE, "%s: \"%s.vocab_size\" is %lld, token_embd.weight has %lld rows", r->where,
                   r->arch, (long long)vocab, (long long)c->vocab_size);
  c->tied = wn_tensors_find(tensors, "output.weight") < 0;
  WN_TRY(whole(r, "attention.sliding_window", 0, &window));
  if (window > 0 && window < c->context) c->attention.window = window;
  if (is_gpt2) {
    c->norm = WN_NORM_LAYER;
    c->position = WN_POS_LEARNED;
    c->ffn = WN_FFN_GELU;
    c->bias = true;
    return WN_OK;
  }
  c->norm = WN_NORM_RMS;
  c->ffn = WN_FFN_SWIGLU;
  c->rope_factors = wn_tensors_find(tensors, "rope_freqs.weight") >= 0;
  c->bias = wn_tensors_find(tensors, "blk.0.attn_output.bias") >= 0;
  c->qkv_bias = !c->bias && wn_tensors_find(tensors, "blk.0.attn_q.bias") >= 0;
  c->qk_norm = !strcmp(r->arch, "qwen3");
  return rope(r, c);
}

wn_status wn_import_gguf_config(wn_context *ctx, const char *where, const struct wn_tensors *tensors,
                                char architecture[64], wn_model_config *out) {
  const wn_gguf *file = wn_tensors_gguf(tensors);
  wn_model_config_init(out);
  if (!text_of(wn_gguf_value_find(file, "general.architecture"), architecture, 64))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"general.architecture\" is missing or not a text", where);
  if (!strcmp(architecture, "winnow")) {
    const char *text;
    size_t bytes;
    if (!wn_gguf_value_string(wn_gguf_value_find(file, "winnow.config"), 0, &text, &bytes))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"winnow.config\" is missing or not a text", where);
    return wn_model_config_parse(ctx, where, text, bytes, out);
  }
  if (strcmp(architecture, "llama") && strcmp(architecture, "qwen2") && strcmp(architecture, "qwen3") &&
      strcmp(architecture, "gpt2"))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"general.architecture\" is \"%s\"; gpt2, llama, qwen2, qwen3 and winnow are known", where,
                   architecture);
  const struct reader r = {ctx, where, architecture, file};
  WN_TRY(read_config(&r, tensors, out));
  const wn_status status = wn_model_config_resolve(ctx, out);
  return status == WN_OK ? status : wn_fail_prefix(ctx, status, "%s", where);
}
