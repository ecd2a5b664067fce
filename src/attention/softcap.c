/* Soft-capping (ops/term/softcap.h): a mechanism that is a curve of the logits. */
#include "attention/registry.h"
#include "base/error.h"
#include "ops/term/softcap.h"
#include "ops/terms.h"

struct softcap_settings {
  double cap;
};

static const struct wn_field softcap_fields[] = {
    WN_KEY("softcap.cap", DOUBLE, offsetof(struct softcap_settings, cap),
           "attention logits L become cap*tanh(L/cap); 0: off", .min = 0, .max = 1e9),
};

WN_MECHANISM_SETTINGS(softcap)

static bool softcap_is_enabled(const wn_attention_config *config) {
  return softcap_of(config)->cap > 0;
}

static wn_status softcap_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                               const struct wn_attention_shape *shape) {
  (void)shape;
  const double cap = softcap_of(config)->cap;
  if (cap == 0 || cap >= WN_SOFTCAP_LEAST) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "%s: softcap.cap is %g; expected 0 or at least %g", where, cap, WN_SOFTCAP_LEAST);
}

WN_SCORE_CURVE(softcap)

static const struct wn_score_kind softcap_kind = {
    .name = "softcap",
    .id = WN_SCORE_SOFTCAP,
    .traits = WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_LOGIT,
    WN_SCORE_CURVE_OF(softcap),
};

static void softcap_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                         struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &softcap_kind, .number = {softcap_of(config)->cap}};
}

static const char *const softcap_cases[] = {
    "{\"softcap\":{\"cap\":2}}",
    "{\"softcap\":{\"cap\":50}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_softcap = {
    .name = "softcap",
    .summary = "soft-capped logits (Gemma 2, 2024)",
    .score = &softcap_kind,
    WN_MECHANISM_TABLE(field, softcap_fields),
    .settings = sizeof(struct softcap_settings),
    .is_enabled = softcap_is_enabled,
    .check = softcap_check,
    .fill = softcap_fill,
    .cases = softcap_cases,
};
