/* Learned sinks: n learned keys and values for each layer and key-value head, which every row sees in addition to its
 * context. They take the weight of a head that has nothing to attend to. No mask, selection or span acts on them. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("sinks", INT64, offsetof(wn_attention_config, sinks), "learned key-value pairs per layer", .min = 0,
           .max = 65536),
};

static void sinks_init(wn_attention_config *config) {
  config->sinks = 0;
}

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
    {.name = "sink_k",
     .role = WN_ARRAY_PARAMETER,
     .param = "attn.sink_k",
     .shape = shape,
     .array = WN_ARRAY_AT(sink_k),
     .array_gradient = WN_ARRAY_AT(dsink_k),
     .op = WN_OP_AT(sinks.k),
     .op_gradient = WN_OP_AT(sinks.dk),
     .init_std = 0.02},
    {.name = "sink_v",
     .role = WN_ARRAY_PARAMETER,
     .param = "attn.sink_v",
     .shape = shape,
     .array = WN_ARRAY_AT(sink_v),
     .array_gradient = WN_ARRAY_AT(dsink_v),
     .op = WN_OP_AT(sinks.v),
     .op_gradient = WN_OP_AT(sinks.dv),
     .init_std = 0.02},
};

static const char *const cases[] = {"{\"sinks\":3}", "{\"sinks\":1}", NULL};

const struct wn_mechanism wn_mechanism_sinks = {
    .name = "sinks",
    .summary = "learned attention sinks",
    .terms = WN_TERM_SINKS,
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .init = sinks_init,
    .is_enabled = sinks_is_enabled,
    .fill = sinks_fill,
    .arrays = arrays,
    .array_count = sizeof arrays / sizeof *arrays,
    .cases = cases,
};
