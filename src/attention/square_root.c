/* Square-root mask: Fernandez, Unsal, "How Much Attention is 'All You Need'?". A row sees its last `buffer` keys, and
 * further back the keys at distances floor((m/density)^2), m = 1, 2, ..., from the buffer's end: about density*sqrt(T)
 * keys. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("sqrt.enabled", BOOL, offsetof(wn_attention_config, root.enabled),
           "recent keys, then keys at square distances"),
    WN_KEY("sqrt.buffer", INT64, offsetof(wn_attention_config, root.buffer), "recent keys, all seen", .min = 1,
           .max = 1 << 30),
    WN_KEY("sqrt.density", DOUBLE, offsetof(wn_attention_config, root.density), "keys per square distance", .min = 1e-3,
           .max = 1e3),
};

static void square_root_init(wn_attention_config *config) {
  config->root.buffer = 64;
  config->root.density = 1;
}

static bool square_root_is_enabled(const wn_attention_config *config) {
  return config->root.enabled;
}

static void square_root_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                             struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->root.on = true;
  out->root.buffer = config->root.buffer;
  out->root.density = config->root.density;
}

static const char *const cases[] = {"{\"sqrt\":{\"buffer\":10,\"density\":2.0}}",
                                    "{\"sqrt\":{\"buffer\":3,\"density\":0.7}}", NULL};

const struct wn_mechanism wn_mechanism_square_root = {
    .name = "sqrt",
    .summary = "square-root mask (Fernandez, Unsal)",
    .terms = WN_TERM_SQUARE_ROOT,
    WN_MECHANISM_TABLE(field, fields),
    .init = square_root_init,
    .is_enabled = square_root_is_enabled,
    .fill = square_root_fill,
    .cases = cases,
};
