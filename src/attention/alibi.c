/* ALiBi (ops/term/alibi.h): a mechanism that is a bias by distance, without parameters. The model needs no other
 * positions. max_bias is 8 in the paper. */
#include "attention/registry.h"
#include "ops/term/alibi.h"
#include "ops/terms.h"

struct alibi_settings {
  bool enabled;
  double max_bias;
};

WN_MECHANISM_SETTINGS(alibi)

#define ALIBI_AT(member) offsetof(struct alibi_settings, member)

static const struct wn_field alibi_fields[] = {
    WN_KEY("alibi.enabled", BOOL, ALIBI_AT(enabled),
           "ALiBi: logits fall linearly with the distance, with one slope per head"),
    WN_KEY("alibi.max_bias", DOUBLE, ALIBI_AT(max_bias), "the slope of the last head is 2^-max_bias", .min = 1e-3,
           .max = 1e3),
};

static void alibi_init(wn_attention_config *config) {
  alibi_set(config)->max_bias = 8;
}

static bool alibi_is_enabled(const wn_attention_config *config) {
  return alibi_of(config)->enabled;
}

WN_SCORE_BIAS(alibi)

static const struct wn_score_kind alibi_kind = {
    .name = "alibi",
    .id = WN_SCORE_ALIBI,
    .traits = WN_TRAIT_HALF | WN_TRAIT_BACKWARD,
    .values = alibi_values,
};

static void alibi_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] =
      (struct wn_score_map){.kind = &alibi_kind, .number = {alibi_of(config)->max_bias, (double)out->H}};
}

static const char *const alibi_cases[] = {
    "{\"alibi\":true}",
    "{\"alibi\":{\"max_bias\":3}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_alibi = {
    .name = "alibi",
    .summary = "linear biases by distance (Press, Smith, Lewis 2022)",
    .score = &alibi_kind,
    WN_MECHANISM_TABLE(field, alibi_fields),
    .settings = sizeof(struct alibi_settings),
    .init = alibi_init,
    .is_enabled = alibi_is_enabled,
    .fill = alibi_fill,
    .cases = alibi_cases,
};
