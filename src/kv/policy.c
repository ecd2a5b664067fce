/* The table of policies. */
#include "kv/policy.h"

static const struct wn_policy_row rows[WN_POLICY_COUNT] = {
    [WN_POLICY_SELECTIVE] = {.name = "selective",
                             .summary = "what the layer's rows have selected away most (arXiv 2410.02703)",
                             .per_kv_head = true,
                             .needs_selective = true},
    [WN_POLICY_H2O] = {.name = "h2o",
                       .summary = "the least attention received in all, outside the most recent (Zhang et al. 2023)",
                       .per_kv_head = true,
                       .weights = true},
    [WN_POLICY_TOVA] = {.name = "tova",
                        .summary = "the least attention from the last row (Oren et al. 2024)",
                        .per_kv_head = true,
                        .weights = true},
    [WN_POLICY_STREAMING] = {.name = "streaming", .summary = "the first tokens and the most recent (Xiao et al. 2023)"},
    [WN_POLICY_WINDOW] = {.name = "window", .summary = "the most recent"},
    [WN_POLICY_RANDOM] = {.name = "random", .summary = "any", .per_kv_head = true},
};

const struct wn_policy_row *wn_policy_row(wn_policy policy) {
  return (int)policy >= 0 && policy < WN_POLICY_COUNT ? &rows[policy] : NULL;
}

const char *wn_policy_name(wn_policy policy) {
  const struct wn_policy_row *row = wn_policy_row(policy);
  return row ? row->name : "?";
}
