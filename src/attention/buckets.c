/* Position biases (ops/term/buckets.h): a mechanism that is a bias by distance with parameters. One table serves all
 * layers of a stack, as in T5. */
#include "attention/registry.h"
#include "base/error.h"
#include "ops/term/buckets.h"
#include "ops/terms.h"

#define AT(member) offsetof(wn_attention_config, buckets.member)

static const struct wn_field fields[] = {
    WN_KEY("buckets.enabled", BOOL, AT(enabled), "learned position biases per head, shared by the layers"),
    WN_KEY("buckets.count", INT64, AT(count), "buckets of distances; in an encoder half for each direction", .min = 2,
           .max = 1 << 16),
    WN_KEY("buckets.farthest", INT64, AT(farthest), "distances from here on share the last bucket", .min = 2,
           .max = 1 << 24),
};

static void buckets_init(wn_attention_config *config) {
  config->buckets.count = 32;
  config->buckets.farthest = 128;
}

static bool buckets_is_enabled(const wn_attention_config *config) {
  return config->buckets.enabled;
}

/* The logarithmic buckets need room between the exact distances and `farthest`. Bidirectional attention has half of the
 * buckets for each direction. */
static wn_status buckets_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                               const struct wn_attention_shape *shape) {
  (void)shape;
  if (!config->buckets.enabled) return WN_OK;
  if (config->bidirectional && config->buckets.count % 4 != 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: buckets.count is %lld; both ways it must be a multiple of 4", where,
                   (long long)config->buckets.count);
  if (config->buckets.farthest <= config->buckets.count / 2)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: buckets.farthest is %lld; it must be more than half of buckets.count (%lld)", where,
                   (long long)config->buckets.farthest, (long long)config->buckets.count);
  return WN_OK;
}

WN_SCORE_BIAS(buckets)

static const struct wn_score_kind buckets_kind = {
    .name = "position biases",
    .id = WN_SCORE_BUCKETS,
    .traits = WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_BACKWARD,
    .values = buckets_values,
    .slope = buckets_slope,
    .reach = buckets_reach,
};

static void buckets_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                         struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &buckets_kind,
                                                .number = {(double)config->buckets.farthest},
                                                .n = config->buckets.count,
                                                .stride = out->H};
}

static int shape_bias(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  shape[0] = c->buckets.count, shape[1] = d->H;
  return 2;
}

static const struct wn_mechanism_array arrays[] = {
    {.name = "bias",
     .role = WN_ARRAY_SHARED,
     .param = "position_bias.weight",
     .shape = shape_bias,
     .array = WN_ARRAY_AT(bias),
     .array_gradient = WN_ARRAY_AT(dbias),
     .map = &buckets_kind,
     .init_std = 0.02},
};

static const char *const cases[] = {
    "{\"buckets\":{\"count\":8,\"farthest\":12}}",
    "{\"buckets\":true}",
    NULL,
};

const struct wn_mechanism wn_mechanism_buckets = {
    .name = "buckets",
    .summary = "learned position biases (Raffel et al. 2020, T5)",
    .score = &buckets_kind,
    WN_MECHANISM_TABLE(field, fields),
    .init = buckets_init,
    .is_enabled = buckets_is_enabled,
    .check = buckets_check,
    .fill = buckets_fill,
    WN_MECHANISM_TABLE(array, arrays),
    .cases = cases,
};
