/* Gated attention outputs: Qiu et al. 2025, "Gated Attention for Large Language Models", arXiv 2505.06708, section 2.2,
 * gate G1 of the paper (after the attention, before the output projection).
 *   g = sigmoid(x w^T) x: the input of the layer's attention, after its norm
 *   z[h,i] = y[h,i] * g[i,h]
 * "elementwise": a gate for each element of each head, w[H*D,C], the paper's best. "head": one gate for each head,
 * w[H,C]. Gates come from the query token, so nothing is cached. Cost: 2 C H D (or 2 C H) operations per token and a
 * pass over y; training keeps one more copy of y. There is no bias, as in the paper. At w = 0 outputs are halved: a
 * model cannot be adapted so that it starts without effect. */
#include "attention/registry.h"
#include "ops/attention.h"
#include "ops/terms.h"

enum gate_kind { GATE_OFF, GATE_HEAD, GATE_ELEMENTWISE };
struct gate_settings {
  enum gate_kind kind;
};

WN_MECHANISM_SETTINGS(gate)

static const char *const gate_names[] = {"off", "head", "elementwise", NULL};

static const struct wn_field gate_fields[] = {
    WN_KEY("gate", ENUM, offsetof(struct gate_settings, kind),
           "outputs times a sigmoid of the layer's input: one per head, or one per element", .names = gate_names),
};

bool wn_attention_has_gate(const wn_attention_config *config) {
  return gate_of(config)->kind != GATE_OFF;
}

static bool gate_is_enabled(const wn_attention_config *config) {
  return wn_attention_has_gate(config);
}

static bool gate_is_elementwise(const wn_attention_config *config) {
  return gate_of(config)->kind == GATE_ELEMENTWISE;
}

static void gate_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->gate.on = true;
  out->gate.elementwise = gate_is_elementwise(config);
}

static int64_t gate_heads(const wn_attention_config *config, const struct wn_attention_dims *d) {
  (void)config;
  return d->H;
}

static int64_t gate_size(const wn_attention_config *config, const struct wn_attention_dims *d) {
  return gate_is_elementwise(config) ? d->D : 1;
}

static int shape_output_gate(const wn_attention_config *config, const struct wn_attention_dims *d, int64_t shape[4]) {
  shape[0] = d->B, shape[1] = d->T, shape[2] = d->H, shape[3] = d->D;
  return gate_is_elementwise(config) ? 4 : 3;
}

static void gate_layout(const struct wn_attention_dims *d, struct wn_attention *out) {
  const int64_t size = out->gate.elementwise ? d->D : 1;
  out->gate.s_g = (struct wn_stride){.b = d->T * d->H * size, .t = d->H * size, .h = size};
}

static const struct wn_mechanism_array gate_arrays[] = {
    WN_ARRAY_ROW(INPUT, output_gate, gate.g, gate.dg, shape_output_gate, .present = gate_is_enabled),
};

static const struct wn_mechanism_input gate_inputs[] = {
    {.array = "output_gate",
     .weight = "attn.gate.weight",
     .heads = gate_heads,
     .size = gate_size,
     .before_out = true,
     .transform = WN_INPUT_SIGMOID,
     .strides = WN_OP_AT(gate.s_g)},
};

static const char *const gate_cases[] = {
    "{\"gate\":\"elementwise\"}",
    "{\"gate\":\"head\"}",
    "{\"gate\":\"elementwise\",\"exclusive\":{\"gate\":true}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_gate = {
    .name = "gate",
    .summary = "gated attention outputs (Qiu et al. 2025)",
    .terms = WN_TERM_GATE,
    WN_MECHANISM_TABLE(field, gate_fields),
    .settings = sizeof(struct gate_settings),
    .is_enabled = gate_is_enabled,
    .fill = gate_fill,
    WN_MECHANISM_TABLE(array, gate_arrays),
    WN_MECHANISM_TABLE(input, gate_inputs),
    .layout = gate_layout,
    .cases = gate_cases,
};
