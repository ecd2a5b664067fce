/* The eviction policies: one row each. A policy says how little a token that a layer holds is worth; the choice is
 * shared (score, then choose): the highest score goes, ties to the oldest. Cost: one look at each token held. */
#ifndef WN_KV_POLICY_H
#define WN_KV_POLICY_H

#include "ops/ops.h"
#include "winnow/kv.h"

/* What a policy wants to know of the rows' attention. */
enum wn_policy_weights {
  WN_WEIGHTS_NONE,
  WN_WEIGHTS_SUM, /* each token's from all rows so far */
  WN_WEIGHTS_LAST /* from the last row */
};

/* The tokens that one group of heads holds as a row comes, whose position is `row`. */
struct wn_policy_held {
  const wn_budgets *budgets;
  int64_t layer, group, count, row;
  int64_t budget;      /* tokens that the layer may hold, the row's own included */
  wn_dtype dtype;      /* of F and weights */
  const int32_t *at;   /* [count] positions, in any order */
  const void *F;       /* [count] or NULL */
  const void *weights; /* [count] or NULL */
};

struct wn_policy_row {
  const char *summary; /* one line, with the paper */
  bool per_kv_head;    /* may decide for each key-value head */
  bool needs_selective;
  enum wn_policy_weights weights;
  double (*score)(const struct wn_policy_held *held, int64_t slot);
};
const struct wn_policy_row *wn_policy_row(wn_policy policy);
/* By wn_policy, NULL behind the last: the choices of configurations. */
extern const char *const wn_policy_names[WN_POLICY_COUNT + 1];

/* P, the groups of key-value heads that evict for themselves: selective, one for each selection (G, 0 or 1: one); h2o,
 * tova and random, Hkv with per_kv_head; else 1. */
int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections);
/* Streaming: of a budget of K tokens, the first ones that stay, at most K-1; 0 for all other policies. */
int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K);
/* H2O: of a budget of K tokens, floor(recent*K) are the most recent, the row's own among them. */
int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K);
/* Random: a token's lot, in [0,1). position: from the document's start. */
double wn_policy_lot(const wn_budgets *budgets, int64_t layer, int64_t group, int64_t position);
/* The slot whose token goes; count >= 1. */
int64_t wn_policy_choose(const struct wn_policy_held *held);

#endif
