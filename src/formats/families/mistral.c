/* Mistral: Llama's shape with a sliding window in every layer. In GGUF it is the llama architecture, without windows.
 */
#include <string.h>

#include "formats/families/llama_shape.h"

static wn_status mistral_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, -1, 0, c));
  return wn_hf_int(k, "sliding_window", json_object_get(k->object, "sliding_window") ? 0 : 4096, &c->attention.window);
}

static void mistral_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_hf_put(o, "sliding_window", json_integer(c->attention.window));
}

static bool mistral_is(const wn_model_config *c, enum wn_model_form form) {
  return form == WN_FORM_HF && c->position == WN_POS_ROPE && !c->qk_norm && !c->qkv_bias && !c->out_bias &&
         c->attention.window > 0 && !wn_llama_turns_as_phi3(c);
}

static const char *mistral_lacks(const wn_model_config *c, enum wn_model_form form) {
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (strchr(c->attention.window_layers, '0')) return "\"attention.window_layers\" without \"qkv_bias\" or \"qk_norm\"";
  return c->bias ? "\"attention.window\" with \"bias\"" : NULL;
}

const struct wn_family wn_family_mistral = {
    .hf = WN_FAMILY_HF("mistral", "MistralForCausalLM", mistral, &wn_llama_hf_names),
    .is = mistral_is,
    .keys = wn_llama_keys,
    .mechanisms = wn_llama_mechanisms,
    .lacks = mistral_lacks,
};
