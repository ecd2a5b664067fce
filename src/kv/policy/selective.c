/* Selective attention's own policy (Leviathan, Kalman, Matias, arXiv 2410.02703, section 4): the token with the
 * largest F is evicted, position 0 only when nothing else is left. */
#include "kv/policy.h"

static int64_t selective_sinks(const wn_budgets *budgets, int64_t K) {
  (void)budgets;
  return K > 1 ? 1 : 0;
}

static void selective_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  wn_policy_read(h->F, h->dtype, first, n, 1, out);
}

const struct wn_policy_row wn_policy_selective = {
    .info = {.name = "selective",
             .summary = "evicts the token with the largest F (arXiv 2410.02703)",
             .per_kv_head = true,
             .selective = true},
    .needs = WN_POLICY_SELECTIONS,
    .sinks = selective_sinks,
    .score = selective_score,
};
