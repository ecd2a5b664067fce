/* The table of policies, and the choice that they share. */
#include "kv/policy.h"

#include <math.h>

#include "base/rng.h"

/* F; position 0 only when nothing else is left. */
static double selective(const struct wn_policy_held *h, int64_t slot) {
  return h->at[slot] == 0 ? -INFINITY : wn_number(h->F, slot, h->dtype);
}

/* Heavy hitters: the weights of all rows; of the budget, floor(recent*K) tokens are the last ones, the new included. */
static double heavy_hitters(const struct wn_policy_held *h, int64_t slot) {
  const int64_t recent = wn_policy_recent(h->budgets, h->budget);
  return h->at[slot] > h->row - recent ? -INFINITY : -wn_number(h->weights, slot, h->dtype);
}

static double last_weights(const struct wn_policy_held *h, int64_t slot) {
  return -wn_number(h->weights, slot, h->dtype);
}

/* All but the sinks are alike: the oldest goes. */
static double streaming(const struct wn_policy_held *h, int64_t slot) {
  return h->at[slot] < wn_policy_sinks(h->budgets, h->budget) ? -1 : 0;
}

static double window(const struct wn_policy_held *h, int64_t slot) {
  (void)h, (void)slot;
  return 0;
}

static double lots(const struct wn_policy_held *h, int64_t slot) {
  return wn_policy_lot(h->budgets, h->layer, h->group, h->at[slot]);
}

const char *const wn_policy_names[WN_POLICY_COUNT + 1] = {
    [WN_POLICY_SELECTIVE] = "selective", [WN_POLICY_H2O] = "h2o",       [WN_POLICY_TOVA] = "tova",
    [WN_POLICY_STREAMING] = "streaming", [WN_POLICY_WINDOW] = "window", [WN_POLICY_RANDOM] = "random"};

static const struct wn_policy_row rows[WN_POLICY_COUNT] = {
    [WN_POLICY_SELECTIVE] = {.summary = "what the layer's rows have selected away most (arXiv 2410.02703)",
                             .per_kv_head = true,
                             .needs_selective = true,
                             .score = selective},
    [WN_POLICY_H2O] = {.summary = "the least attention received in all, outside the most recent (Zhang et al. 2023)",
                       .per_kv_head = true,
                       .weights = WN_WEIGHTS_SUM,
                       .score = heavy_hitters},
    [WN_POLICY_TOVA] = {.summary = "the least attention from the last row (Oren et al. 2024)",
                        .per_kv_head = true,
                        .weights = WN_WEIGHTS_LAST,
                        .score = last_weights},
    [WN_POLICY_STREAMING] = {.summary = "the first tokens and the most recent stay (Xiao et al. 2023)",
                             .score = streaming},
    [WN_POLICY_WINDOW] = {.summary = "the most recent stay", .score = window},
    [WN_POLICY_RANDOM] = {.summary = "a lot drawn for each token", .per_kv_head = true, .score = lots},
};

const struct wn_policy_row *wn_policy_row(wn_policy policy) {
  return (int)policy >= 0 && policy < WN_POLICY_COUNT ? &rows[policy] : NULL;
}

const char *wn_policy_name(wn_policy policy) {
  return wn_policy_row(policy) ? wn_policy_names[policy] : "?";
}

int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  if (budgets->policy == WN_POLICY_SELECTIVE) return selections > 1 ? selections : 1;
  return budgets->per_kv_head && row && row->per_kv_head ? kv_heads : 1;
}

int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K) {
  if (budgets->policy != WN_POLICY_STREAMING) return 0;
  return budgets->sinks < K - 1 ? budgets->sinks : K - 1;
}

int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K) {
  return (int64_t)floor(budgets->recent * (double)K);
}

double wn_policy_lot(const wn_budgets *budgets, int64_t layer, int64_t group, int64_t position) {
  return wn_random_uniform(budgets->seed, WN_STREAM_EVICT, (uint64_t)layer << 32 | (uint64_t)group, (uint64_t)position);
}

int64_t wn_policy_choose(const struct wn_policy_held *h) {
  double (*score)(const struct wn_policy_held *, int64_t) = rows[h->budgets->policy].score;
  int64_t best = 0;
  double top = score(h, 0);
  for (int64_t slot = 1; slot < h->count; slot++) {
    const double s = score(h, slot);
    if (s < top || (s == top && h->at[slot] > h->at[best])) continue;
    best = slot;
    top = s;
  }
  return best;
}
