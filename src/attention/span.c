/* Adaptive and dynamic span: Sukhbaatar, Grave, Bojanowski, Joulin, ACL 2019 (section 2.2).
 *   m(x) = clamp((ramp + limit*z - x)/ramp, 0, 1),  W[i,j] = m(i-j) exp(A[i,j]) / sum over j of the same
 * z is one learned ratio per head, between 0 and 1, or z = sigmoid(v.x + b) of each token (dynamic). Keys where m = 0
 * are skipped: what lies beyond a head's span costs nothing. The gradient of z at the ramp's two ends is one-sided:
 * from above, and from below at z = 1, because the clamp to [0,1] can only be left that way (ops/attention.h). */
#include "attention/registry.h"
#include "ops/terms.h"

#define AT(member) offsetof(wn_attention_config, span.member)

static const struct wn_field fields[] = {
    WN_KEY("span.enabled", BOOL, AT(enabled), "each head learns how far back it looks"),
    WN_KEY("span.dynamic", BOOL, AT(dynamic), "spans computed from each token's input"),
    WN_KEY("span.exclude_self", BOOL, AT(exclude_self),
           "a token does not attend to itself (Sukhbaatar et al. 2019, equations 2 and 3)"),
    WN_KEY("span.limit", DOUBLE, AT(limit), "longest span in tokens", .min = 1, .max = 1e9),
    WN_KEY("span.ramp", DOUBLE, AT(ramp), "tokens over which the mask falls from 1 to 0", .min = 1e-3, .max = 1e6),
    WN_KEY("span.init", DOUBLE, AT(init), "initial span as a share of the limit", .min = 0, .max = 1),
    WN_KEY("span.loss", DOUBLE, AT(loss), "coefficient of the mean span, in tokens, in the loss of a layer", .min = 0,
           .max = 1e6),
};

static void span_init(wn_attention_config *config) {
  config->span = (wn_span_config){.limit = 1024, .ramp = 32, .loss = 2e-6};
}

static bool span_is_enabled(const wn_attention_config *config) {
  return config->span.enabled;
}

static void span_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  const wn_span_config *s = &config->span;
  out->span.on = true;
  out->span.dynamic = s->dynamic;
  out->span.exclude_self = s->exclude_self;
  out->span.limit = s->limit;
  out->span.ramp = s->ramp;
}

static bool is_static(const wn_attention_config *c) {
  return !c->span.dynamic;
}
static bool is_dynamic(const wn_attention_config *c) {
  return c->span.dynamic;
}
static int shape_z(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c;
  shape[0] = d->H;
  return 1;
}
static int shape_zt(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c;
  shape[0] = d->B, shape[1] = d->H, shape[2] = d->T;
  return 3;
}
static double initial(const wn_attention_config *c) {
  return c->span.init;
}

static void span_layout(const struct wn_attention_dims *d, struct wn_attention *out) {
  out->span.s_z =
      out->span.dynamic ? (struct wn_stride){.b = d->H * d->T, .t = 1, .h = d->T} : (struct wn_stride){.h = 1};
}

static const struct wn_mechanism_array arrays[] = {
    WN_ARRAY_ROW(PARAMETER, z, span.z, span.dz, shape_z, .param = "attn.span", .present = is_static, .init = initial,
                 .range = WN_RANGE_RATIO, .neutral = 1),
    WN_ARRAY_ROW(INPUT, zt, span.z, span.dz, shape_zt, .present = is_dynamic),
};

static int64_t span_heads(const wn_attention_config *c, const struct wn_attention_dims *d) {
  (void)c;
  return d->H;
}

/* Spans start short: sigmoid(-4) = 0.018 of the limit (Sukhbaatar et al. 2019, section 3). */
static const struct wn_mechanism_input span_inputs[] = {
    {.array = "zt",
     .weight = "attn.span.weight",
     .bias = "attn.span.bias",
     .heads = span_heads,
     .transform = WN_INPUT_SIGMOID,
     .bias_init = -4,
     .bias_neutral = 20, /* sigmoid(20) = 1 - 2e-9 */
     .bias_adapted = 4,  /* 0.98 of the limit */
     .strides = WN_OP_AT(span.s_z)},
};

static const char *const cases[] = {
    "{\"span\":{\"limit\":64,\"ramp\":8}}",
    "{\"span\":{\"limit\":40,\"ramp\":8,\"exclude_self\":true}}",
    "{\"span\":{\"limit\":40,\"ramp\":8,\"dynamic\":true}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_span = {
    .name = "span",
    .summary = "adaptive and dynamic span (Sukhbaatar et al. 2019)",
    .terms = WN_TERM_SPAN,
    WN_MECHANISM_TABLE(field, fields),
    .init = span_init,
    .is_enabled = span_is_enabled,
    .fill = span_fill,
    WN_MECHANISM_TABLE(array, arrays),
    WN_MECHANISM_TABLE(input, span_inputs),
    .layout = span_layout,
    .cases = cases,
    .adapt_key = "span.limit",
};
