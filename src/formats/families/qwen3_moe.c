/* Qwen3-MoE (arXiv 2505.09388, section 2): a norm over each head of q and k, experts without a shared one. llama.cpp
 * always scales their weights to add up to 1; transformers does if "norm_topk_prob" is true. */
#include "formats/families/moe_shape.h"

static wn_status qwen3_moe_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, -1, 0, c));
  WN_TRY(wn_qwen_moe_hf_read(k, c));
  c->qk_norm = true;
  return wn_hf_not(k, "attention_bias", "with experts it is not supported");
}

static void qwen3_moe_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_qwen_moe_hf_write(o, c);
  wn_hf_put(o, "attention_bias", json_false());
}

static wn_status qwen3_moe_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  c->qk_norm = true;
  WN_TRY(wn_llama_gguf_read(k, c));
  return wn_llama_gguf_read_experts(k, true, c);
}

static void qwen3_moe_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_llama_gguf_write(out, c);
  wn_llama_gguf_write_experts(out, c);
  wn_gguf_out_int(out, "expert_feed_forward_length", c->ffn_width);
}

static bool qwen3_moe_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_ROPE && c->qk_norm && c->experts.count > 0;
}

static const char *qwen3_moe_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (c->attention.window > 0) return "\"attention.window\" with \"experts\" and \"qk_norm\"";
  if (c->experts.shared_width > 0) return "\"experts.shared_width\" with \"qk_norm\"";
  return !c->experts.normalize && form == WN_FORM_GGUF ? "\"experts.normalize\": false with \"qk_norm\"" : NULL;
}

static const char *const qwen3_moe_gguf_keys[] = {"expert_count", "expert_feed_forward_length", NULL};

const struct wn_family wn_family_qwen3_moe = {
    .hf =
        WN_FAMILY_HF("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe, &wn_qwen_moe_hf_names, .keys = wn_qwen_moe_hf_keys),
    .gguf = WN_FAMILY_GGUF("qwen3moe", HALVES, qwen3_moe_gguf_read, qwen3_moe_gguf_write, &wn_llama_gguf_names,
                           .keys = qwen3_moe_gguf_keys),
    .is = qwen3_moe_is,
    .keys = wn_moe_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = qwen3_moe_lacks,
};
