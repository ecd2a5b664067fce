/* Votes of the last rows (Li et al. 2024, SnapKV, arXiv 2404.14469, section 4). The token that received the least
 * attention from the last w rows (the paper's observation window) is evicted. Votes are pooled over a token's
 * neighbours in the text, so that neighbouring tokens are kept together. The last min(w, K/2) tokens are protected.
 *
 *   vote[j] = sum over rows i-w..i-1 of the row's attention sum of j
 *   score[j] = - mean or maximum of vote over positions j-r .. j+r (r: neighbours); a position not held votes 0
 *
 * The paper votes once, at the end of the prompt, and then evicts all tokens beyond the budget. Here the observation
 * window moves with every row, and one token is evicted for each that enters. The cache keeps w numbers for each token
 * in a ring: its attention sums in the last w rows. Cost of an eviction: w K additions. */
#include "kv/policy.h"

enum { SNAPKV_ROWS_MAX = 256 };

static int64_t snapkv_recent(const wn_budgets *budgets, int64_t K) {
  return budgets->snapkv.rows < K / 2 ? budgets->snapkv.rows : K / 2;
}

static int64_t snapkv_rows(const wn_budgets *budgets) {
  return budgets->snapkv.rows;
}

static void snapkv_rule(const wn_budgets *budgets, struct wn_evict_rule *out) {
  out->by = WN_EVICT_VOTES;
  out->votes = budgets->snapkv.rows;
  out->neighbours = budgets->snapkv.neighbours;
  out->largest = budgets->snapkv.pool == WN_POOL_MAX;
}

static void snapkv_init(wn_budgets *budgets) {
  budgets->snapkv.rows = 32;
  budgets->snapkv.neighbours = 2;
}

static const char *const snapkv_pools[] = {"mean", "max", NULL};
#define SNAPKV_AT(member) offsetof(wn_budgets, snapkv.member)
static const struct wn_field snapkv_fields[] = {
    WN_KEY("snapkv.rows", INT64, SNAPKV_AT(rows),
           "snapkv: the last rows, which vote; as many recent tokens are protected, at most half of a budget", .min = 1,
           .max = SNAPKV_ROWS_MAX),
    WN_KEY("snapkv.neighbours", INT64, SNAPKV_AT(neighbours),
           "snapkv: votes are pooled over this many positions on each side", .min = 0, .max = WN_EVICT_NEIGHBOURS),
    WN_KEY("snapkv.pool", ENUM, SNAPKV_AT(pool), "snapkv: mean or max of the votes", .names = snapkv_pools),
};

const struct wn_policy_row wn_policy_snapkv = {
    .info =
        {.name = "snapkv",
         .summary =
             "evicts the token with the least attention from the last rows, pooled over neighbours (Li et al. 2024)",
         .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .fields = snapkv_fields,
    .field_count = 3,
    .init = snapkv_init,
    .recent = snapkv_recent,
    .rule = snapkv_rule,
    .ordered = true,
    .notes = snapkv_rows,
    .change = WN_NOTES_RING,
    .rows = snapkv_rows,
};
