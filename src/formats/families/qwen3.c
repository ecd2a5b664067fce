/* Qwen3: Llama's shape with a norm over each head of q and k, and windows in some layers. */
#include "formats/families/llama_shape.h"

static wn_status qwen3_read(const struct wn_hf_keys *k, wn_model_config *c) {
  bool bias;
  WN_TRY(wn_llama_hf_read(k, -1, 128, c));
  WN_TRY(wn_hf_flag(k, "attention_bias", false, &bias));
  c->qkv_bias = c->out_bias = bias;
  c->qk_norm = true;
  WN_TRY(wn_qwen_hf_read_windows(k, c));
  return wn_llama_hf_read_gates(k, c);
}

static void qwen3_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_hf_put(o, "attention_bias", json_boolean(c->out_bias));
  wn_qwen_hf_write_windows(o, c);
}

static wn_status qwen3_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  c->qk_norm = true;
  return wn_llama_gguf_read(k, c);
}

static bool qwen3_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_ROPE && c->qk_norm;
}

const struct wn_family wn_family_qwen3 = {
    .hf = WN_FAMILY_HF("qwen3", "Qwen3ForCausalLM", qwen3, &wn_llama_hf_names),
    .gguf = WN_FAMILY_GGUF("qwen3", HALVES, qwen3_gguf_read, wn_llama_gguf_write, &wn_llama_gguf_names),
    .is = qwen3_is,
    .keys = wn_llama_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = wn_llama_lacks,
};
