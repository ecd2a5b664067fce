/* Heavy hitters (Zhang et al. 2023, arXiv 2306.14048, Algorithm 1): the token with the smallest attention sum over all
 * rows so far is evicted. Of a budget of K the last floor(recent*K) tokens are protected, the new one among them. */
#include "kv/policy.h"

#include <math.h>

static int64_t h2o_recent(const wn_budgets *budgets, int64_t K) {
  return (int64_t)floor(budgets->recent * (double)K);
}

static void h2o_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  wn_policy_read(h->notes, h->dtype, first, n, -1, out);
}

static int64_t h2o_notes(const wn_budgets *budgets) {
  (void)budgets;
  return 1;
}

static void h2o_follow(const struct wn_policy_notes *n) {
  if (n->dtype == WN_F64)
    for (int64_t j = 0; j < n->count; j++) ((double *)n->notes)[j] += ((const double *)n->sums)[j];
  else
    for (int64_t j = 0; j < n->count; j++) ((float *)n->notes)[j] += ((const float *)n->sums)[j];
}

static void h2o_init(wn_budgets *budgets) {
  budgets->recent = 0.5;
}

static const struct wn_field h2o_fields[] = {
    {"recent", WN_FIELD_DOUBLE, offsetof(wn_budgets, recent), 0, 1, NULL,
     "h2o: the part of a budget for the most recent tokens"},
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
    .score = h2o_score,
    .notes = h2o_notes,
    .follow = h2o_follow,
};
