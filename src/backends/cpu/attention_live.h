/* Keys that selections have hidden for good (ops/attention.h: sel.negligible).
 *
 * F only grows along the rows. A logit is at most scale |q| |k|, and the sum of a row's exponentials at least that of
 * its own key, which nothing selects: so key j is dead from row block b on where, for each head h of the unit, max over
 * rows i >= 64 b of scale |q[h,i]|  *  |k[j]|  -  min over them of L[h,i,i]  -  F[64 b,j]  <  log(negligible / Tk).
 * Keys that are dead are never met again, and those that are left stand side by side in a list: tiles of it are dense.
 *
 * Lists, not tiles, because a tile of 64 keys in a row almost always has a key that lives (docs/results/dead-keys.md).
 * Not served, and left as they are: other rules than causality, documents and one group's evictions; spans, relative
 * positions, position biases, thresholds, dropout on the weights, compact caches; selections that may fall again. */
#ifndef WN_BACKENDS_CPU_ATTENTION_LIVE_H
#define WN_BACKENDS_CPU_ATTENTION_LIVE_H

#include "backends/cpu/attention_terms.h"

/* May the call leave keys out? Lays out scratch, so that values are not looked at. */
bool wn_live_wanted(const struct wn_attention *a);
/* And when it runs: do selections only grow? */
bool wn_live_grows(const struct wn_attention *a);

/* What bounds weights, of one unit. */
struct wn_live_bound {
  float *k;       /* [groups][blocks*64] norms */
  float *q, *low; /* [heads][blocks] over the rows from the block on: the largest norm of a query times scale; the
                     smallest lower bound of the log of a row's sum */
  float *wide;    /* [64][D] half floats made wide, or rows gathered */
};
void wn_live_bound_lay(const struct wn_attention_plan *p, struct wn_layout *l, int64_t heads, int64_t groups,
                       struct wn_live_bound *bound);
/* For row blocks from `first` on. lse: the call's, where it is known (backward); else NULL. */
void wn_live_bound_fill(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const float *lse,
                        int64_t first, const struct wn_live_bound *bound);
/* Is key j, hidden by F, alive in a row from row block `r` on? */
bool wn_live_key(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                 const struct wn_live_bound *bound, const struct wn_attention_rows *r, int64_t j, float F);

/* to[64,D] = rows at[0..count-1] of head g of the unit's keys or values (`values`); zeros behind them. */
void wn_live_gather(const struct wn_attention_plan *p, const struct wn_attention_unit *u, bool values, int64_t g,
                    const int32_t *at, int64_t count, float *to);

/* The strip of a row block on the columns at[0..count-1], count <= 64, all older than the rows. */
void wn_live_strip(const struct wn_attention_plan *p, const struct wn_attention_rows *r, const int32_t *at,
                   int64_t count, struct wn_attention_strip *s);

/* --- forward: the list --- */

/* Row blocks between two lists from which the dead are taken out; a team's chunks begin there. */
static inline int64_t wn_live_every(const struct wn_attention_plan *p) {
  return p->blocks < 32 ? 1 : 4;
}

struct wn_live {
  bool on;       /* the unit has enough dead keys for a list; else nothing is in it */
  bool bounded;  /* bounds are there */
  int64_t n;     /* keys listed, in order */
  int64_t begin; /* column blocks from here on are not in the list */
  int32_t *at;   /* [blocks*64] */
  float *carry;  /* [blocks*64] F of the listed keys at the row block's first row; inf behind them */
  float *kt, *v; /* [tiles][groups] of [D][64] times scale, [64][Dp] */
  float *skt;    /* [tiles][D][64], bilinear */
};
void wn_live_lay(const struct wn_attention_plan *p, struct wn_layout *l, int64_t groups, struct wn_live *live);
void wn_live_begin(struct wn_live *live);
/* Before row block r: takes keys in and out. carry[blocks*64]: F of the keys not listed. */
void wn_live_update(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                    const struct wn_live_bound *bound, const struct wn_attention_rows *r, const float *carry,
                    struct wn_live *live);

#endif
