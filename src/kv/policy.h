/* The eviction policies: a file src/kv/policy/<name>.c each, and a row here. A row states what the policy needs, which
 * tokens it protects, the scores of the others, and the numbers that a cache keeps per token for it; the choice is
 * shared, and so are evictions of whole sequences (evictions.h) and the cache (cache.h), which name no policy.
 *
 * The choice, when the token at position `row` arrives and K are held: of the tokens that are neither sinks nor recent,
 * the one with the highest score is evicted, ties to the oldest. Where all are protected, the oldest that is not a sink
 * is evicted. Positions count from the start of the document. */
#ifndef WN_KV_POLICY_H
#define WN_KV_POLICY_H

#include "base/fields.h"
#include "ops/evict.h"
#include "ops/evictions.h"
#include "ops/ops.h"
#include "winnow/kv.h"

/* Every policy, in the order of their numbers: wn_policy_<name>, defined in policy/<name>.c. */
#define WN_POLICIES(X) X(selective) X(h2o) X(tova) X(streaming) X(window) X(random) X(snapkv)

/* What a policy needs in addition to positions. */
enum wn_policy_need {
  WN_POLICY_SELECTIONS = 1 << 0, /* F: models with selective attention */
  WN_POLICY_SUMS = 1 << 1        /* the attention sums of every row: the weights that its heads give each token */
};
/* All that walks and caches serve. */
#define WN_POLICY_SERVED ((unsigned)(WN_POLICY_SELECTIONS | WN_POLICY_SUMS))

/* The tokens that one group of heads holds when a row arrives. */
struct wn_policy_held {
  const wn_budgets *budgets;
  int64_t layer, group, count;
  int64_t row;          /* the position of the arriving token */
  int64_t budget;       /* K: tokens that the layer may hold, the row's own included */
  wn_dtype dtype;       /* of F and notes */
  const int32_t *at;    /* [count] positions, in any order; -1: a free cache position */
  const int32_t *order; /* [count] indices in order of position, for policies that ask for it; NULL: already in order */
  const double *scores; /* [count] for policies that score by position alone, or NULL */
  const void *F;        /* [count] or NULL */
  const void *notes;    /* [notes,stride] or NULL */
  int64_t stride;
};

/* The notes of the tokens held, to be updated with one row. */
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
  /* Of a budget of K tokens, the number of first ones that are protected, at most K-1; NULL: none. */
  int64_t (*sinks)(const wn_budgets *budgets, int64_t K);
  /* Of a budget of K tokens, the number of most recent ones that are protected, the row's own among them; NULL:
   * none. */
  int64_t (*recent)(const wn_budgets *budgets, int64_t K);
  /* The scores, the highest of which is evicted: by a rule that operations know (ops/evict.h), of which all but sinks,
   * recent and layer is set, whose values are F, where that is needed, or else the notes. Or by a function of the
   * policy's own, which runs on the host: out[0..n-1] of tokens first..first+n-1, counted in `order` where there is
   * one; that of a free cache position does not matter. Both NULL: all equal. */
  void (*rule)(const wn_budgets *budgets, struct wn_evict_rule *out);
  void (*score)(const struct wn_policy_held *held, int64_t first, int64_t n, double *out);
  bool by_position; /* a token's score depends on its position, layer and group alone: it never changes */
  bool ordered;     /* scores need held->order */
  /* WN_POLICY_SUMS. Numbers that a cache keeps of each token, zeros when it enters; how a row changes them; and how
   * many rows back sums can matter (NULL: all). A function of the policy's own runs on the host. */
  int64_t (*notes)(const wn_budgets *budgets);
  enum wn_notes_change change;
  void (*follow)(const struct wn_policy_notes *notes); /* WN_NOTES_OWN */
  int64_t (*rows)(const wn_budgets *budgets);
};

#define WN_POLICY_DECLARE(name) extern const struct wn_policy_row wn_policy_##name;
WN_POLICIES(WN_POLICY_DECLARE)

/* NULL: no such policy. */
const struct wn_policy_row *wn_policy_row(wn_policy policy);
/* By number, NULL after the last: the choices of configurations. */
extern const char *wn_policy_names[WN_POLICY_MAX + 1];
/* Adds a policy for the rest of the process, before any thread uses one. False: its name is taken, or the table is
 * full. */
bool wn_policy_register(const struct wn_policy_row *row, wn_policy *out);

/* Have two budgets the same policy and options? Whatever their tokens. */
bool wn_budgets_same_options(const wn_budgets *a, const wn_budgets *b);
/* WN_ERR_UNSUPPORTED names the policy and the first need that is not among those served; who: "a session". */
wn_status wn_policy_check_needs(wn_context *ctx, const struct wn_policy_row *row, unsigned served, const char *who);
/* P, the groups of key-value heads that evict on their own: for policies that use selections one per selection (G, 0 or
 * 1: one); for the others Hkv with per_kv_head, where the policy allows it; else 1. */
int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections);
int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K);
int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K);
/* Numbers kept per token. */
int64_t wn_policy_notes(const wn_budgets *budgets);
/* The rule for a cache of K tokens of a layer; GIVEN: the policy has a score of its own. */
void wn_policy_rule(const wn_budgets *budgets, int64_t layer, int64_t K, struct wn_evict_rule *out);
/* Has it functions of its own, which run on the host? */
bool wn_policy_on_host(const struct wn_policy_row *row);
/* Are all scores equal? */
bool wn_policy_oldest(const struct wn_policy_row *row);
/* The index of the token to evict, on the host; at least one is held. Cost: one comparison per token. */
int64_t wn_policy_choose(const struct wn_policy_held *held);
/* The notes after a row, on the host. */
void wn_policy_follow(const struct wn_policy_notes *notes);

/* out[i] = factor * x[first+i] of an array of the dtype. */
void wn_policy_read(const void *x, wn_dtype dtype, int64_t first, int64_t n, double factor, double *out);

#endif
