/* Relative positions: Shaw, Uszkoreit, Vaswani 2018, as the adaptive-span models use them (Sukhbaatar et al. 2019,
 * section 2.1, equation 1; section 3: one set for all heads). Each distance x has one learned vector p[x], shared by
 * all heads and layers, which is added to the key in the logit: L = scale * q[i] . (k[j] + p[i-j]). Cost: 2D more
 * operations per pair. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("relative.enabled", BOOL, offsetof(wn_attention_config, relative.enabled),
           "learned vectors for distances, shared by heads and layers"),
    WN_KEY("relative.length", INT64, offsetof(wn_attention_config, relative.length),
           "distances that have a vector; 0: as many as a layer sees", .min = 0, .max = 1 << 24),
};

static bool relative_is_enabled(const wn_attention_config *config) {
  return config->relative.enabled;
}

static void relative_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                          struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->relative.P = config->relative.length;
}

static int shape_p(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  shape[0] = c->relative.length > 0 ? c->relative.length : d->T, shape[1] = d->D;
  return 2;
}

/* The number of rows of p, where the configuration does not give it. */
static void relative_layout(const struct wn_attention_dims *d, struct wn_attention *out) {
  if (out->relative.P == 0) out->relative.P = d->T;
}

static const struct wn_mechanism_array arrays[] = {
    WN_ARRAY_ROW(SHARED, p, relative.p, relative.dp, shape_p, .param = "relative.weight", .init_std = 0.02),
};

static const char *const cases[] = {
    "{\"relative\":true}",
    "{\"relative\":{\"length\":300},\"span\":{\"limit\":64,\"ramp\":8,\"exclude_self\":true}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_relative = {
    .name = "relative",
    .summary = "relative position vectors (Shaw et al. 2018)",
    .terms = WN_TERM_RELATIVE,
    WN_MECHANISM_TABLE(field, fields),
    .is_enabled = relative_is_enabled,
    .fill = relative_fill,
    WN_MECHANISM_TABLE(array, arrays),
    .layout = relative_layout,
    .cases = cases,
};
