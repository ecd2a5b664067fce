/* Softmax off by one: Miller 2023, "Attention is off by one" (evanmiller.org/attention-is-off-by-one.html).
 *   W[h,i,j] = exp(A[h,i,j]) / (1 + sum_j exp(A[h,i,j]))
 * so that a head with nothing to say can say nothing: its weights may sum to less than 1. The 1 is the weight of a key
 * of zeros with a value of zeros. The operation gets it so: as a sink that is not learned, with the code of sinks for
 * forward, backward, decoding and budgets. Its cost is that of a sink. */
#include "attention/registry.h"
#include "base/error.h"
#include "ops/terms.h"

struct off_by_one_settings {
  bool enabled;
};

WN_MECHANISM_SETTINGS(off_by_one)

/* The largest key of zeros, in elements of all key-value heads. The zeros serve as key and value in both precisions and
 * are never written. */
enum { OFF_BY_ONE_MOST = 1 << 18 };
static double off_by_one_zeros[OFF_BY_ONE_MOST];

static const struct wn_field off_by_one_fields[] = {
    WN_KEY("off_by_one.enabled", BOOL, offsetof(struct off_by_one_settings, enabled),
           "1 is added to the softmax's denominator, so that a head may attend to nothing"),
};

static bool off_by_one_is_enabled(const wn_attention_config *config) {
  return off_by_one_of(config)->enabled;
}

static wn_status off_by_one_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                  const struct wn_attention_shape *shape) {
  if (!off_by_one_is_enabled(config)) return WN_OK;
  if (config->sinks > 0)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: off_by_one and sinks (%lld) exclude each other: each is where unused weight goes", where,
                   (long long)config->sinks);
  if (shape->kv_heads * shape->head_size > OFF_BY_ONE_MOST)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: off_by_one with %lld key-value heads of %lld; at most %d elements in all",
                   where, (long long)shape->kv_heads, (long long)shape->head_size, OFF_BY_ONE_MOST);
  return WN_OK;
}

static void off_by_one_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                            struct wn_attention *out) {
  (void)config, (void)layer, (void)head_size;
  out->sinks.n = 1;
  out->sinks.k = out->sinks.v = off_by_one_zeros;
}

static const char *const off_by_one_cases[] = {
    "{\"off_by_one\":true}",
    "{\"off_by_one\":true,\"selective\":{\"mem\":{}}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_off_by_one = {
    .name = "off_by_one",
    .summary = "softmax off by one (Miller 2023)",
    .terms = WN_TERM_SINKS,
    WN_MECHANISM_TABLE(field, off_by_one_fields),
    .settings = sizeof(struct off_by_one_settings),
    .is_enabled = off_by_one_is_enabled,
    .check = off_by_one_check,
    .fill = off_by_one_fill,
    .cases = off_by_one_cases,
};
