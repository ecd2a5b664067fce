/* The CUDA backend's table: every operation has kernels. */
#include "backends/cuda/attention.h"
#include "backends/cuda/cuda.h"

static const struct wn_backend table = {
    .name = "cuda",
    .memory = &wn_cuda_memory,
    .linear_forward = wn_cuda_linear_forward,
    .linear_backward = wn_cuda_linear_backward,
    .linear_scratch = wn_cuda_linear_scratch,
    .embedding_forward = wn_cuda_embedding_forward,
    .embedding_backward = wn_cuda_embedding_backward,
    .embedding_scratch = wn_cuda_embedding_scratch,
    .norm_forward = wn_cuda_norm_forward,
    .norm_backward = wn_cuda_norm_backward,
    .norm_scratch = wn_cuda_norm_scratch,
    .rope_forward = wn_cuda_rope_forward,
    .rope_backward = wn_cuda_rope_backward,
    .act_forward = wn_cuda_act_forward,
    .act_backward = wn_cuda_act_backward,
    .experts_forward = wn_cuda_experts_forward,
    .experts_backward = wn_cuda_experts_backward,
    .experts_scratch = wn_cuda_experts_scratch,
    .dropout_forward = wn_cuda_dropout_forward,
    .add_forward = wn_cuda_add_forward,
    .softcap_forward = wn_cuda_softcap_forward,
    .scale_forward = wn_cuda_scale_forward,
    .cross_entropy_forward = wn_cuda_cross_entropy_forward,
    .attention_sums_forward = wn_cuda_attention_sums_forward,
    .attention_sums_scratch = wn_cuda_attention_sums_scratch,
    .adamw_forward = wn_cuda_adamw_forward,
    .adagrad_forward = wn_cuda_adagrad_forward,
    .sumsq_forward = wn_cuda_sumsq_forward,
    .sumsq_scratch = wn_cuda_sumsq_scratch,
    .mix_forward = wn_cuda_mix_forward,
    .clamp_forward = wn_cuda_clamp_forward,
    .convert_forward = wn_cuda_convert_forward,
    .gather_forward = wn_cuda_gather_forward,
    .sigmoid_forward = wn_cuda_sigmoid_forward,
    .sigmoid_backward = wn_cuda_sigmoid_backward,
    .loss_sums_forward = wn_cuda_loss_sums_forward,
    .span_sum_forward = wn_cuda_span_sum_forward,
    .span_sum_backward = wn_cuda_span_sum_backward,
    .memory_loss_forward = wn_cuda_memory_loss_forward,
    .memory_loss_backward = wn_cuda_memory_loss_backward,
    .attention_served = {WN_CUDA_ATTENTION_FORWARD, WN_CUDA_ATTENTION_FORWARD, WN_CUDA_ATTENTION_SERVED},
    .attention_forward = wn_cuda_attention_forward,
    .attention_backward = wn_cuda_attention_backward,
    .attention_scratch = wn_cuda_attention_scratch,
};

const struct wn_backend *wn_backend_cuda_table(void) {
  return &table;
}
