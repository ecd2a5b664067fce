/* Token omission via attention (Oren et al. 2024, arXiv 2401.06104, section 3.2): the token with the smallest weight
 * from the last row, mean over the heads, is evicted. */
#include "kv/policy.h"

#include <string.h>

static void tova_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  wn_policy_read(h->notes, h->dtype, first, n, -1, out);
}

static int64_t tova_one(const wn_budgets *budgets) {
  (void)budgets;
  return 1;
}

static void tova_follow(const struct wn_policy_notes *n) {
  memcpy(n->notes, n->sums, (size_t)n->count * wn_dtype_size(n->dtype));
}

const struct wn_policy_row wn_policy_tova = {
    .info = {.name = "tova",
             .summary = "evicts the token with the least attention from the last row (Oren et al. 2024)",
             .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .score = tova_score,
    .notes = tova_one,
    .follow = tova_follow,
    .rows = tova_one,
};
