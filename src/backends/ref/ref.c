/* The reference backend's table. */
#include "backends/ref/ref.h"
#include "ops/terms.h"

/* Terms of attention: all. */
enum {
  REF_SERVED = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN |
               WN_TERM_RELATIVE | WN_TERM_SINKS | WN_TERM_THRESHOLD | WN_TERM_EXCLUSIVE | WN_TERM_GATE |
               WN_TERM_DROPOUT | WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS |
               WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS | WN_TERM_LOOK | WN_TERM_OPEN | WN_TERM_CONSTANT_KEYS |
               WN_TERM_SOME_HEADS | WN_TERM_HALF | WN_TERM_BLOCKS | WN_TERM_BF16 | WN_TERM_SCORE_MAP | WN_TERM_KEYED
};

static const struct wn_backend table = {
    .name = "ref",
    .memory = &wn_host_memory,
    .doubles = true,
    .attention_served = {.forward = REF_SERVED,
                         .row = REF_SERVED,
                         .backward = REF_SERVED & (WN_TERMS_BACKWARD | WN_TERM_SCORE_MAP)},
    .linear_forward = wn_ref_linear_forward,
    .linear_backward = wn_ref_linear_backward,
    .embedding_forward = wn_ref_embedding_forward,
    .embedding_backward = wn_ref_embedding_backward,
    .embedding_scratch = wn_ref_embedding_scratch,
    .norm_forward = wn_ref_norm_forward,
    .norm_backward = wn_ref_norm_backward,
    .rope_forward = wn_ref_rope_forward,
    .rope_backward = wn_ref_rope_backward,
    .act_forward = wn_ref_act_forward,
    .act_backward = wn_ref_act_backward,
    .experts_forward = wn_ref_experts_forward,
    .experts_backward = wn_ref_experts_backward,
    .experts_scratch = wn_ref_experts_scratch,
    .dropout_forward = wn_ref_dropout_forward,
    .noise_forward = wn_ref_noise_forward,
    .add_forward = wn_ref_add_forward,
    .softcap_forward = wn_ref_softcap_forward,
    .scale_forward = wn_ref_scale_forward,
    .cross_entropy_forward = wn_ref_cross_entropy_forward,
    .attention_sums_forward = wn_ref_attention_sums_forward,
    .adamw_forward = wn_ref_adamw_forward,
    .adagrad_forward = wn_ref_adagrad_forward,
    .sumsq_forward = wn_ref_sumsq_forward,
    .mix_forward = wn_ref_mix_forward,
    .clamp_forward = wn_ref_clamp_forward,
    .convert_forward = wn_ref_convert_forward,
    .gather_forward = wn_ref_gather_forward,
    .sigmoid_forward = wn_ref_sigmoid_forward,
    .sigmoid_backward = wn_ref_sigmoid_backward,
    .silu_forward = wn_ref_silu_forward,
    .silu_backward = wn_ref_silu_backward,
    .loss_sums_forward = wn_ref_loss_sums_forward,
    .span_sum_forward = wn_ref_span_sum_forward,
    .span_sum_backward = wn_ref_span_sum_backward,
    .memory_loss_forward = wn_ref_memory_loss_forward,
    .memory_loss_backward = wn_ref_memory_loss_backward,
    .gate_share_forward = wn_ref_gate_share_forward,
    .gate_share_backward = wn_ref_gate_share_backward,
    .adjust_forward = wn_ref_adjust_forward,
    .sample_forward = wn_ref_sample_forward,
    .evict_forward = wn_ref_evict_forward,
    .evictions_forward = wn_ref_evictions_forward,
    .evictions_scratch = wn_ref_evictions_scratch,
    .attention_forward = wn_ref_attention_forward,
    .attention_backward = wn_ref_attention_backward,
    .attention_scratch = wn_ref_attention_scratch,
};

const struct wn_backend *wn_backend_ref(void) {
  return &table;
}

const struct wn_backend *wn_backend_ref_for(enum wn_isa isa) {
  (void)isa;
  return &table;
}
