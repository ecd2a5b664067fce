/* The sparse path of the fused attention: strided (Child et al. 2019) and square-root masks (Fernandez, Unsal).
 *
 * Such a rule shows every distance up to some near one and few beyond it, scattered so that hardly a tile of the score
 * matrix is free of them: tiles would do T^2 work for T sqrt(T) pairs. The near part stays with the tiles; what lies in
 * the tiles before is computed by distances: a skewed tile whose row i and column n are the pair (i, i - x[n]). Its
 * products gather rows of keys and values; softmax and selections see it as any other tile.
 *
 * Not served, and left to the tiles: a span, a threshold, dropout on the weights, evictions; in backward relative
 * positions and position biases; and rules that show more than a quarter of a tile. Cost: 4 D operations for a pair and
 * head, as in a tile, at the speed of the cache. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SPARSE_H
#define WN_BACKENDS_CPU_ATTENTION_SPARSE_H

#include "backends/cpu/attention/terms.h"

/* Finds the plan's rule; the list is filled by wn_sparse_fill, which takes wn_sparse_floats of scratch. */
void wn_sparse_init(struct wn_attention_plan *p, bool backward);
/* Do this call's terms allow the path, whatever its keys and evictions? The plan as if it took the path, for scratch.
 */
bool wn_sparse_may(const struct wn_attention_plan *p, bool backward);
void wn_sparse_most(struct wn_attention_plan *p);
int64_t wn_sparse_floats(const struct wn_attention_plan *p);
void wn_sparse_fill(struct wn_attention_plan *p, float *scratch);

/* Chunks of 64 distances. */
static inline int64_t wn_sparse_chunks(const struct wn_attention_plan *p) {
  return wn_div_up(p->sparse.count, WN_TILE);
}

/* Column blocks before this one go by distances, in row block `block`; 0 without a sparse rule. */
int64_t wn_sparse_edge(const struct wn_attention_plan *p, int64_t block);

/* wn_terms_seen for a tile that does not lie before the edge. */
static inline uint64_t wn_sparse_seen(const struct wn_attention_plan *p, int64_t position, int64_t j0) {
  return p->sparse.on ? p->sparse.seen[position - j0] : wn_terms_seen(p->a, position, j0);
}

/* Entries of the list up to distance x. */
int64_t wn_sparse_within(const struct wn_attention_plan *p, int64_t x);

/* Decoding: keys of the row at Tk-1 from `first` on, those at places from..from+count-1 counted from the nearest;
 * `at` [count]. wn_sparse_visible: how many there are. */
int64_t wn_sparse_visible(const struct wn_attention_plan *p, int64_t first);
void wn_sparse_keys(const struct wn_attention_plan *p, int64_t from, int64_t count, int32_t *at);

/* wn_logits_complete for n <= 64 logits of head h and the row at `position`, of keys at distances x. */
void wn_sparse_complete(const struct wn_attention_plan *p, int64_t h, int64_t position, const float *q,
                        const int32_t *x, int64_t n, float *logits);

/* One row block: of the list, row i sees begin[i]..end[i]-1 beyond the edge. */
struct wn_sparse_rows {
  int32_t begin[WN_TILE], end[WN_TILE], taken[WN_TILE];
  float *F;  /* [chunks][64][64] selections' F of those pairs; NULL without selection */
  float *dF; /* backward: the same of its gradient */
};
void wn_sparse_rows_init(const struct wn_attention_plan *p, const struct wn_attention_rows *r,
                         struct wn_sparse_rows *to);
/* F[rows,64] of a strip of column block c, left to right: what the far pairs need of it is kept. */
void wn_sparse_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, struct wn_sparse_rows *s,
                    int64_t row, int64_t rows, int64_t c, const float *F);

/* Forward of the far pairs of `count` row blocks, all heads of the unit; the more blocks, the more often a key is met
 * while it is in cache. keys, values: [groups][blocks*64][Dp], unused where they are read directly; the rest as
 * softmax's. */
enum { WN_SPARSE_BLOCKS = 8 };
struct wn_sparse_forward {
  const struct wn_attention_rows *at;
  const struct wn_sparse_rows *rows;
  const float *q;     /* [heads][64][Dp] */
  float *m, *l, *acc; /* [heads][64] of 1, 16, [Dp] */
  float *tile;        /* [64][64] */
};
void wn_sparse_forward(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                       const struct wn_sparse_forward *f, int64_t count, const float *keys, const float *values);

/* Backward, one column block: here the list's places are those of a key, key i is seen by the rows at its position plus
 * x[begin[i]]..x[end[i]-1]. */
void wn_sparse_columns_init(const struct wn_attention_plan *p, int64_t b, int64_t c, struct wn_sparse_rows *to);
/* F[rows,64] of a row block whose edge lies after c, first to last: stores what the far pairs need of it. */
void wn_sparse_columns_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                            struct wn_sparse_rows *s, const float *F);
/* After wn_sparse_backward, last to first: the far pairs' part of dF[rows,64], which is zero elsewhere. */
void wn_sparse_columns_put(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                           struct wn_sparse_rows *s, float *dF);

struct wn_sparse_backward {
  const struct wn_attention_plan *p;
  const struct wn_attention_unit *u;
  const struct wn_sparse_rows *keys;
  int64_t c;
  const float *q, *dy, *lse, *delta; /* [blocks][heads][64] of [Dp], [Dp], 1, 1 */
  float *dq;                         /* [blocks][heads][64][Dp] added to */
  const float *k;                    /* [groups][64][Dp] */
  float *dk, *dv;                    /* [groups][64][Dp] added to */
  float *w, *g, *lse_of, *delta_of;  /* [64][64] of scratch */
};
void wn_sparse_backward(const struct wn_sparse_backward *f);

#endif
