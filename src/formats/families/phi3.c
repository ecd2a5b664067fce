/* Phi-3, Phi-3.5 and Phi-4-mini (Abdin et al. 2024, arXiv 2404.14219): Llama's shape, with q, k and v in one tensor and
 * the feed-forward's gate and up projections in another. Phi-4-mini rotates a part of each head. Models for long
 * contexts have longrope, whose divisors are lists in config.json and tensors in GGUF. Some of the first models have a
 * window. */
#include <math.h>
#include <string.h>

#include "formats/families/llama_shape.h"
#include "model/run.h"

static const struct wn_name phi3_hf_rows[] = {
    {.ours = "rope.short_factors", .theirs = {"=short_factor"}, .listed = true},
    {.ours = "rope.long_factors", .theirs = {"=long_factor"}, .listed = true},
    WN_NAME("attn.qkv.weight", "layers.%lld.self_attn.qkv_proj.weight"),
    WN_NAME("ffn.in.weight", "layers.%lld.mlp.gate_up_proj.weight"),
};
static const struct wn_name phi3_gguf_rows[] = {
    WN_NAME("rope.short_factors", "rope_factors_short.weight"),
    WN_NAME("rope.long_factors", "rope_factors_long.weight"),
    WN_NAME("attn.qkv.weight", "blk.%lld.attn_qkv.weight"),
    WN_NAME("ffn.in.weight", "blk.%lld.ffn_up.weight"),
};
static const struct wn_names phi3_hf_names = {
    .title = "Hugging Face Phi-3", .prefix = "model.", WN_NAME_ROWS(phi3_hf_rows), .base = &wn_llama_hf_names};
static const struct wn_names phi3_gguf_names = {
    .title = "GGUF phi3", .prefix = "", WN_NAME_ROWS(phi3_gguf_rows), .base = &wn_llama_gguf_names};

enum { PHI3_CONTEXT = 4096 }; /* original context, where config.json gives none */

/* Sets the original context and the factor: `factor`, or 0 for the ratio of the two contexts. */
static void phi3_set_longrope(wn_model_config *c, int64_t first, double factor) {
  c->rope_scaling.type = WN_ROPE_LONG;
  c->rope_scaling.context = first;
  c->rope_scaling.factor = factor > 0 ? factor : first > 0 ? (double)c->context / (double)first : 1;
}

/* ---- Hugging Face ---- */

static wn_status phi3_read_rope(const struct wn_hf_keys *k, wn_model_config *c) {
  const json_t *scaling = wn_hf_find(k, "rope_scaling");
  const char *key = scaling ? "rope_scaling" : "rope_parameters", *type;
  const struct wn_hf_keys inside = {k->ctx, k->where, scaling ? scaling : wn_hf_find(k, "rope_parameters")};
  double theta, partial, factor;
  int64_t first;
  if (inside.object && !json_is_object(inside.object))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not an object", k->where, key);
  WN_TRY(wn_hf_real(k, "rope_theta", 10000, &theta));
  WN_TRY(wn_hf_real(k, "partial_rotary_factor", 1, &partial));
  WN_TRY(wn_hf_real(&inside, "rope_theta", theta, &c->rope_theta));
  WN_TRY(wn_hf_real(&inside, "partial_rotary_factor", partial, &partial));
  WN_TRY(wn_hf_text(&inside, "type", "default", &type));
  WN_TRY(wn_hf_text(&inside, "rope_type", type, &type));
  c->position = WN_POS_ROPE;
  if (!(partial > 0 && partial <= 1))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"partial_rotary_factor\" is %g; it must be above 0 and at most 1",
                   k->where, partial);
  c->rope_size = (int64_t)((double)c->head_size * partial);
  if (c->rope_size == c->head_size) c->rope_size = 0;
  if (!strcmp(type, "default")) return WN_OK;
  if (strcmp(type, "longrope") != 0 && strcmp(type, "su") != 0 &&
      strcmp(type, "yarn") != 0) /* the names that transformers' class accepts */
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" is of type \"%.60s\"; default and longrope are known",
                   k->where, key, type);
  WN_TRY(wn_hf_int(k, "original_max_position_embeddings", PHI3_CONTEXT, &first));
  WN_TRY(wn_hf_real(&inside, "factor", 0, &factor));
  WN_TRY(wn_hf_real(&inside, "attention_factor", 0, &c->rope_scaling.attention_factor));
  phi3_set_longrope(c, first, factor);
  return WN_OK;
}

static wn_status phi3_read(const struct wn_hf_keys *k, wn_model_config *c) {
  int64_t window;
  WN_TRY(wn_llama_hf_read_sizes(k, 0, 0, c));
  WN_TRY(wn_hf_real(k, "rms_norm_eps", 1e-5, &c->norm_eps));
  if (c->head_size == 0 && c->heads > 0) c->head_size = c->width / c->heads;
  WN_TRY(wn_hf_int(k, "sliding_window", 0, &window));
  if (window < c->context) c->attention.window = window;
  return phi3_read_rope(k, c);
}

