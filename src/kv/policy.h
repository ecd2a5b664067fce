/* The eviction policies: each is one file src/kv/policy/<name>.c with one struct wn_policy_row. It states what the
 * policy needs, which tokens it protects, the scores of the others, and the numbers ("notes") that a cache keeps per
 * token for it. The choice of the token is shared. Evictions of whole sequences (evictions.h) and the cache (cache.h)
 * name no policy.
 *
 * The choice, when the token at position `row` arrives and K are held: of the tokens that are neither sinks nor recent
 * the one with the highest score is evicted, of equal ones the oldest. If all are protected, the oldest that is not a
 * sink is evicted. Positions count from the start of the document. */
#ifndef WN_KV_POLICY_H
#define WN_KV_POLICY_H

#include "base/fields.h"
#include "ops/evict.h"
#include "ops/evictions.h"
#include "ops/ops.h"
#include "winnow/kv.h"

/* Every policy, in the order of their numbers: wn_policy_<name>, defined in policy/<name>.c. */
#define WN_POLICIES(X)                                                                                                 \
  X(selective) X(h2o) X(tova) X(streaming) X(window) X(random) X(snapkv) X(knorm) X(keydiff) X(gates)

/* What a policy needs in addition to positions. */
enum wn_policy_need {
  WN_POLICY_SELECTIONS = 1 << 0, /* F: models with selective attention */
  WN_POLICY_SUMS = 1 << 1,       /* the attention sums of every row: for each token the sum of the heads' weights */
  WN_POLICY_KEYS = 1 << 2,       /* keys, rotated in a rotary model */
  WN_POLICY_VALUES = 1 << 3,     /* values */
  WN_POLICY_NUMBERS = 1 << 4     /* the numbers of the keys: models with gates on keys */
};
/* The needs that evictions of whole sequences and caches can meet. */
#define WN_POLICY_SERVED                                                                                               \
  ((unsigned)(WN_POLICY_SELECTIONS | WN_POLICY_SUMS | WN_POLICY_KEYS | WN_POLICY_VALUES | WN_POLICY_NUMBERS))

struct wn_policy_row {
  wn_policy_info info;
  unsigned needs;                /* of enum wn_policy_need */
  const struct wn_field *fields; /* keys of budgets.json; offsets into wn_budgets */
  int field_count;
  void (*init)(wn_budgets *budgets); /* their defaults; NULL: zero */
  /* How many first tokens are protected under a budget of K, at most K-1; NULL: none. */
  int64_t (*sinks)(const wn_budgets *budgets, int64_t K);
  /* How many of the most recent tokens are protected under a budget of K, the row's own included; NULL: none. */
  int64_t (*recent)(const wn_budgets *budgets, int64_t K);
  /* The scores; the token with the highest is evicted. Either `rule` gives a rule that operations know (ops/evict.h)
   * and sets all of it except sinks, recent and layer; the rule reads F if the policy needs F, else the notes. Or
   * `kind` is a score by keys and values (ops/policy/policy.h), which runs on every backend. Or `score` computes them
   * on the host: out[0..n-1] of tokens first..first+n-1, counted in `order` if there is one; the score of a free cache
   * position does not matter. All NULL: all scores are equal. */
  void (*rule)(const wn_budgets *budgets, struct wn_evict_rule *out);
  const struct wn_policy_kind *kind;
  void (*score)(const struct wn_policy_held *held, int64_t first, int64_t n, double *out);
  bool by_position; /* a token's score depends only on its position, layer and group, so it never changes */
  bool ordered;     /* `score` needs held->order */
  /* With WN_POLICY_SUMS. notes: how many numbers a cache keeps for each token, zeros when it enters. change: how a row
   * changes them; WN_NOTES_OWN: `follow` does, on the host. rows: how many rows back sums can matter (NULL: all). */
  int64_t (*notes)(const wn_budgets *budgets);
  enum wn_notes_change change;                         /* wn_policy_change, as a caller's own policy chooses */
  void (*follow)(const struct wn_policy_notes *notes); /* WN_NOTES_OWN */
  int64_t (*rows)(const wn_budgets *budgets);
};

#define WN_POLICY_DECLARE(name) extern const struct wn_policy_row wn_policy_##name;
WN_POLICIES(WN_POLICY_DECLARE)
WN_POLICY_DECLARE(own)

/* NULL: no such policy. */
const struct wn_policy_row *wn_policy_row(wn_policy policy);
/* The names by number, NULL after the last: the values of a configuration's "policy". */
extern const char *wn_policy_names[WN_POLICY_MAX + 1];
/* Adds a policy for the rest of the process. To be called before any thread uses a policy. False: its name is taken, or
 * the table is full. */
bool wn_policy_register(const struct wn_policy_row *row, wn_policy *out);

/* Do two budgets have the same policy and options, whatever their tokens? */
bool wn_budgets_same_options(const wn_budgets *a, const wn_budgets *b);
/* How a row changes the notes. */
enum wn_notes_change wn_policy_change(const wn_budgets *budgets);
/* A caller's own policy; an empty one if the budgets have none, which wn_policy_check_own refuses. */
const wn_own_policy *wn_policy_own_of(const wn_budgets *budgets);
/* To ask a caller's own policy about one group at a time (own.c). */
struct wn_evict_ask wn_policy_ask(wn_context *ctx);
/* Asks it for the scores [sequences,groups,count] of what the groups hold. */
wn_status wn_policy_ask_layer(wn_context *ctx, const struct wn_policy_held *held, int64_t sequences, int64_t groups,
                              double *scores);
/* Checks a caller's own policy for a model with or without selections. */
wn_status wn_policy_check_own(wn_context *ctx, const wn_budgets *budgets, bool selective);
/* WN_ERR_UNSUPPORTED names the policy and the first need that is not among those served; who: "a session". */
wn_status wn_policy_check_needs(wn_context *ctx, const struct wn_policy_row *row, unsigned served, const char *who);
/* P, the groups of key-value heads that evict on their own. For a policy that uses selections: one group per selection,
 * at least one (selections: G). For any other: Hkv with per_kv_head, if the policy allows it, else 1. */
int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections);
int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K);
int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K);
/* Of enum wn_policy_need. */
unsigned wn_policy_needs(const wn_budgets *budgets);
/* Numbers of 8 bytes that a choice among at most K tokens needs. */
int64_t wn_policy_room_of(const wn_budgets *budgets, int64_t K, int64_t D);
/* Numbers kept per token. */
int64_t wn_policy_notes(const wn_budgets *budgets);
/* The first tokens and the pinned ones: how many tokens a cache of K tokens never evicts. */
int64_t wn_policy_stay(const wn_budgets *budgets, int64_t K);
/* The rule for a cache of K tokens of a layer; WN_EVICT_GIVEN if the policy has a `score` function. */
void wn_policy_rule(const wn_budgets *budgets, int64_t layer, int64_t K, struct wn_evict_rule *out);
/* Does the policy have functions of its own, which run on the host? */
bool wn_policy_on_host(const struct wn_policy_row *row);
/* Updates the notes after a row, on the host. */
void wn_policy_follow(const struct wn_policy_notes *notes);

/* Packs keys or values x of a group's heads as floats, [heads,n,D], tokens in the order of index. */
void wn_policy_pack_rows(const struct wn_policy_held *held, const struct wn_policy_rows *x, const int32_t *index,
                         int64_t n, float *out);
/* out[i] = factor * x[first+i] of an array of the dtype. */
void wn_policy_read(const void *x, wn_dtype dtype, int64_t first, int64_t n, double factor, double *out);

#endif
