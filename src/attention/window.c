/* A window: in the layers that window_layers names a row sees its last `window` keys, its own included. With "1110"
 * three such layers are followed by one that sees all keys. Keys outside the window cost nothing. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("window", INT64, offsetof(wn_attention_config, window),
           "keys that a row sees, counted back from itself; 0: all", .min = 0, .max = 1 << 30),
    WN_KEY("window_layers", STRING, offsetof(wn_attention_config, window_layers),
           "layers that have the window: a pattern of 1 and 0, repeated over the layers; empty: all", .min = 0,
           .max = 256),
};

static bool window_is_enabled(const wn_attention_config *config) {
  return config->window > 0;
}

static wn_status window_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                              const struct wn_attention_shape *shape) {
  (void)shape;
  return wn_layer_pattern_check(ctx, where, "window_layers", config->window_layers);
}

static void window_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)head_size;
  if (wn_layer_pattern_has(config->window_layers, layer)) out->window = config->window;
}

static const char *const cases[] = {"{\"window\":17}", "{\"window\":1}", NULL};

const struct wn_mechanism wn_mechanism_window = {
    .name = "window",
    .summary = "local attention, alone or alternating with global layers",
    .terms = WN_TERM_WINDOW,
    WN_MECHANISM_TABLE(field, fields),
    .is_enabled = window_is_enabled,
    .check = window_check,
    .fill = window_fill,
    .cases = cases,
};
