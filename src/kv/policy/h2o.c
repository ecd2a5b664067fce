/* Heavy hitters (Zhang et al. 2023, arXiv 2306.14048, Algorithm 1): the token with the smallest attention sum over all
 * rows so far is evicted. The last floor(recent*K) tokens of a budget of K are protected, the new one included. */
#include "kv/policy.h"

#include <math.h>

static int64_t h2o_recent(const wn_budgets *budgets, int64_t K) {
  return (int64_t)floor(budgets->recent * (double)K);
}

static void h2o_rule(const wn_budgets *budgets, struct wn_evict_rule *out) {
  (void)budgets;
  out->by = WN_EVICT_VALUES, out->sign = -1;
}

static int64_t h2o_notes(const wn_budgets *budgets) {
  (void)budgets;
  return 1;
}

static void h2o_init(wn_budgets *budgets) {
  budgets->recent = 0.5;
}

static const struct wn_field h2o_fields[] = {
    WN_KEY("recent", DOUBLE, offsetof(wn_budgets, recent), "h2o: the part of a budget for the most recent tokens",
           .min = 0, .max = 1),
};

const struct wn_policy_row wn_policy_h2o = {
    .info = {.name = "h2o",
             .summary =
                 "evicts the token with the least attention so far, except the most recent ones (Zhang et al. 2023)",
             .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .fields = h2o_fields,
    .field_count = 1,
    .init = h2o_init,
    .recent = h2o_recent,
    .rule = h2o_rule,
    .notes = h2o_notes,
    .change = WN_NOTES_ADD,
};
