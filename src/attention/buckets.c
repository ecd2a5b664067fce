/* Position biases: Raffel et al. 2020 (T5), section 2.1. One learned number per head and bucket of distances is added
 * to the logit: L[h,i,j] = scale * q[h,i] . k[g,j] + bias[bucket(i - j)][h]. Each short distance has a bucket; longer
 * ones share buckets on a logarithmic scale up to `farthest`; all beyond share the last (wn_position_bucket in
 * ops/attention.h). One table serves all layers of a stack, as in T5. The bias is part of L and so of the logits by
 * which a head selects. Cost: an addition per pair. */
#include "attention/registry.h"
#include "base/error.h"
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
  config->buckets.enabled = false;
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

static void buckets_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                         struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->bias.n = config->buckets.count;
  out->bias.farthest = config->buckets.farthest;
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
     .op = WN_OP_AT(bias.table),
     .op_gradient = WN_OP_AT(bias.dtable),
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
    .terms = WN_TERM_BIAS,
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .init = buckets_init,
    .is_enabled = buckets_is_enabled,
    .check = buckets_check,
    .fill = buckets_fill,
    .arrays = arrays,
    .array_count = sizeof arrays / sizeof *arrays,
    .cases = cases,
};
