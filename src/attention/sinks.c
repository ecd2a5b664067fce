/* Learned sinks: n learned keys and values for each layer and key-value head, which every row sees in addition to its
 * context. They take the weight of a head that has nothing to attend to. No mask, selection or span acts on them. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("sinks", INT64, offsetof(wn_attention_config, sinks), "learned key-value pairs per layer", .min = 0,
           .max = 65536),
};

static bool sinks_is_enabled(const wn_attention_config *config) {
  return config->sinks > 0;
}

static void sinks_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->sinks.n = config->sinks;
}

static int shape(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t out[4]) {
  out[0] = d->Hkv, out[1] = c->sinks, out[2] = d->D;
  return 3;
}

static const struct wn_mechanism_array arrays[] = {
    WN_ARRAY_ROW(PARAMETER, sink_k, sinks.k, sinks.dk, shape, .param = "attn.sink_k", .init_std = 0.02),
    WN_ARRAY_ROW(PARAMETER, sink_v, sinks.v, sinks.dv, shape, .param = "attn.sink_v", .init_std = 0.02),
};

static const char *const cases[] = {"{\"sinks\":3}", "{\"sinks\":1}", NULL};

const struct wn_mechanism wn_mechanism_sinks = {
    .name = "sinks",
    .summary = "learned attention sinks",
    .terms = WN_TERM_SINKS,
    WN_MECHANISM_TABLE(field, fields),
    .is_enabled = sinks_is_enabled,
    .fill = sinks_fill,
    WN_MECHANISM_TABLE(array, arrays),
    .cases = cases,
};
