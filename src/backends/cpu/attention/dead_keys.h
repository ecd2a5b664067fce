/* Dead-key skipping (ops/attention.h: sel.dead_share): keys that selections have hidden for good are left out.
 *
 * F only grows from row to row. A logit is at most scale |q| |k|, and the sum of a row's exponentials is at least that
 * of its own key, which nothing selects. So key j is dead from row block b on if, for each head h of the unit, max over
 * rows i >= 64 b of scale |q[h,i]| * |k[j]| - min over them of L[h,i,i] - F[64 b,j] < log(dead_share / Tk). Dead keys
 * are skipped from then on; the others are gathered in a list, whose tiles are dense.
 *
 * A list is used because 64 consecutive keys almost always include one that is not dead (docs/results/dead-keys.md). No
 * keys are skipped with: keep rules other than causality, documents and evictions common to all heads; spans, relative
 * positions, position biases, thresholds, dropout on the attention weights, compact caches; selections that may
 * decrease. */
#ifndef WN_BACKENDS_CPU_ATTENTION_DEAD_KEYS_H
#define WN_BACKENDS_CPU_ATTENTION_DEAD_KEYS_H

#include "backends/cpu/attention/terms.h"
#include "ops/terms.h"

/* May the call skip keys? Used when scratch is laid out, so it reads no values. */
static inline bool wn_dead_keys_wanted(const struct wn_attention *a) {
  if (!a->sel.on || !(a->sel.dead_share > 0) || !a->sel.relu || !(a->sel.shift || a->sel.protect_self)) return false;
  if (a->sel.F || a->Tk <= 2 * WN_TILE) return false;
  return !(wn_call_terms(a) & ~(uint32_t)WN_TERMS_DEAD_KEYS);
}
/* Do selections only grow, so that a dead key stays dead? Checked when the call runs. */
bool wn_dead_keys_final(const struct wn_attention *a);

/* Bounds of a unit's attention weights. */
struct wn_dead_keys_bound {
  float *k;       /* [groups][blocks*64] norms */
  float *q, *low; /* [heads][blocks] over all rows from the block on: the largest norm of a query times scale; the
                   * smallest lower bound of the log of a row's sum */
  float *wide;    /* [64][D] scratch: stored rows converted, or gathered rows */
};
void wn_dead_keys_bound_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                            struct wn_dead_keys_bound *bound);
/* Fills the bounds for row blocks from `first` on. lse: the call's, if known (backward); else NULL. */
void wn_dead_keys_bound_fill(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const float *lse,
                             int64_t first, const struct wn_dead_keys_bound *bound);
/* Must key j be kept: given its F, is it not dead in some row from row block `r` on? */
bool wn_dead_keys_keep(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                       const struct wn_dead_keys_bound *bound, const struct wn_attention_rows *r, int64_t j, float F);

/* to[64,D] = rows at[0..count-1] of head g's keys or values (`values`); zeros after them. */
void wn_dead_keys_gather(const struct wn_attention_plan *p, const struct wn_attention_unit *u, bool values, int64_t g,
                         const int32_t *at, int64_t count, float *to);

/* The strip of a row block with the columns at[0..count-1], count <= 64, all older than the rows. */
void wn_dead_keys_strip(const struct wn_attention_plan *p, const struct wn_attention_rows *r, const int32_t *at,
                        int64_t count, struct wn_attention_strip *s);

/* --- forward: the list --- */

/* Is a new list worthwhile? It saves `narrower` columns in each remaining row block. Packing a tile costs about a
 * quarter of a tile's work in a row block, and `tiles` tiles must be packed. */
static inline bool wn_dead_keys_pays(const struct wn_attention_plan *p, int64_t block, int64_t narrower,
                                     int64_t tiles) {
  return narrower / 16 * wn_min_i64(p->blocks - block, 4) > 2 * tiles;
}
static inline int64_t wn_dead_keys_width(int64_t n) {
  return wn_div_up(n, 16) * 16;
}

