/* The mechanism of own_bias.h. A test that sets wn_mechanism_of_test to it has it among the mechanisms, alone and with
 * each other: no file under src/ knows it. */
#ifndef TESTS_OWN_TERM_H
#define TESTS_OWN_TERM_H

#include "own_bias.h"
#include "own_mechanism.h"
#include "ops/terms.h"

WN_SCORE_BIAS(own_bias)

static struct wn_score_kind own_bias_kind = {
    .name = "a bias of the test",
    .traits = WN_TRAIT_HALF | WN_TRAIT_BACKWARD,
    .values = own_bias_values,
    .slope = own_bias_slope,
    .reach = own_bias_reach,
};
static void own_bias_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                          struct wn_attention *out) {
  (void)config, (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &own_bias_kind, .n = 2, .stride = out->H};
}
static int own_bias_shape(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c;
  shape[0] = 2, shape[1] = d->H;
  return 2;
}
static const struct wn_mechanism_array own_bias_arrays[] = {
    {.name = "own",
     .role = WN_ARRAY_PARAMETER,
     .param = "attn.own_bias",
     .shape = own_bias_shape,
     .array = WN_ARRAY_AT(bias), /* that of position biases, which the case does not have */
     .array_gradient = WN_ARRAY_AT(dbias),
     .map = &own_bias_kind,
     .init_std = 0.5},
};
static const struct wn_field own_bias_field = OWN_FIELD("own");
static const char *const own_bias_cases[] = {"{\"own\":true}", NULL};
static const struct wn_mechanism own_term = {
    .name = "own",
    .summary = "a mechanism of the test",
    .score = &own_bias_kind,
    .fields = &own_bias_field,
    .field_count = 1,
    .settings = sizeof(struct own_settings),
    .is_enabled = own_is_enabled,
    .fill = own_bias_fill,
    .arrays = own_bias_arrays,
    .array_count = 1,
    .cases = own_bias_cases,
};

#endif
