/* Granite 3 (IBM 2024; its factors come from Yang et al. 2022, arXiv 2203.03466): Llama's shape with factors on the
 * embedding, on the branches' outputs and on attention's logits, and a divisor of the output logits. */
#include <math.h>

#include "formats/families/llama_shape.h"

/* The four factors; 1 where a file gives none. */
struct granite_factors {
  double embedding, residual, scores, logits;
};

/* Sets winnow's keys, where 0 is the default. */
static wn_status granite_set(wn_context *ctx, const char *where, const struct granite_factors *f, wn_model_config *c) {
  if (!(f->embedding > 0 && f->residual > 0 && f->scores > 0 && f->logits > 0))
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "%s: the factors of embedding, residual stream, scores and logits are %g, %g, %g and %g; all must be "
        "above 0",
        where, f->embedding, f->residual, f->scores, f->logits);
  c->embed_scale = f->embedding == 1 ? 0 : f->embedding;
  c->residual_scale = f->residual == 1 ? 0 : f->residual;
  c->logit_divisor = f->logits == 1 ? 0 : f->logits;
  c->attention.scale = f->scores;
  if (wn_config_scale_is_plain(c)) c->attention.scale = 0;
  return WN_OK;
}

static struct granite_factors granite_get(const wn_model_config *c) {
  return (struct granite_factors){
      .embedding = c->embed_scale > 0 ? c->embed_scale : 1,
      .residual = c->residual_scale > 0 ? c->residual_scale : 1,
      .scores = c->attention.scale > 0 ? c->attention.scale : 1 / sqrt((double)c->head_size),
      .logits = c->logit_divisor > 0 ? c->logit_divisor : 1,
  };
}

static wn_status granite_read(const struct wn_hf_keys *k, wn_model_config *c) {
  struct granite_factors f;
  WN_TRY(wn_llama_hf_read(k, 0, 0, c));
  WN_TRY(wn_llama_hf_read_biases(k, c));
  if (c->head_size == 0 && c->heads > 0) c->head_size = c->width / c->heads;
  WN_TRY(wn_hf_real(k, "embedding_multiplier", 1, &f.embedding));
  WN_TRY(wn_hf_real(k, "residual_multiplier", 1, &f.residual));
  WN_TRY(wn_hf_real(k, "attention_multiplier", 1, &f.scores));
  WN_TRY(wn_hf_real(k, "logits_scaling", 1, &f.logits));
  return granite_set(k->ctx, k->where, &f, c);
}

static void granite_write(struct wn_hf_object *o, const wn_model_config *c) {
  const struct granite_factors f = granite_get(c);
  wn_llama_hf_write(o, c);
  wn_llama_hf_write_biases(o, c);
  wn_hf_put(o, "embedding_multiplier", json_real(f.embedding));
  wn_hf_put(o, "residual_multiplier", json_real(f.residual));
  wn_hf_put(o, "attention_multiplier", json_real(f.scores));
  wn_hf_put(o, "logits_scaling", json_real(f.logits));
}

/* llama.cpp treats 0 like a missing key: the default. */
static wn_status granite_gguf_real(const struct wn_gguf_keys *k, const char *key, double otherwise, double *out) {
  WN_TRY(wn_gguf_keys_real(k, key, otherwise, out));
  if (*out == 0) *out = otherwise;
  return WN_OK;
}

static wn_status granite_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t turns;
  struct granite_factors f;
  WN_TRY(wn_llama_gguf_read(k, c));
  if (c->attention.window > 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"granite.attention.sliding_window\" is %lld; Granite has no windows", k->where,
                   (long long)c->attention.window);
  WN_TRY(wn_gguf_keys_int(k, "rope.scaling.finetuned", 1, &turns));
  if (!turns)
    return wn_fail(
        k->ctx, WN_ERR_UNSUPPORTED,
        "%s: \"granite.rope.scaling.finetuned\" is false, which means no positions; rotary ones are supported",
        k->where);
  WN_TRY(granite_gguf_real(k, "embedding_scale", 1, &f.embedding));
  WN_TRY(granite_gguf_real(k, "residual_scale", 1, &f.residual));
  WN_TRY(granite_gguf_real(k, "attention.scale", c->head_size > 0 ? 1 / sqrt((double)c->head_size) : 1, &f.scores));
  WN_TRY(granite_gguf_real(k, "logit_scale", 1, &f.logits));
  return granite_set(k->ctx, k->where, &f, c);
}

static void granite_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  const struct granite_factors f = granite_get(c);
  wn_llama_gguf_write(out, c);
  wn_gguf_out_real(out, "embedding_scale", f.embedding);
  wn_gguf_out_real(out, "residual_scale", f.residual);
  if (c->attention.scale > 0) wn_gguf_out_real(out, "attention.scale", f.scores);
  wn_gguf_out_real(out, "logit_scale", f.logits);
}

static bool granite_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  const bool plain =
      c->embed_scale == 0 && c->residual_scale == 0 && c->logit_divisor == 0 && wn_config_scale_is_plain(c);
  return c->position == WN_POS_ROPE && c->norm_place == WN_NORM_PRE && !c->qk_norm && (!c->qkv_bias || c->out_bias) &&
         !plain;
}

static const char *granite_lacks(const wn_model_config *c, enum wn_model_form form) {
  wn_model_config unscaled = *c;
  unscaled.attention.scale = 0;
  return wn_llama_lacks(&unscaled, form);
}

static const char *const granite_gguf_keys[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale",
                                                NULL};
static const char *const granite_keys[] = {
    "position", "rope_scaling", "rope_factors",   "rope_size",     "bias", "qkv_bias",
    "out_bias", "embed_scale",  "residual_scale", "logit_divisor", NULL};
static const char *const granite_mechanisms[] = {NULL};

const struct wn_family wn_family_granite = {
    .hf = WN_FAMILY_HF("granite", "GraniteForCausalLM", granite, &wn_llama_hf_names),
    .gguf = WN_FAMILY_GGUF("granite", ADJACENT, granite_gguf_read, granite_gguf_write, &wn_llama_gguf_names,
                           .keys = granite_gguf_keys, .factors = true),
    .is = granite_is,
    .keys = granite_keys,
    .mechanisms = granite_mechanisms,
    .lacks = granite_lacks,
};
