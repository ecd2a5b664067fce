/* Attention sinks and a window (Xiao et al. 2023, arXiv 2309.17453, section 3.2): the first `sinks` tokens and the most
 * recent are kept, and the oldest of the others is evicted. With cache_positions a token's position is its cache
 * position. */
#include "kv/policy.h"

static int64_t streaming_sinks(const wn_budgets *budgets, int64_t K) {
  return budgets->sinks < K - 1 ? budgets->sinks : K - 1;
}

static void streaming_init(wn_budgets *budgets) {
  budgets->sinks = 4;
}

static const struct wn_field streaming_fields[] = {
    WN_KEY("sinks", INT64, offsetof(wn_budgets, sinks), "streaming: first tokens that are never evicted", .min = 0,
           .max = 1 << 20),
    WN_KEY("cache_positions", BOOL, offsetof(wn_budgets, cache_positions),
           "streaming: a token's position is its cache position"),
};

const struct wn_policy_row wn_policy_streaming = {
    .info = {.name = "streaming",
             .summary = "keeps the first and the most recent tokens (Xiao et al. 2023)",
             .cache_positions = true},
    .fields = streaming_fields,
    .field_count = 2,
    .init = streaming_init,
    .sinks = streaming_sinks,
    .by_position = true,
};
