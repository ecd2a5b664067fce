/* The eviction policies: src/kv/policy/<name>.c each, and a row here. A row says what the policy looks at, which tokens
 * it protects, how little each of the others is worth, and what a cache keeps of a token for it; the choice is shared,
 * and so are the walk over whole sequences (walk.h) and the cache (cache.h), which name no policy.
 *
 * The choice, when the token at position `row` comes and K are held: of the tokens that are neither among the sinks nor
 * among the recent ones the highest score goes, ties to the oldest. Where all are protected the oldest goes that is no
 * sink. Positions count from the start of the document. */
#ifndef WN_KV_POLICY_H
#define WN_KV_POLICY_H

#include "base/fields.h"
#include "ops/ops.h"
#include "winnow/kv.h"

/* Every policy, in the order of their numbers: wn_policy_<name>, defined in policy/<name>.c. */
#define WN_POLICIES(X) X(selective) X(h2o) X(tova) X(streaming) X(window) X(random) X(snapkv)

/* What a policy looks at besides positions. */
enum wn_policy_need {
  WN_POLICY_SELECTIONS = 1 << 0, /* F, what the rows so far have selected away: models with selective attention */
  WN_POLICY_SUMS = 1 << 1        /* the attention sums of every row: the weights that its heads give each token */
};
/* All that walks and caches serve. */
#define WN_POLICY_SERVED ((unsigned)(WN_POLICY_SELECTIONS | WN_POLICY_SUMS))

/* The tokens that one group of heads holds as a row comes. */
struct wn_policy_held {
  const wn_budgets *budgets;
  int64_t layer, group, count;
  int64_t row;          /* the position of the token that comes */
  int64_t budget;       /* K: tokens that the layer may hold, the row's own included */
  wn_dtype dtype;       /* of F and notes */
  const int32_t *at;    /* [count] positions, in any order; -1: nothing is held there */
  const int32_t *order; /* [count] indices in order of position; NULL: they are in order. Of policies that ask for it */
  const double *scores; /* [count] of policies that score by position alone, or NULL */
  const void *F;        /* [count] or NULL */
  const void *notes;    /* [notes,stride] or NULL */
  int64_t stride;
};

/* The notes of the tokens held, to be carried on over one row. */
struct wn_policy_notes {
  const wn_budgets *budgets;
  int64_t row, count; /* the row's position; tokens held, its own included */
  wn_dtype dtype;
  void *notes; /* [notes,stride] */
  int64_t stride;
  const void *sums; /* [count] the row's attention sums */
};

struct wn_policy_row {
  wn_policy_info info;
  unsigned needs;                /* of enum wn_policy_need */
  const struct wn_field *fields; /* keys of budgets.json; offsets into wn_budgets */
  int field_count;
  void (*init)(wn_budgets *budgets); /* their defaults; NULL: zero */
  /* Of a budget of K tokens, the first ones that stay, at most K-1; NULL: none. */
  int64_t (*sinks)(const wn_budgets *budgets, int64_t K);
  /* Of a budget of K tokens, the most recent ones that stay, the row's own among them; NULL: none. */
  int64_t (*recent)(const wn_budgets *budgets, int64_t K);
  /* out[0..n-1]: the scores of tokens first..first+n-1, counted in `order` where there is one; the highest goes. What
   * comes out for a token that is not held does not matter. NULL: all alike. */
  void (*score)(const struct wn_policy_held *held, int64_t first, int64_t n, double *out);
  bool by_position; /* a token's score depends on its position, layer and group alone: it never changes */
  bool ordered;     /* score wants held->order */
  /* WN_POLICY_SUMS. Numbers that a cache keeps of each token, zeros when it enters; how a row changes them; and how
   * many rows back sums can matter (NULL: all). */
  int64_t (*notes)(const wn_budgets *budgets);
  void (*follow)(const struct wn_policy_notes *notes);
  int64_t (*rows)(const wn_budgets *budgets);
};

/* The most tokens that are scored at a time. */
#define WN_POLICY_CHUNK 256

#define WN_POLICY_DECLARE(name) extern const struct wn_policy_row wn_policy_##name;
WN_POLICIES(WN_POLICY_DECLARE)

/* NULL: there is none of that number. */
const struct wn_policy_row *wn_policy_row(wn_policy policy);
/* By number, NULL after the last: the choices of configurations. */
extern const char *wn_policy_names[WN_POLICY_MAX + 1];
/* A further policy for the rest of the process, before any thread uses one. False: its name is taken, or the table
 * full. */
bool wn_policy_register(const struct wn_policy_row *row, wn_policy *out);

/* WN_ERR_UNSUPPORTED names the policy and the first need that is not among those served; who: "a session". */
wn_status wn_policy_check_needs(wn_context *ctx, const struct wn_policy_row *row, unsigned served, const char *who);
/* P, the groups of key-value heads that evict for themselves: of policies that look at selections one for each
 * selection (G, 0 or 1: one); of the others Hkv with per_kv_head, where the policy allows it; else 1. */
int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections);
int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K);
int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K);
/* Numbers kept of each token. */
int64_t wn_policy_notes(const wn_budgets *budgets);
/* The index of the token that goes; at least one is held. Cost: one look at each. */
int64_t wn_policy_choose(const struct wn_policy_held *held);

/* out[i] = factor * x[first+i] of an array of the dtype. */
void wn_policy_read(const void *x, wn_dtype dtype, int64_t first, int64_t n, double factor, double *out);

#endif
