/* Token omission via attention (Oren et al. 2024, arXiv 2401.06104, section 3.2): the token to which the last row gives
 * the smallest weight, averaged over the heads, is evicted. */
#include "kv/policy.h"

static void tova_rule(const wn_budgets *budgets, struct wn_evict_rule *out) {
  (void)budgets;
  out->by = WN_EVICT_VALUES, out->sign = -1;
}

static int64_t tova_one(const wn_budgets *budgets) {
  (void)budgets;
  return 1;
}

/* A compression keeps the last row's own token; while tokens go one by one it is the one that comes. */
static int64_t tova_recent(const wn_budgets *budgets, int64_t K) {
  (void)budgets, (void)K;
  return 1;
}

const struct wn_policy_row wn_policy_tova = {
    .info = {.name = "tova",
             .summary = "evicts the token with the least attention from the last row (Oren et al. 2024)",
             .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .recent = tova_recent,
    .rule = tova_rule,
    .notes = tova_one,
    .change = WN_NOTES_RING,
    .rows = tova_one,
};
