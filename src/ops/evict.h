/* Chooses the token that leaves a full cache, and moves the rest.
 *
 * Sinks (positions below `sinks`), pinned tokens and recent tokens (the last `recent`, counting the incoming one) are
 * protected. Of the others the token with the highest score goes, ties to the oldest. If all are protected, the oldest
 * that is neither a sink nor pinned goes; if only sinks are held, the oldest sink. Pinned tokens never fill a cache
 * (decode/session_pins.c). */
#ifndef WN_OPS_EVICT_H
#define WN_OPS_EVICT_H

#include "base/rng.h"
#include "ops/policy/policy.h"
#include "tensor/bf16.h"
#include "winnow/tensor.h"

enum wn_evict_by {
  WN_EVICT_OLDEST, /* all scores are equal */
  WN_EVICT_RANDOM, /* a random number from seed, layer, head group and position */
  WN_EVICT_VALUES, /* a token's value, times `sign` */
  WN_EVICT_VOTES,  /* minus the mean (or maximum) of the votes of a token and its neighbours */
  WN_EVICT_GIVEN,  /* the caller has chosen */
  WN_EVICT_KIND    /* a score by keys and values (ops/policy/policy.h) */
};

/* Positions that never leave: ranges in order, which do not touch. */
enum { WN_PINS = 32 };
struct wn_pins {
  int32_t count;
  struct wn_pin {
    int32_t first, end;
  } of[WN_PINS];
};

/* Votes: a token has `votes` numbers, which are added in order; their sum is v. Then score = -(sum of v over the tokens
 * held at positions within `neighbours`) / (2 neighbours + 1), summed from the left; or minus the maximum of those
 * v. */
struct wn_evict_rule {
  enum wn_evict_by by;
  int64_t sinks, recent;
  double sign;
  uint64_t seed;
  int64_t layer;
  int64_t votes, neighbours; /* at most WN_EVICT_NEIGHBOURS */
  bool largest;              /* pool by maximum, not mean */
  struct wn_pins pins;
  const struct wn_policy_kind *kind;
  /* On the host: a policy's own scores of tokens first..first+n-1, counted in `order` if there is one; or NULL. */
  void (*score)(const struct wn_policy_held *held, int64_t first, int64_t n, double *out);
  const struct wn_budgets *budgets; /* for `score` */
  struct wn_evict_ask *ask;         /* on the host: scores of all tokens at once; or NULL */
};
/* Fills scores [count] of a group's tokens. After a failure `status` is set, and nothing else is asked. */
struct wn_evict_ask {
  void (*scores)(struct wn_evict_ask *ask, const struct wn_policy_held *held, double *scores);
  wn_context *ctx;
  wn_status status;
};
WN_POLICY_FUNCTION bool wn_pins_have(const struct wn_pins *pins, int64_t at) {
  for (int i = 0; i < pins->count; i++)
    if (at >= pins->of[i].first && at < pins->of[i].end) return true;
  return false;
}
/* Is the token at this position a sink or pinned? */
WN_POLICY_FUNCTION bool wn_evict_stays(const struct wn_evict_rule *rule, int64_t sinks, int64_t at) {
  return at < sinks || wn_pins_have(&rule->pins, at);
}
/* The random number of a token. */
#define WN_EVICT_LOT(rule, group, at)                                                                                  \
  wn_random_uniform((rule).seed, WN_STREAM_EVICT, (uint64_t)(rule).layer << 32 | (uint64_t)(group), (uint64_t)(at))
enum { WN_EVICT_NEIGHBOURS = 15, WN_EVICT_ARRAYS = 8 };

/* [B,P,rows,capacity] elements of `bytes`: an array that a cache keeps per slot. */
struct wn_evict_slots {
  void *data;
  int64_t rows;
  size_t bytes; /* a multiple of 2 */
};

/* For each sequence and group, chooses one token of slots 0..N-1 and moves slot N-1 to its place. The last slot then
 * has the position `row`; its other arrays keep their old contents. */
struct wn_evict {
  int64_t B, P, N, capacity;
  struct wn_evict_rule rule;
  int64_t row;         /* the position of the incoming token */
  int64_t first_group; /* the number of group 0, for random numbers */
  int32_t *at;         /* [B,P,capacity] positions */
  const void *values;  /* [B,P,capacity] values, or [B,P,votes,capacity], of the dtype */
  void *room;          /* [B,P,N] scratch of 8 bytes each, for votes; [B,P,wn_policy_room] for a kind */
  int32_t *index;      /* [B,P] chosen slots, with GIVEN; else NULL */
  int count;           /* at most WN_EVICT_ARRAYS */
  const struct wn_evict_slots *slots;
  int64_t heads, D;           /* of a group; for a kind, as all below */
  struct wn_policy_rows k, v; /* of the first group; the next one follows */
};
/* What a score may read of group `row` of the B * P. The host sets what else there is. */
WN_POLICY_FUNCTION void wn_evict_held_of(const struct wn_evict *a, int64_t row, wn_dtype dtype,
                                         struct wn_policy_held *out) {
  memset(out, 0, sizeof *out);
  out->layer = a->rule.layer, out->group = a->first_group + row % a->P;
  out->count = a->N, out->row = a->row, out->budget = a->capacity;
  out->dtype = out->rows = dtype;
  out->at = a->at + row * a->capacity;
  out->stride = a->capacity;
  out->heads = a->heads, out->D = a->D;
  out->k = wn_policy_rows_from(a->k, dtype, row * a->heads * a->k.head);
  out->v = wn_policy_rows_from(a->v, dtype, row * a->heads * a->v.head);
}

/* ---- on the host: the choice of one row (evict.c), by held->rule ---- */

/* At most so many tokens are scored at a time. */
#define WN_EVICT_CHUNK 256
/* The scores of n tokens, at most WN_EVICT_CHUNK. Of a kind only if it is constant. */
void wn_evict_scores(const struct wn_policy_held *held, int64_t first, int64_t n, double *out);
/* The scores of all tokens, out[i] of token i whatever the order. */
void wn_evict_score_all(const struct wn_policy_held *held, double *out);
/* The index of the token that goes; at least one must be held. Cost: one comparison per token. */
int64_t wn_evict_choose(const struct wn_policy_held *held);
/* Sorts slot [n] by at[slot]. */
void wn_evict_sort(int64_t n, int32_t *slot, const int32_t *at);

#endif