struct wn_dead_keys_list {
  bool bounded;  /* bounds have been computed */
  int64_t n;     /* number of listed keys, which are in order */
  int64_t begin; /* the list covers only column blocks before this one */
  int32_t *at;   /* [blocks*64] */
  uint8_t *keep; /* [blocks*64] scratch */
  float *carry;  /* [blocks*64] F of the listed keys at the row block's first row; inf after them */
  float *kt, *v; /* [tiles][groups] of [D][64] times scale, [64][Dp] */
  float *skt;    /* [tiles][D][64], bilinear */
};
void wn_dead_keys_list_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                           struct wn_dead_keys_list *list);
void wn_dead_keys_list_begin(struct wn_dead_keys_list *list);
/* Before row block r: updates the list if that is worthwhile. carry[blocks*64]: F of the keys that are not listed. */
void wn_dead_keys_list_update(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                              const struct wn_dead_keys_bound *bound, const struct wn_attention_rows *r,
                              const float *carry, struct wn_dead_keys_list *list);

/* --- backward: the list of each row block; slots that hold its keys as row blocks are visited from last to first
 * --- */

enum { WN_DEAD_KEYS_BLOCKS = 128 };
/* May backward skip keys? It visits row blocks in order, so each thread must own its units. A text may have at most 128
 * row blocks, which limits the history to T^2/64 numbers. */
static inline bool wn_dead_keys_wanted_backward(const struct wn_attention_plan *p) {
  return wn_dead_keys_wanted(p->a) && p->own && p->a->Tq == p->a->Tk && p->blocks <= WN_DEAD_KEYS_BLOCKS;
}

struct wn_dead_keys_history {
  int64_t *from; /* [blocks+1] where the list of each row block begins */
  int32_t *at;   /* [blocks*blocks*32] the lists, in order: keys older than the block that are not dead in it */
  float *carry;  /* likewise: their F at the block's first row */
};

/* A slot holds one key. The key is loaded when backward reaches the last row block in which it is not dead, and its
 * gradients are stored when backward reaches the key's own block. */
struct wn_dead_keys_slots {
  int64_t n, tiles;                        /* slots in use; tiles ever used */
  uint64_t fresh[WN_DEAD_KEYS_BLOCKS + 1]; /* per tile, a bit for each slot whose columns must be packed */
  int32_t *at;                             /* [blocks*64] the key in each slot */
  int32_t *slot;                           /* [blocks*64] the slot of each key, -1: none */
  float *carry;                 /* [blocks*64] F at the row block's first row; inf from n to the end of the tile */
  float *dcarry;                /* [blocks*64] dF summed over the row blocks done */
  float *k, *dk, *dv, *kt, *vt; /* [tiles][groups] of [64][Dp] or [D][64], like those of a column block */
  float *sk, *dsk, *skt;        /* [tiles], bilinear */
};

void wn_dead_keys_backward_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                               struct wn_dead_keys_history *history, struct wn_dead_keys_slots *slots);
/* Visits row blocks from first to last and records the lists. q: the selecting queries of row block 0, `step` floats
 * per block; base: scratch for a tile. False: too few keys are dead for skipping to be worthwhile. */
bool wn_dead_keys_record(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                         const struct wn_dead_keys_bound *bound, const float *q, int64_t step, float *base,
                         const struct wn_dead_keys_history *history, struct wn_dead_keys_slots *slots);
/* The tiles of a column block, to which the gradients of its keys are added. */
struct wn_dead_keys_home {
  float *dk, *dv, *dsk; /* [groups][64][Dp], [64][Dp] */
  float *dcarry;        /* [64] */
};
/* Moves on to row block `block`, from last to first: makes the slots hold its list. rows: [64][D] of scratch. */
void wn_dead_keys_enter(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                        const struct wn_dead_keys_history *history, int64_t block, const struct wn_dead_keys_home *home,
                        float *rows, struct wn_dead_keys_slots *slots);

#endif
