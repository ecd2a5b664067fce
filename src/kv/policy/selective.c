/* Selective attention's own policy (Leviathan, Kalman, Matias, arXiv 2410.02703, section 4): the token with the largest
 * F is evicted; position 0 only when nothing else is left. */
#include "kv/policy.h"

static int64_t selective_sinks(const wn_budgets *budgets, int64_t K) {
  (void)budgets;
  return K > 1 ? 1 : 0;
}

static void selective_rule(const wn_budgets *budgets, struct wn_evict_rule *out) {
  (void)budgets;
  out->by = WN_EVICT_VALUES, out->sign = 1;
}

const struct wn_policy_row wn_policy_selective = {
    .info = {.name = "selective",
             .summary = "evicts the token with the largest F (arXiv 2410.02703)",
             .per_kv_head = true,
             .selective = true},
    .needs = WN_POLICY_SELECTIONS,
    .sinks = selective_sinks,
    .rule = selective_rule,
};
