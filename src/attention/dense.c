/* Dense causal attention: the loop without terms. Its choices are the scale and dropout on the weights. */
#include "attention/registry.h"

#include <math.h>

static const struct wn_field fields[] = {
    {"scale", WN_FIELD_DOUBLE, offsetof(wn_attention_config, scale), 0, 1e6, NULL,
     "factor on q.k; 0: 1/sqrt(head size)"},
    {"dropout", WN_FIELD_DOUBLE, offsetof(wn_attention_config, dropout), 0, 0.999, NULL,
     "dropout on the attention weights, in training"},
};

static void init(wn_attention_config *config) {
  config->scale = 0;
}

static bool is_enabled(const wn_attention_config *config) {
  (void)config;
  return true;
}

static void fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer;
  out->scale = config->scale > 0 ? config->scale : 1 / sqrt((double)head_size);
  out->dropout.p = config->dropout;
}

static const char *const cases[] = {"{}", "{\"scale\":0.3}", NULL};

const struct wn_mechanism wn_mechanism_dense = {
    .name = "dense",
    .summary = "causal softmax attention (Vaswani et al. 2017)",
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .init = init,
    .is_enabled = is_enabled,
    .fill = fill,
    .cases = cases,
};
