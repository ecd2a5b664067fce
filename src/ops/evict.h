/* The token that leaves a full cache, and the moves that follow.
 *
 * Of the tokens that are neither sinks (positions below `sinks`) nor recent (the last `recent`, the one that comes
 * among them) that with the highest score goes, ties to the oldest. Where all are protected, the oldest that is no sink
 * goes, a sink where nothing else is held. */
#ifndef WN_OPS_EVICT_H
#define WN_OPS_EVICT_H

#include "tensor/bf16.h"
#include "winnow/tensor.h"

enum wn_evict_by {
  WN_EVICT_OLDEST, /* all scores are equal */
  WN_EVICT_RANDOM, /* a number from the seed, the layer, the group of heads and the position */
  WN_EVICT_VALUES, /* a token's value, times `sign` */
  WN_EVICT_VOTES,  /* minus the mean (or maximum) of the votes for a token and its neighbours */
  WN_EVICT_GIVEN   /* chosen already */
};

/* Votes: a token has `votes` numbers, which are added up in order; v. score = - sum (or maximum) of them over the
 * tokens held at positions within `neighbours`, from the left, over 2 neighbours + 1. */
struct wn_evict_rule {
  enum wn_evict_by by;
  int64_t sinks, recent;
  double sign;
  uint64_t seed;
  int64_t layer;
  int64_t votes, neighbours; /* at most WN_EVICT_NEIGHBOURS */
  bool largest;              /* the maximum */
};
enum { WN_EVICT_NEIGHBOURS = 15, WN_EVICT_ARRAYS = 8 };

/* [B,P,rows,capacity] of `bytes` each: what a cache keeps for its slots. */
struct wn_evict_slots {
  void *data;
  int64_t rows;
  size_t bytes; /* a multiple of 2 */
};

/* For each sequence and group a token is chosen of slots 0..N-1; slot N-1 moves to its place, and the last slot is that
 * of the position `row` from then on: its arrays still hold what they held. */
struct wn_evict {
  int64_t B, P, N, capacity;
  struct wn_evict_rule rule;
  int64_t row;         /* the position of the token that comes */
  int64_t first_group; /* the number of the first group, for random numbers */
  int32_t *at;         /* [B,P,capacity] positions */
  const void *values;  /* [B,P,capacity] values, or [B,P,votes,capacity], of the dtype */
  void *room;          /* [B,P,N] of 8 bytes, for votes */
  int32_t *index;      /* [B,P] slots: GIVEN; else NULL */
  int count;           /* at most WN_EVICT_ARRAYS */
  const struct wn_evict_slots *slots;
};

/* ---- on the host: the choice of one row (evict.c) ---- */

/* The tokens that one group of heads holds. A position below 0 is a gap. */
struct wn_evict_held {
  const struct wn_evict_rule *rule;
  int64_t count, row, group;
  wn_dtype dtype;       /* of values */
  const int32_t *at;    /* [count] */
  const int32_t *order; /* [count] indices in order of position; NULL: as they are. Votes need the order */
  const double *scores; /* [count] where they are known, or NULL */
  const void *values;   /* [count], or [votes,stride] */
  int64_t stride;
  /* Scores that no rule gives: out[i] of tokens first..first+n-1, counted in `order`. NULL: the rule's. */
  void (*score)(const void *user, int64_t first, int64_t n, double *out);
  const void *user;
};
/* The most tokens that are scored at a time. */
#define WN_EVICT_CHUNK 256
/* Their scores, n at most WN_EVICT_CHUNK. */
void wn_evict_scores(const struct wn_evict_held *held, int64_t first, int64_t n, double *out);
/* The index of the token that goes; at least one is held. Cost: one comparison per token. */
int64_t wn_evict_choose(const struct wn_evict_held *held);
/* slot [n] in order of at[slot]. */
void wn_evict_sort(int64_t n, int32_t *slot, const int32_t *at);

#endif
