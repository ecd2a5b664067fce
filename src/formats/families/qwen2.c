/* Qwen2 and Qwen2.5: Llama's shape with biases on q, k and v, and windows in some layers. */
#include "formats/families/llama_shape.h"

static wn_status qwen2_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, -1, 0, c));
  c->qkv_bias = true;
  return wn_qwen_hf_read_windows(k, c);
}

static void qwen2_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_qwen_hf_write_windows(o, c);
}

static bool qwen2_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_ROPE && c->qkv_bias && !c->out_bias && !c->qk_norm;
}

static const char *qwen2_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  return what ? what : wn_qwen2_gguf_lacks(c, form);
}

const struct wn_family wn_family_qwen2 = {
    .hf = WN_FAMILY_HF("qwen2", "Qwen2ForCausalLM", qwen2, &wn_llama_hf_names),
    .gguf = WN_FAMILY_GGUF("qwen2", HALVES, wn_llama_gguf_read, wn_llama_gguf_write, &wn_llama_gguf_names),
    .is = qwen2_is,
    .keys = wn_llama_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = qwen2_lacks,
};
