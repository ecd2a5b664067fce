/* The sparse path of the fused attention: strided (Child et al. 2019) and square-root masks (Fernandez, Unsal).
 *
 * Such a rule shows all near distances and few far ones, so scattered that nearly every tile of the score matrix has
 * some: with tiles, T sqrt(T) pairs would take T^2 work. Near distances are processed in ordinary tiles. Keys in
 * earlier tiles are processed by distance, in skewed tiles: row i, column n is the pair (i, i - x[n]). Their products
 * gather rows of keys and values; softmax and selection treat them like any other tile.
 *
 * Ordinary tiles are used with a span, a threshold, dropout on the attention weights or evictions; in backward also
 * with relative positions and position biases; and for rules that show more than a quarter of a tile. Cost: 4 D
 * operations per pair and head, as in a tile, bound by the cache's speed. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SPARSE_H
#define WN_BACKENDS_CPU_ATTENTION_SPARSE_H

#include "backends/cpu/attention/terms.h"

/* Decides whether the plan's rule is sparse. wn_sparse_fill fills the list of distances; it needs wn_sparse_floats of
 * scratch. */
void wn_sparse_init(struct wn_attention_plan *p, bool backward);
/* Do this call's terms allow the path, whatever its keys and evictions are? Below: the plan as if it took the path, for
 * sizing scratch. */
bool wn_sparse_may(const struct wn_attention_plan *p, bool backward);
void wn_sparse_most(struct wn_attention_plan *p);
int64_t wn_sparse_floats(const struct wn_attention_plan *p);
void wn_sparse_fill(struct wn_attention_plan *p, float *scratch);

/* The number of chunks of 64 distances. */
static inline int64_t wn_sparse_chunks(const struct wn_attention_plan *p) {
  return wn_div_up(p->sparse.count, WN_TILE);
}

/* In row block `block`, column blocks before this one (the edge) are processed by distance; 0 without a sparse rule. */
int64_t wn_sparse_edge(const struct wn_attention_plan *p, int64_t block);

/* wn_terms_seen for a tile at or after the edge. */
static inline uint64_t wn_sparse_seen(const struct wn_attention_plan *p, int64_t position, int64_t j0) {
  return p->sparse.on ? p->sparse.seen[position - j0] : wn_terms_seen(p->a, position, j0);
}

/* How many entries of the list are at most x. */
int64_t wn_sparse_within(const struct wn_attention_plan *p, int64_t x);

/* Decoding: which keys from `first` on the row at Tk-1 sees. wn_sparse_visible: their number. wn_sparse_keys: those
 * with indices from..from+count-1, counted from the nearest, to `at` [count]. */
int64_t wn_sparse_visible(const struct wn_attention_plan *p, int64_t first);
void wn_sparse_keys(const struct wn_attention_plan *p, int64_t from, int64_t count, int32_t *at);

/* wn_logits_complete for n <= 64 logits of head h with keys at distances x. */
void wn_sparse_complete(const struct wn_attention_plan *p, int64_t h, const float *q, const int32_t *x, int64_t n,
                        float *logits);

/* One row block: beyond the edge, row i sees entries begin[i]..end[i]-1 of the list. */
struct wn_sparse_rows {
  int32_t begin[WN_TILE], end[WN_TILE], taken[WN_TILE];
  float *F;  /* [chunks][64][64] F of those pairs; NULL without selection */
  float *dF; /* backward: the gradient of F, likewise */
};
void wn_sparse_rows_init(const struct wn_attention_plan *p, const struct wn_attention_rows *r,
                         struct wn_sparse_rows *to);
/* Saves from F[rows,64] of a strip of column block c what the far pairs need. Called from left to right. */
void wn_sparse_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, struct wn_sparse_rows *s,
                    int64_t row, int64_t rows, int64_t c, const float *F);

/* Forward of the far pairs of `count` row blocks, all heads of the unit. With more blocks at a time, keys are reused
 * more often while in cache. keys, values: [groups][blocks*64][Dp], unused if they are read in place; m, l, acc as in
 * softmax. */
enum { WN_SPARSE_BLOCKS = 8 };
struct wn_sparse_forward {
  const struct wn_attention_rows *at;
  const struct wn_sparse_rows *rows;
  const float *q;     /* [heads][64][Dp] */
  float *m, *l, *acc; /* [heads][64] of 1, 16 and Dp floats */
  float *tile;        /* [64][64] */
};
void wn_sparse_forward(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                       const struct wn_sparse_forward *f, int64_t count, const float *keys, const float *values);

/* Backward, one column block. Here list entries belong to a key: key i is seen by the rows at its position plus
 * x[begin[i]]..x[end[i]-1]. */
void wn_sparse_columns_init(const struct wn_attention_plan *p, int64_t b, int64_t c, struct wn_sparse_rows *to);
/* Saves from F[rows,64] of a row block whose edge is after c what the far pairs need. Called from first to last. */
void wn_sparse_columns_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                            struct wn_sparse_rows *s, const float *F);
/* Called after wn_sparse_backward, from last to first: sets the far pairs' entries of dF[rows,64], which is zero
 * elsewhere. */
void wn_sparse_columns_put(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                           struct wn_sparse_rows *s, float *dF);

struct wn_sparse_backward {
  const struct wn_attention_plan *p;
  const struct wn_attention_unit *u;
  const struct wn_sparse_rows *keys;
  int64_t c;
  const float *q, *dy, *lse, *delta; /* [blocks][heads][64] of Dp, Dp, 1 and 1 floats */
  float *dq;                         /* [blocks][heads][64][Dp] added to */
  const float *k;                    /* [groups][64][Dp] */
  float *dk, *dv;                    /* [groups][64][Dp] added to */
  float *w, *g, *lse_of, *delta_of;  /* [64][64] of scratch */
};
void wn_sparse_backward(const struct wn_sparse_backward *f);

#endif
