/* The uninformed baseline: each token draws a random number from the seed, its layer, its group of heads and its
 * position, and the token with the highest is evicted. */
#include "kv/policy.h"

#include "base/rng.h"

static void random_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  for (int64_t i = 0; i < n; i++)
    out[i] = wn_random_uniform(h->budgets->seed, WN_STREAM_EVICT, (uint64_t)h->layer << 32 | (uint64_t)h->group,
                               (uint64_t)h->at[first + i]);
}

static const struct wn_field random_fields[] = {
    {"seed", WN_FIELD_UINT64, offsetof(wn_budgets, seed), 0, 18446744073709551615.0, NULL, "random: the seed"},
};

const struct wn_policy_row wn_policy_random = {
    .info = {.name = "random", .summary = "evicts a token at random", .per_kv_head = true},
    .fields = random_fields,
    .field_count = 1,
    .score = random_score,
    .by_position = true,
};
