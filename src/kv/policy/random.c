/* The uninformed baseline: each token has a random number that depends on the seed, its layer, its group of heads and
 * its position; the token with the highest number is evicted. */
#include "kv/policy.h"

static void random_rule(const wn_budgets *budgets, struct wn_evict_rule *out) {
  out->by = WN_EVICT_RANDOM, out->seed = budgets->seed;
}

static const struct wn_field random_fields[] = {
    WN_KEY("seed", UINT64, offsetof(wn_budgets, seed), "random: the seed", .min = 0, .max = 18446744073709551615.0),
};

const struct wn_policy_row wn_policy_random = {
    .info = {.name = "random", .summary = "evicts a token at random", .per_kv_head = true},
    .fields = random_fields,
    .field_count = 1,
    .rule = random_rule,
    .by_position = true,
};
