/* Which tokens stay when a cache is compressed as a whole (wn_when, docs/pruning.md): all tokens held are scored at
 * once by the policy, and of each group those with the lowest scores stay, of equal ones the newest. Of the protected
 * tokens the recent ones go first, the oldest at first, and the sinks last. A score is what the policy says when the
 * next token comes, but votes are pooled over the tokens that compete alone: a protected neighbour votes 0. Pinned
 * tokens are protected as sinks are.
 *
 * It runs on the host, on copies where the cache lies elsewhere. Cost: one score for each token, and a sort. */
#ifndef WN_KV_KEEP_H
#define WN_KV_KEEP_H

#include "base/arrays.h"
#include "kv/cache.h"

/* The choice for one cache of B sequences and P groups. All zeros: empty. */
struct wn_kept {
  const struct wn_kv_cache *cache;
  int64_t kept;   /* how many tokens each group keeps: set between the two calls below */
  double *scores; /* [B,P,count] in order of position */
  int32_t *order; /* [B,P,count] slots in order of position */
  int32_t *slots; /* [B,P,kept] those that stay, in order of position */
  struct wn_arrays arrays;
};
/* Prepares it without scores. */
wn_status wn_keep_open(wn_context *ctx, const struct wn_kv_cache *cache, struct wn_kept *out);
/* Keys or values of sequence b as floats, [Hkv,count,D] in order of position. */
wn_status wn_keep_pack(wn_context *ctx, const struct wn_kept *keep, bool values, int64_t b, float *out);
/* The policy's first note of each token of sequence b, [P,count] in order of position. */
wn_status wn_keep_notes(wn_context *ctx, const struct wn_kept *keep, int64_t b, double *out);
/* Scores what the cache holds, where K tokens are to stay. Protected tokens have the scores of once.h. */
wn_status wn_keep_score(wn_context *ctx, const struct wn_kv_cache *cache, const wn_budgets *budgets, int64_t layer,
                        int64_t K, struct wn_kept *out);
/* Marks the pinned tokens of n at these positions, in order, so that none leaves: their scores become WN_ONCE_SINK, and
 * a method's own first tokens go with its recent ones. */
void wn_keep_pin(const struct wn_pins *pins, const int32_t *at, int64_t n, double *scores);
/* Chooses `kept` of them, at most what is held. */
wn_status wn_keep_choose(wn_context *ctx, struct wn_kept *keep);
/* allot "tau": how many of a group's tokens score at most tau, are protected, or are among the last `window`. */
int64_t wn_keep_below(const struct wn_kept *keep, const wn_budgets *budgets);
void wn_keep_clear(struct wn_kept *keep);

#endif
