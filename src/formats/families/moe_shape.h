/* What families with experts in Llama's shape share in Hugging Face folders: Mixtral, Qwen2-MoE and Qwen3-MoE. */
#ifndef WN_FORMATS_MOE_SHAPE_H
#define WN_FORMATS_MOE_SHAPE_H

#include "formats/families/llama_shape.h"

/* The names that all three share: everything except the feed-forward. */
#define WN_MOE_HF_ROWS                                                                                                 \
  {.ours = "embed.weight", .theirs = {"embed_tokens.weight"}}, {.ours = "final_norm.gain", .theirs = {"norm.weight"}}, \
      {.ours = "output.weight", .theirs = {"=lm_head.weight"}},                                                        \
      {.ours = "norm1.gain", .theirs = {"layers.%lld.input_layernorm.weight"}},                                        \
      {.ours = "attn.qkv.weight",                                                                                      \
       .theirs = {"layers.%lld.self_attn.q_proj.weight", "layers.%lld.self_attn.k_proj.weight",                        \
                  "layers.%lld.self_attn.v_proj.weight"}},                                                             \
      {.ours = "attn.qkv.bias",                                                                                        \
       .theirs = {"layers.%lld.self_attn.q_proj.bias", "layers.%lld.self_attn.k_proj.bias",                            \
                  "layers.%lld.self_attn.v_proj.bias"}},                                                               \
      {.ours = "attn.q_norm.gain", .theirs = {"layers.%lld.self_attn.q_norm.weight"}},                                 \
      {.ours = "attn.k_norm.gain", .theirs = {"layers.%lld.self_attn.k_norm.weight"}},                                 \
      {.ours = "attn.out.weight", .theirs = {"layers.%lld.self_attn.o_proj.weight"}}, {                                \
    .ours = "norm2.gain", .theirs = { "layers.%lld.post_attention_layernorm.weight" }                                  \
  }

extern const struct wn_names wn_qwen_moe_hf_names;
extern const char *const wn_qwen_moe_hf_keys[]; /* for wn_family.hf */
/* For wn_family: the keys that all three can express. */
extern const char *const wn_moe_keys[];

/* Reads the experts of Qwen's two families, after wn_llama_hf_read: experts in every layer, no windows. */
wn_status wn_qwen_moe_hf_read(const struct wn_hf_keys *keys, wn_model_config *config);
void wn_qwen_moe_hf_write(struct wn_hf_object *object, const wn_model_config *config);

#endif
