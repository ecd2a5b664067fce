/* Dense attention: the loop without terms. Its settings are the scale, dropout on the weights, and whether rows see
 * later keys, as an encoder's do (Vaswani et al. 2017, section 3.2.3). Bidirectional attention takes only terms that do
 * not depend on an order of rows (WN_TRAIT_OPEN). */
#include "attention/registry.h"
#include "ops/terms.h"

#include <math.h>

static const struct wn_field fields[] = {
    WN_KEY("scale", DOUBLE, offsetof(wn_attention_config, scale), "factor on q.k; 0: 1/sqrt(head size)", .min = 0,
           .max = 1e6),
    WN_KEY("dropout", DOUBLE, offsetof(wn_attention_config, dropout), "dropout on the attention weights, in training",
           .min = 0, .max = 0.999),
    WN_KEY("bidirectional", BOOL, offsetof(wn_attention_config, bidirectional),
           "rows see later keys too; for winnow op attention, since a model's encoder always is bidirectional"),
};

static bool dense_is_enabled(const wn_attention_config *config) {
  (void)config;
  return true;
}

static void dense_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer;
  out->scale = config->scale > 0 ? config->scale : 1 / sqrt((double)head_size);
  out->dropout.p = config->dropout;
  out->open = config->bidirectional;
}

static const char *const cases[] = {"{}", "{\"scale\":0.3}", NULL};

const struct wn_mechanism wn_mechanism_dense = {
    .name = "dense",
    .summary = "causal softmax attention (Vaswani et al. 2017)",
    .terms = WN_TERM_DROPOUT,
    WN_MECHANISM_TABLE(field, fields),
    .is_enabled = dense_is_enabled,
    .fill = dense_fill,
    .cases = cases,
};
