/* The reference backend's table. */
#include "backends/ref/ref.h"
#include "ops/terms.h"

static const struct wn_backend table = {
    .name = "ref",
    .doubles = true,
    .attention_served = {.forward = WN_TERMS_ALL & ~WN_TERM_HALF,
                         .row = WN_TERMS_ALL & ~WN_TERM_HALF,
                         .backward = WN_TERMS_BACKWARD | WN_TERM_SCORE_MAP},
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
    .dropout_forward = wn_ref_dropout_forward,
    .add_forward = wn_ref_add_forward,
    .softcap_forward = wn_ref_softcap_forward,
    .cross_entropy_forward = wn_ref_cross_entropy_forward,
    .attention_sums_forward = wn_ref_attention_sums_forward,
    .adamw_forward = wn_ref_adamw_forward,
    .adagrad_forward = wn_ref_adagrad_forward,
    .sumsq_forward = wn_ref_sumsq_forward,
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