/* partial_rotary_factor: rope_size is the integer part of it times head_size. */
static double phi3_partial(const wn_model_config *c) {
  const double D = (double)c->head_size, R = c->rope_size ? (double)c->rope_size : D;
  return floor(D * (R / D)) == R ? R / D : nextafter(R / D, 2);
}

/* export_plan.c writes the lists of divisors. Three fields are for transformers 4. */
static void phi3_write_rope(struct wn_hf_object *o, const wn_model_config *c) {
  struct wn_hf_object scaling = {.json = json_object()};
  const int64_t first = c->rope_scaling.context;
  wn_hf_put(o, "rope_theta", json_real(c->rope_theta));
  wn_hf_put(o, "partial_rotary_factor", json_real(phi3_partial(c)));
  wn_hf_put(&scaling, "type", json_string("longrope"));
  if (c->rope_scaling.factor != (double)c->context / (double)first)
    wn_hf_put(&scaling, "factor", json_real(c->rope_scaling.factor));
  if (c->rope_scaling.attention_factor > 0)
    wn_hf_put(&scaling, "attention_factor", json_real(c->rope_scaling.attention_factor));
  o->failed |= scaling.failed;
  wn_hf_put(o, "rope_scaling", scaling.json);
  wn_hf_put(o, "original_max_position_embeddings", json_integer(first));
}

static void phi3_write(struct wn_hf_object *o, const wn_model_config *c) {
  const bool window = c->attention.window > 0;
  wn_model_config plain = *c;
  plain.rope_scaling.type = WN_ROPE_PLAIN;
  wn_llama_hf_write(o, &plain);
  wn_hf_put(o, "sliding_window", window ? json_integer(c->attention.window) : json_null());
  wn_hf_put(o, "partial_rotary_factor", json_real(phi3_partial(c)));
  wn_hf_put(o, "original_max_position_embeddings", json_integer(c->context));
  wn_hf_put(o, "pad_token_id", json_null()); /* the class's default lies outside small vocabularies */
  if (c->rope_scaling.type == WN_ROPE_LONG) phi3_write_rope(o, c);
}

/* ---- GGUF ---- */

static wn_status phi3_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t first;
  double attention;
  WN_TRY(wn_llama_gguf_read(k, c));
  if (!wn_gguf_keys_has_tensor(k, "rope_factors_long.weight")) return WN_OK;
  WN_TRY(wn_gguf_keys_int(k, "rope.scaling.original_context_length", c->context, &first));
  WN_TRY(wn_gguf_keys_real(k, "rope.scaling.attn_factor", 1, &attention));
  phi3_set_longrope(c, first, 0);
  if (first < 2 || fabs(wn_rotary_magnitude(c) - attention) > 1e-6 * attention)
    c->rope_scaling.attention_factor = attention;
  return WN_OK;
}

static void phi3_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_llama_gguf_write(out, c);
  if (c->rope_scaling.type != WN_ROPE_LONG) return;
  wn_gguf_out_int(out, "rope.scaling.original_context_length", c->rope_scaling.context);
  wn_gguf_out_real(out, "rope.scaling.attn_factor", wn_rotary_magnitude(c));
}

/* ---- limits ---- */

static bool phi3_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_ROPE && !c->qk_norm && !c->qkv_bias && !c->out_bias && wn_llama_turns_as_phi3(c);
}

static const char *phi3_lacks(const wn_model_config *c, enum wn_model_form form) {
  wn_model_config whole = *c;
  whole.rope_size = 0;
  if (c->rope_scaling.type != WN_ROPE_PLAIN && c->rope_scaling.type != WN_ROPE_LONG && form == WN_FORM_HF)
    return "\"rope_size\" with a \"rope_scaling\" other than longrope";
  if (strchr(c->attention.window_layers, '0')) return "\"attention.window_layers\" with longrope or \"rope_size\"";
  if (c->width % c->heads != 0 && form == WN_FORM_HF) return "a \"width\" that is no multiple of \"heads\"";
  if (c->head_size * c->heads != c->width && form == WN_FORM_GGUF)
    return "a \"head_size\" other than width/heads with longrope or \"rope_size\"";
  return wn_llama_lacks(&whole, form);
}

static const char *const phi3_keys[] = {"position", "rope_scaling", "rope_size", NULL};

const struct wn_family wn_family_phi3 = {
    .hf = WN_FAMILY_HF("phi3", "Phi3ForCausalLM", phi3, &phi3_hf_names),
    .gguf = WN_FAMILY_GGUF("phi3", HALVES, phi3_gguf_read, phi3_gguf_write, &phi3_gguf_names),
    .is = phi3_is,
    .keys = phi3_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = phi3_lacks,
};
