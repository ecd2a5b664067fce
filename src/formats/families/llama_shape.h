/* What families of Llama's shape share: RMSNorm before the branches, SwiGLU, rotary positions; biases on q, k and v
 * (Qwen2), QK-norm (Qwen3) and windows (Mistral, Qwen) are where they differ. */
#ifndef WN_FORMATS_LLAMA_SHAPE_H
#define WN_FORMATS_LLAMA_SHAPE_H

#include "formats/families.h"

extern const struct wn_names wn_llama_hf_names, wn_llama_gguf_names;
/* For wn_family: keys of our config.json, with QK-norm and biases, and mechanisms. */
extern const char *const wn_llama_keys[], *const wn_llama_mechanisms[];

/* Sizes, norm, activation and rotary positions. kv_heads: what a missing num_key_value_heads means, negative: it must
 * be there, 0: num_attention_heads. head_size: what a missing head_dim means. */
wn_status wn_llama_hf_read(const struct wn_hf_keys *keys, int64_t kv_heads, int64_t head_size, wn_model_config *config);
/* The same without the rotary positions. */
wn_status wn_llama_hf_read_sizes(const struct wn_hf_keys *keys, int64_t kv_heads, int64_t head_size,
                                 wn_model_config *config);
/* The same, but for what differs; Qwen's keys of windows. */
void wn_llama_hf_write(struct wn_hf_object *object, const wn_model_config *config);
wn_status wn_qwen_hf_read_windows(const struct wn_hf_keys *keys, wn_model_config *config);
void wn_qwen_hf_write_windows(struct wn_hf_object *object, const wn_model_config *config);

wn_status wn_llama_gguf_read(const struct wn_gguf_keys *keys, wn_model_config *config);
void wn_llama_gguf_write(const struct wn_gguf_out *out, const wn_model_config *config);

/* Are its rotary positions of a kind that only Phi-3 has words for: longrope, or a part of each head? */
bool wn_llama_turns_as_phi3(const wn_model_config *config);
/* Experts, and their width where it is not feed_forward_length; normalize: what the architecture does. */
wn_status wn_llama_gguf_read_experts(const struct wn_gguf_keys *keys, bool normalize, wn_model_config *config);
void wn_llama_gguf_write_experts(const struct wn_gguf_out *out, const wn_model_config *config);

const char *wn_llama_lacks(const wn_model_config *config, enum wn_model_form form);
/* What llama.cpp's two Qwen2s lack beside that: their outputs of attention are [width, width]. */
const char *wn_qwen2_gguf_lacks(const wn_model_config *config, enum wn_model_form form);

#endif
