/* Meaningful attention: Fernandez, Unsal, "How Much Attention is 'All You Need'?". Each row keeps the fewest content
 * keys, largest weights first, that together reach the share tau of the weight of all content keys. Control keys are
 * always kept. The kept weights are normalised again. The counts say how many keys a row needs. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("threshold.enabled", BOOL, offsetof(wn_attention_config, threshold.enabled),
           "a row keeps the fewest keys whose attention weights reach tau"),
    WN_KEY("threshold.tau", DOUBLE, offsetof(wn_attention_config, threshold.tau),
           "share of the attention weights on content that is kept", .min = 1e-6, .max = 1),
};

static void threshold_init(wn_attention_config *config) {
  config->threshold.tau = 0.95;
}

static bool threshold_is_enabled(const wn_attention_config *config) {
  return config->threshold.enabled;
}

static void threshold_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                           struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->threshold.on = true;
  out->threshold.tau = config->threshold.tau;
}

static int shape_count(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c;
  shape[0] = d->B, shape[1] = d->H, shape[2] = d->T;
  return 3;
}

static const struct wn_mechanism_array arrays[] = {
    {.name = "count",
     .role = WN_ARRAY_RESULT,
     .shape = shape_count,
     .dtype = WN_I32,
     .array = offsetof(wn_attention_arrays, count),
     .op = offsetof(struct wn_attention, threshold.count)},
};

static const char *const cases[] = {"{\"threshold\":{\"tau\":0.75}}", "{\"threshold\":{\"tau\":0.3}}", NULL};

const struct wn_mechanism wn_mechanism_threshold = {
    .name = "threshold",
    .summary = "meaningful attention (Fernandez, Unsal)",
    .terms = WN_TERM_THRESHOLD,
    WN_MECHANISM_TABLE(field, fields),
    .init = threshold_init,
    .is_enabled = threshold_is_enabled,
    .fill = threshold_fill,
    WN_MECHANISM_TABLE(array, arrays),
    .cases = cases,
};
