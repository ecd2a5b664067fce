/* What families with experts in Llama's shape share in Hugging Face folders: Mixtral, Qwen2-MoE and Qwen3-MoE. */
#ifndef WN_FORMATS_MOE_SHAPE_H
#define WN_FORMATS_MOE_SHAPE_H

#include "formats/families/llama_shape.h"

extern const struct wn_names wn_qwen_moe_hf_names;
extern const char *const wn_qwen_moe_hf_keys[]; /* for wn_family.hf */
/* For wn_family: the keys that all three can express. */
extern const char *const wn_moe_keys[];

/* Reads the experts of Qwen's two families, after wn_llama_hf_read: experts in every layer, no windows. */
wn_status wn_qwen_moe_hf_read(const struct wn_hf_keys *keys, wn_model_config *config);
void wn_qwen_moe_hf_write(struct wn_hf_object *object, const wn_model_config *config);

#endif
