/* Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671, section 2.2.2): biases on q, k and v, experts weighted by the router's
 * probabilities, and a shared expert with a gate of its own. */
#include "formats/families/moe_shape.h"

static wn_status qwen2_moe_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, -1, 0, c));
  WN_TRY(wn_qwen_moe_hf_read(k, c));
  WN_TRY(wn_hf_flag(k, "qkv_bias", true, &c->qkv_bias));
  if (!c->qkv_bias)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"qkv_bias\" is false; qwen2_moe is supported with them", k->where);
  c->experts.shared_gate = true;
  return wn_hf_count(k, "shared_expert_intermediate_size", &c->experts.shared_width);
}

static void qwen2_moe_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_qwen_moe_hf_write(o, c);
  wn_hf_put(o, "qkv_bias", json_true());
  wn_hf_put(o, "shared_expert_intermediate_size", json_integer(c->experts.shared_width));
}

static wn_status qwen2_moe_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_gguf_read(k, c));
  WN_TRY(wn_llama_gguf_read_experts(k, false, c));
  c->experts.shared_gate = true;
  return wn_gguf_keys_int(k, "expert_shared_feed_forward_length", -1, &c->experts.shared_width);
}

static void qwen2_moe_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_llama_gguf_write(out, c);
  wn_llama_gguf_write_experts(out, c);
  wn_gguf_out_int(out, "expert_feed_forward_length", c->ffn_width);
  wn_gguf_out_int(out, "expert_shared_feed_forward_length", c->experts.shared_width);
}

static bool qwen2_moe_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_ROPE && c->qkv_bias && !c->out_bias && !c->qk_norm && c->experts.count > 0;
}

static const char *qwen2_moe_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (c->attention.window > 0) return "\"attention.window\" with \"experts\" and \"qkv_bias\"";
  if (!c->experts.shared_gate) return "\"experts\" with \"qkv_bias\" but without \"experts.shared_gate\"";
  if (form == WN_FORM_HF) return NULL;
  if (c->tied)
    return "\"tied\": true with \"experts\" and \"qkv_bias\""; /* this class cannot tie the output to the embedding */
  return c->experts.normalize ? "\"experts.normalize\" with \"qkv_bias\"" : wn_qwen2_gguf_lacks(c, form);
}

static const char *const qwen2_moe_gguf_keys[] = {"expert_count", "expert_feed_forward_length",
                                                  "expert_shared_feed_forward_length", NULL};

const struct wn_family wn_family_qwen2_moe = {
    .hf =
        WN_FAMILY_HF("qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe, &wn_qwen_moe_hf_names, .keys = wn_qwen_moe_hf_keys),
    .gguf = WN_FAMILY_GGUF("qwen2moe", HALVES, qwen2_moe_gguf_read, qwen2_moe_gguf_write, &wn_llama_gguf_names,
                           .keys = qwen2_moe_gguf_keys),
    .is = qwen2_moe_is,
    .keys = wn_moe_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = qwen2_moe_lacks,
};
