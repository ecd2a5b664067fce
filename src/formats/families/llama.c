/* Llama 2 and 3, SmolLM and SmolLM2, and other models of type "llama". In GGUF the rows of q and k are ordered for
 * adjacent rotary pairs, and Mistral and Mixtral are this architecture too. */
#include "formats/families/llama_shape.h"

static wn_status llama_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, 0, 0, c));
  WN_TRY(wn_llama_hf_read_biases(k, c));
  return wn_llama_hf_read_gates(k, c);
}

static void llama_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_llama_hf_write_biases(o, c);
}

static bool llama_is(const wn_model_config *c, enum wn_model_form form) {
  const bool mistral = form == WN_FORM_HF && c->attention.window > 0;
  const bool mixtral = form == WN_FORM_HF && c->experts.count > 0;
  const bool phi3 = wn_llama_turns_as_phi3(c) && c->experts.count == 0; /* Phi-3 has no experts */
  return c->position == WN_POS_ROPE && !c->qk_norm && (!c->qkv_bias || c->out_bias) && !mistral && !mixtral && !phi3;
}

static const char *llama_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (c->experts.count > 0 && !c->experts.normalize) return "\"experts.normalize\": false without \"qkv_bias\"";
  if (c->experts.shared_width > 0) return "\"experts.shared_width\" without \"qkv_bias\"";
  return form == WN_FORM_HF && c->width % c->heads != 0 ? "a \"width\" that is no multiple of \"heads\"" : NULL;
}

static wn_status llama_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_gguf_read(k, c));
  return wn_llama_gguf_read_experts(k, true, c);
}

static void llama_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_llama_gguf_write(out, c);
  if (c->experts.count > 0) wn_llama_gguf_write_experts(out, c);
}

static const char *const llama_gguf_keys[] = {"tensor_data_layout", "expert_count", NULL};
static const char *const llama_keys[] = {"position", "rope_scaling", "rope_factors", "rope_size", "bias",
                                         "qkv_bias", "out_bias",     "qk_norm",      "experts",   NULL};

const struct wn_family wn_family_llama = {
    .hf = WN_FAMILY_HF("llama", "LlamaForCausalLM", llama, &wn_llama_hf_names),
    .gguf = WN_FAMILY_GGUF("llama", ADJACENT, llama_gguf_read, llama_gguf_write, &wn_llama_gguf_names,
                           .keys = llama_gguf_keys, .factors = true),
    .is = llama_is,
    .keys = llama_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = llama_lacks,
};
