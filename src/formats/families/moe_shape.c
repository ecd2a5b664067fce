/* Names and keys of Qwen's families with experts, which differ in the shared expert, biases and QK-norm. */
#include "formats/families/moe_shape.h"

static const struct wn_name qwen_rows[] = {
    WN_NAME("router.weight", "layers.%lld.mlp.gate.weight"),
    WN_NAME("experts.%lld.in.weight", "layers.%lld.mlp.experts.%lld.gate_proj.weight",
            "layers.%lld.mlp.experts.%lld.up_proj.weight"),
    WN_NAME("experts.%lld.out.weight", "layers.%lld.mlp.experts.%lld.down_proj.weight"),
    WN_NAME("shared.in.weight", "layers.%lld.mlp.shared_expert.gate_proj.weight",
            "layers.%lld.mlp.shared_expert.up_proj.weight"),
    WN_NAME("shared.out.weight", "layers.%lld.mlp.shared_expert.down_proj.weight"),
    {.ours = "shared.gate.weight", .theirs = {"layers.%lld.mlp.shared_expert_gate.weight"}, .one_row = true},
};
const struct wn_names wn_qwen_moe_hf_names = {
    .title = "Hugging Face Qwen with experts", .prefix = "model.", WN_NAME_ROWS(qwen_rows), .base = &wn_llama_hf_names};
const char *const wn_qwen_moe_hf_keys[] = {"num_experts", "num_local_experts", NULL};
const char *const wn_moe_keys[] = {"position", "rope_scaling", "rope_factors", "rope_size",
                                   "qkv_bias", "qk_norm",      "experts",      NULL};

wn_status wn_qwen_moe_hf_read(const struct wn_hf_keys *k, wn_model_config *c) {
  int64_t step;
  /* transformers 5 writes the second name */
  WN_TRY(wn_hf_count(k, wn_hf_find(k, "num_experts") ? "num_experts" : "num_local_experts", &c->experts.count));
  WN_TRY(wn_hf_count(k, "num_experts_per_tok", &c->experts.active));
  WN_TRY(wn_hf_count(k, "moe_intermediate_size", &c->ffn_width));
  WN_TRY(wn_hf_flag(k, "norm_topk_prob", false, &c->experts.normalize));
  WN_TRY(wn_hf_int(k, "decoder_sparse_step", 1, &step));
  if (step != 1 || json_array_size(json_object_get(k->object, "mlp_only_layers")) > 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"decoder_sparse_step\" is %lld and \"mlp_only_layers\" lists %zu; only experts in every layer "
                   "are supported",
                   k->where, (long long)step, json_array_size(json_object_get(k->object, "mlp_only_layers")));
  return wn_hf_not(k, "use_sliding_window", "with experts it is not supported");
}

void wn_qwen_moe_hf_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_hf_put(o, "moe_intermediate_size", json_integer(c->ffn_width));
  wn_hf_put(o, "num_experts", json_integer(c->experts.count));
  wn_hf_put(o, "num_experts_per_tok", json_integer(c->experts.active));
  wn_hf_put(o, "norm_topk_prob", json_boolean(c->experts.normalize));
  wn_hf_put(o, "router_aux_loss_coef", json_real(c->experts.balance));
  wn_hf_put(o, "decoder_sparse_step", json_integer(1));
  wn_hf_put(o, "mlp_only_layers", json_array());
  wn_hf_put(o, "use_sliding_window", json_false());
}
