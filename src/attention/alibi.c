/* ALiBi, attention with linear biases: Press, Smith, Lewis 2022, arXiv 2108.12409, section 3. A head's logits fall with
 * the distance, by a slope of the head that is not learned. The model needs no other positions.
 *   L[h,i,j] = scale * q[h,i] . k[g,j] - slope[h] (i - j),   slope[h] = 2^(-max_bias (h+1) / H),  max_bias 8
 * where H is a power of two. Otherwise, as in the authors' code, let n be the next smaller power of two: the first n
 * heads have the slopes of n heads, the rest have slopes 0, 2, 4, ... of 2n heads. Cost: one operation per pair. */
#include "attention/registry.h"
#include "ops/terms.h"

#include <math.h>

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
  struct alibi_settings *s = wn_mechanism_settings_of(&wn_mechanism_alibi, config);
  s->max_bias = 8;
}

static bool alibi_is_enabled(const wn_attention_config *config) {
  return alibi_of(config)->enabled;
}

/* number[0]: max_bias, number[1]: H. */
static double alibi_slope(const struct wn_score_map *map, int64_t head) {
  const int64_t heads = (int64_t)map->number[1];
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  if (head >= n) head = 2 * (head - n), n *= 2;
  return exp2(-map->number[0] * (double)(head + 1) / (double)n);
}

WN_SCORE_BODY alibi_add(const struct wn_score_map *map, const struct wn_score_segment *s, float *L) {
  const float slope = (float)alibi_slope(map, s->head);
  const int32_t nearest = (int32_t)(s->position - s->first), position = (int32_t)s->position;
  const int32_t *at = s->at;
  if (at)
    for (int32_t i = 0; i < (int32_t)s->n; i++) L[i] -= slope * (float)(position - at[i]);
  else
    for (int32_t i = 0; i < (int32_t)s->n; i++) L[i] -= slope * (float)(nearest - i);
}
WN_SCORE_FORWARD(alibi_add)

static void alibi_add_double(const struct wn_score_map *map, const struct wn_score_segment *s, double *L) {
  const double slope = alibi_slope(map, s->head);
  for (int64_t i = 0; i < s->n; i++) L[i] -= slope * (double)(s->position - (s->at ? s->at[i] : s->first + i));
}

static const struct wn_score_kind alibi_kind = {
    .name = "alibi",
    .traits = WN_TRAIT_HALF | WN_TRAIT_BACKWARD,
    .forward_double = alibi_add_double,
    .forward_float = {WN_SCORE_SLOTS(alibi_add)},
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
    .fields = alibi_fields,
    .field_count = sizeof alibi_fields / sizeof *alibi_fields,
    .settings = sizeof(struct alibi_settings),
    .init = alibi_init,
    .is_enabled = alibi_is_enabled,
    .fill = alibi_fill,
    .cases = alibi_cases,
};
