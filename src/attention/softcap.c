/* Soft-capping of attention logits: Gemma 2, arXiv 2408.00118, section 2 (after Bello et al. 2016):
 *   L = cap tanh(L / cap),   dL = (1 - (L_capped / cap)^2) dL_capped
 * so that every logit lies in (-cap, cap), also those by which a head selects. Cost: one tanh per pair, about twenty
 * operations. tanh is computed as in Cephes: an odd polynomial below 0.625, 1 - 2 / (exp(2x) + 1) above. */
#include "attention/registry.h"
#include "base/error.h"
#include "ops/terms.h"

#include <math.h>

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

/* exp(x) for 0 <= x <= 20. */
static inline __attribute__((always_inline)) float softcap_exp(float x) {
  const float round = 12582912.0f, k = x * 1.44269504f + round - round;
  const float r = x - k * 0.693359375f + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const union {
    uint32_t bits;
    float value;
  } power = {.bits = (uint32_t)((int32_t)k + 127) << 23};
  return p * power.value;
}

static inline __attribute__((always_inline)) float softcap_tanh(float x) {
  const float size = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (softcap_exp(2.0f * (size < 10.0f ? size : 10.0f)) + 1.0f);
  return size < 0.625f ? near : copysignf(far, x);
}

/* number[0]: cap. */
WN_SCORE_BODY softcap_map(const struct wn_score_map *map, const struct wn_score_segment *s, float *L) {
  const float cap = (float)map->number[0], inverse = (float)(1 / map->number[0]);
  const int32_t n = (int32_t)s->n;
#pragma omp simd
  for (int32_t i = 0; i < n; i++) L[i] = cap * softcap_tanh(L[i] * inverse);
}
WN_SCORE_FORWARD(softcap_map)

WN_SCORE_BODY softcap_slope(const struct wn_score_map *map, const struct wn_score_segment *s, const float *y,
                            float *G) {
  const float inverse = (float)(1 / map->number[0]);
  const int32_t n = (int32_t)s->n;
#pragma omp simd
  for (int32_t i = 0; i < n; i++) G[i] *= 1.0f - y[i] * inverse * (y[i] * inverse);
}
WN_SCORE_BACKWARD(softcap_slope)

static void softcap_map_double(const struct wn_score_map *map, const struct wn_score_segment *s, double *L) {
  const double cap = map->number[0];
  for (int64_t i = 0; i < s->n; i++) L[i] = cap * tanh(L[i] / cap);
}

static void softcap_slope_double(const struct wn_score_map *map, const struct wn_score_segment *s, const double *y,
                                 double *G) {
  for (int64_t i = 0; i < s->n; i++) G[i] *= 1 - y[i] / map->number[0] * (y[i] / map->number[0]);
}

static const struct wn_score_kind softcap_kind = {
    .name = "softcap",
    .traits = WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_LOGIT,
    .forward_double = softcap_map_double,
    .backward_double = softcap_slope_double,
    .forward_float = {WN_SCORE_SLOTS(softcap_map)},
    .backward_float = {WN_SCORE_SLOTS(softcap_slope)},
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
    .fields = softcap_fields,
    .field_count = sizeof softcap_fields / sizeof *softcap_fields,
    .settings = sizeof(struct softcap_settings),
    .is_enabled = softcap_is_enabled,
    .check = softcap_check,
    .fill = softcap_fill,
    .cases = softcap_cases,
};
