/* What families of Llama's shape share: RMSNorm before the branches, SwiGLU, rotary positions. They differ in biases on
 * q, k and v (Qwen2), QK-norm (Qwen3) and windows (Mistral, Qwen). GGUF names tensors alike in all families but GPT-2
 * and Phi-3, so one table has the names of all. */
#ifndef WN_FORMATS_LLAMA_SHAPE_H
#define WN_FORMATS_LLAMA_SHAPE_H

#include "formats/families.h"

extern const struct wn_names wn_llama_hf_names, wn_llama_gguf_names;
/* For wn_family: keys of winnow's config.json, QK-norm and biases included, and mechanisms. */
extern const char *const wn_llama_keys[], *const wn_llama_mechanisms[];

/* Reads sizes (wn_hf_sizes), norm, activation and rotary positions. */
wn_status wn_llama_hf_read(const struct wn_hf_keys *keys, int64_t kv_heads, int64_t head_size, wn_model_config *config);
/* Biases on all projections ("attention_bias" and "mlp_bias"), on those of attention alone, or on none. */
wn_status wn_llama_hf_read_biases(const struct wn_hf_keys *keys, wn_model_config *config);
void wn_llama_hf_write_biases(struct wn_hf_object *object, const wn_model_config *config);
/* The same without the rotary positions. */
wn_status wn_llama_hf_read_sizes(const struct wn_hf_keys *keys, int64_t kv_heads, int64_t head_size,
                                 wn_model_config *config);
/* Writes what these families share; and reads and writes Qwen's keys of windows. */
void wn_llama_hf_write(struct wn_hf_object *object, const wn_model_config *config);
wn_status wn_qwen_hf_read_windows(const struct wn_hf_keys *keys, wn_model_config *config);
void wn_qwen_hf_write_windows(struct wn_hf_object *object, const wn_model_config *config);

/* Gates that were trained beside a Llama or Qwen3 which stays as it is, if the model has some: TRIM-KV's retention
 * gates ("retention_gate"), WG-KV's write gates ("g_expand") and DMS's ("dms_window_size"). Decoding is that model's,
 * and the policy gates evicts as these do. */
wn_status wn_llama_hf_read_gates(const struct wn_hf_keys *keys, wn_model_config *config);

wn_status wn_llama_gguf_read(const struct wn_gguf_keys *keys, wn_model_config *config);
void wn_llama_gguf_write(const struct wn_gguf_out *out, const wn_model_config *config);

/* Can only Phi-3 express the rotary positions: longrope, or a part of each head? */
bool wn_llama_turns_as_phi3(const wn_model_config *config);
/* Experts, and their width if it is not feed_forward_length. normalize: whether the architecture scales their weights
 * to add up to 1. */
wn_status wn_llama_gguf_read_experts(const struct wn_gguf_keys *keys, bool normalize, wn_model_config *config);
void wn_llama_gguf_write_experts(const struct wn_gguf_out *out, const wn_model_config *config);

const char *wn_llama_lacks(const wn_model_config *config, enum wn_model_form form);
/* What llama.cpp's Qwen2 and Qwen2-MoE lack in addition: their attention output projections are [width, width]. */
const char *wn_qwen2_gguf_lacks(const wn_model_config *config, enum wn_model_form form);

#endif
