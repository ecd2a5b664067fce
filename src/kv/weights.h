/* Evictions by the rows' weights (h2o, tova), rows in blocks: which keys go before which row, found without the
 * attention itself. Logits do not depend on what has gone, so those of ROWS rows against the keys held and the block's
 * own are products; then row by row: the highest score goes, the softmax of each head runs over what is held, and its
 * weights are the next score. For rows of T: O(T (K + ROWS) D) a head in the products, O(T (K + ROWS)) exponentials.
 *
 * Selections F, relative positions, biases, masks by distance, spans and sinks are in the weights. A threshold is not:
 * its choice is the operation's own. */
#ifndef WN_KV_WEIGHTS_H
#define WN_KV_WEIGHTS_H

#include "kv/policy.h"
#include "ops/ops.h"

/* Sets of memory, counted and then placed. */
struct wn_room {
  char *base; /* NULL: only counts */
  size_t used;
};
void *wn_room_take(struct wn_room *layout, int64_t count, size_t each);

/* The first of the n highest; n >= 1. */
int64_t wn_weights_highest(const double *score, int64_t n);
/* Head h's position biases by distance, 0 to farthest. */
void wn_weights_bias(const struct wn_attention *a, wn_dtype dtype, int64_t h, double *out);

/* One sequence and group. A column is a key that was held at the block's first row, or one of the block's own. */
struct wn_weights {
  const struct wn_attention *a;
  const wn_budgets *budgets;
  wn_dtype dtype;
  int64_t kv_heads, heads, choices;    /* of the group; choices: selections */
  int64_t b, group, K, first;          /* first: the position of the document's first token */
  int64_t n;                           /* columns held at the next block's first row, oldest first */
  int32_t *held, *place;               /* [Tk] key and position */
  double *score;                       /* [Tk] the highest goes; -inf: it has gone */
  double *F;                           /* [choices,Tk] */
  void *keys;                          /* [Tk,D] */
  void *logits;                        /* [heads,ROWS,Tk] products */
  void *selecting;                     /* [choices,ROWS,Tk] bilinear */
  void *relative;                      /* [heads,ROWS,reach] q . p[x] */
  void *sinks;                         /* [heads,ROWS,n] */
  double *bias;                        /* [heads,farthest+1] by distance */
  void *add, *extra, *span, *e, *mass; /* [Tk] of one row */
};

/* Can evictions of this call be found so? The walk serves the terms of WN_WEIGHTS_SERVED. */
#define WN_WEIGHTS_SERVED (WN_TERMS_OWN & ~WN_TERM_THRESHOLD)
bool wn_weights_walks(const struct wn_attention *a, int64_t P);
void wn_weights_lay(struct wn_weights *w, const struct wn_attention *a, wn_dtype dtype, int64_t P,
                    struct wn_room *layout);
void wn_weights_begin(struct wn_weights *w, const wn_budgets *budgets, int64_t K, int64_t b, int64_t group);
/* Rows row0..row0+rows-1 of the call, in order, of a document whose last row in the call is `last` (-1: none; its
 * weights decide nothing). gone [Tk] of the sequence and group. */
wn_status wn_weights_rows(const struct wn_exec *exec, struct wn_weights *w, int64_t row0, int64_t rows, int64_t last,
                          int32_t *gone);

/* Rows behind the keys of a cache, whose selections are f_in: gone [B,P,stride] of a->slots, and what the policy keeps
 * of each key, `weights` [B,P,stride], carried on to behind the last row for the keys that are left. */
size_t wn_weights_piece_scratch(const struct wn_exec *exec, const struct wn_attention *a);
wn_status wn_weights_piece(const struct wn_exec *exec, const wn_budgets *budgets, int64_t K,
                           const struct wn_attention *a, void *weights, int32_t *gone);

#endif
