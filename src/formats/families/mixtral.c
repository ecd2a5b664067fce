/* Mixtral (Jiang et al. 2024, arXiv 2401.04088, section 2.1): Llama's shape with experts whose weights add up to 1. In
 * GGUF it is the llama architecture. */
#include "formats/families/moe_shape.h"

static const struct wn_name mixtral_rows[] = {
    WN_NAME("router.weight", "layers.%lld.block_sparse_moe.gate.weight"),
    WN_NAME("experts.%lld.in.weight", "layers.%lld.block_sparse_moe.experts.%lld.w1.weight",
            "layers.%lld.block_sparse_moe.experts.%lld.w3.weight"),
    WN_NAME("experts.%lld.out.weight", "layers.%lld.block_sparse_moe.experts.%lld.w2.weight"),
};
static const struct wn_names mixtral_names = {
    .title = "Hugging Face Mixtral", .prefix = "model.", WN_NAME_ROWS(mixtral_rows), .base = &wn_llama_hf_names};
static const char *const mixtral_hf_keys[] = {"num_local_experts", NULL};

static wn_status mixtral_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read_sizes(k, -1, 0, c));
  WN_TRY(wn_hf_real(k, "rms_norm_eps", 1e-5, &c->norm_eps)); /* the defaults of transformers' class */
  WN_TRY(wn_hf_rope(k, 1e6, c));
  WN_TRY(wn_hf_int(k, "num_local_experts", 8, &c->experts.count));
  WN_TRY(wn_hf_int(k, "num_experts_per_tok", 2, &c->experts.active));
  c->experts.normalize = true;
  return wn_hf_int(k, "sliding_window", 0, &c->attention.window);
}

static void mixtral_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_hf_put(o, "sliding_window", c->attention.window > 0 ? json_integer(c->attention.window) : json_null());
  wn_hf_put(o, "num_local_experts", json_integer(c->experts.count));
  wn_hf_put(o, "num_experts_per_tok", json_integer(c->experts.active));
  wn_hf_put(o, "router_aux_loss_coef", json_real(c->experts.balance));
}

static bool mixtral_is(const wn_model_config *c, enum wn_model_form form) {
  return form == WN_FORM_HF && c->position == WN_POS_ROPE && !c->qk_norm && !c->qkv_bias && !c->out_bias &&
         c->experts.count > 0;
}

static const char *mixtral_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (!c->experts.normalize) return "\"experts.normalize\": false without \"qkv_bias\" or \"qk_norm\"";
  return c->experts.shared_width > 0 ? "\"experts.shared_width\" without \"qkv_bias\"" : NULL;
}

const struct wn_family wn_family_mixtral = {
    .hf = WN_FAMILY_HF("mixtral", "MixtralForCausalLM", mixtral, &mixtral_names, .keys = mixtral_hf_keys),
    .is = mixtral_is,
    .keys = wn_moe_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = mixtral_lacks,
};
