/* Exclusive self attention: Zhai. A head's output is made orthogonal to the row's own value (of its key-value head),
 * which the residual stream carries anyway:
 *   z = y - gate * (y.v)/|v|^2 v
 *   The optional gate, one number per head, is learned; at 0 outputs stay as they are. Cost: 4D operations per row and
 *   head. */
#include "attention/registry.h"
#include "ops/terms.h"

#define AT(member) offsetof(wn_attention_config, exclusive.member)

static const struct wn_field fields[] = {
    WN_KEY("exclusive.enabled", BOOL, AT(enabled), "outputs orthogonal to the token's own value"),
    WN_KEY("exclusive.gate", BOOL, AT(gate), "a learned factor per head on what is removed"),
    WN_KEY("exclusive.gate_init", DOUBLE, AT(gate_init), "initial value of the gate", .min = -10, .max = 10),
    WN_KEY("exclusive.layers", STRING, AT(layers),
           "layers that have it: a pattern of 1 and 0, repeated over the layers; empty: all", .min = 0, .max = 64),
};

static void exclusive_init(wn_attention_config *config) {
  config->exclusive.gate_init = 1;
}

static bool exclusive_is_enabled(const wn_attention_config *config) {
  return config->exclusive.enabled;
}

static wn_status exclusive_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                 const struct wn_attention_shape *shape) {
  (void)shape;
  return wn_layer_pattern_check(ctx, where, "exclusive.layers", config->exclusive.layers);
}

static void exclusive_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                           struct wn_attention *out) {
  (void)head_size;
  out->exclusive.on = wn_layer_pattern_has(config->exclusive.layers, layer);
}

static bool has_gate(const wn_attention_config *c) {
  return c->exclusive.gate;
}
static int shape_gate(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c;
  shape[0] = d->H;
  return 1;
}
static double exclusive_initial(const wn_attention_config *c) {
  return c->exclusive.gate_init;
}

static const struct wn_mechanism_array arrays[] = {
    WN_ARRAY_ROW(PARAMETER, gate, exclusive.gate, exclusive.dgate, shape_gate, .param = "attn.exclusive_gate",
                 .present = has_gate, .init = exclusive_initial),
};

static const char *const cases[] = {"{\"exclusive\":true}", "{\"exclusive\":{\"gate\":true}}", NULL};

const struct wn_mechanism wn_mechanism_exclusive = {
    .name = "exclusive",
    .summary = "exclusive self attention (Zhai)",
    .terms = WN_TERM_EXCLUSIVE,
    WN_MECHANISM_TABLE(field, fields),
    .init = exclusive_init,
    .is_enabled = exclusive_is_enabled,
    .check = exclusive_check,
    .fill = exclusive_fill,
    WN_MECHANISM_TABLE(array, arrays),
    .cases = cases,
    .adapt_key = "exclusive.gate",
    .adapt_value = "true",
};
