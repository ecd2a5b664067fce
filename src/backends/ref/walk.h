/* The walk that finds evictions (ops/evictions.h). It visits the rows of one sequence and head group in order, as
 * decoding would, but without the attention itself. Products and sums are operations of the backend in use, so cpu uses
 * this walk too.
 *
 * Rows come in blocks of WN_WALK_ROWS. Logits do not depend on evictions, so those of a block's rows with the held keys
 * and the block's own keys are matrix products. Then, row by row: if the budget is full a token is evicted; the row's
 * selections are added to F; its attention sums over the held keys are added to the policy's notes. Cost for T rows, by
 * what the rule needs:
 *
 *   nothing      O(T): without a score the oldest token that is not a sink is evicted (streaming, window)
 *   positions    O(T K)
 *   keys, values O(T) scores where a token's never changes, else O(T K D) a head
 *   selections   O(T (K + ROWS) D) per selection in the products: only the selecting head
 *   sums         O(T (K + ROWS) D) per head in the products, O(T (K + ROWS)) exponentials. With a threshold, whose
 *                choice is attention's own, attention runs on one row at a time: at most O(T^2 D) a head
 *
 * Logits come from the backend's product in the call's precision; scores are summed in double in the order of the rows.
 * A cache keeps scores in its own precision, and its logits come from other products. So it evicts another token only
 * if two scores are equal up to rounding. Scores that are equal in exact arithmetic, such as F of tokens that nothing
 * has selected, are exactly 0 in both. */
#ifndef WN_BACKENDS_REF_WALK_H
#define WN_BACKENDS_REF_WALK_H

#include "base/arrays.h"
#include "ops/attention.h"
#include "ops/evictions.h"

enum { WN_WALK_ROWS = 64 };

/* A column is a key that was held at the block's first row, or a key of the block itself. */
struct wn_walk {
  const struct wn_evictions *op;
  const struct wn_attention *a;
  struct wn_evict_rule rule; /* with the group's own numbers */
  wn_dtype dtype;
  bool sums;                               /* attention sums are needed */
  bool operation;                          /* and a policy's own function computes them (op->own) */
  bool all;                                /* logits of all heads are needed; else of the selecting heads */
  int64_t kv_heads, heads, choices, notes; /* of the group; choices: selections that are computed */
  int64_t b, group, K;
  int64_t first;        /* position of the document's first token */
  int64_t n;            /* columns held at the next block's first row, oldest first */
  bool oldest;          /* all scores are equal: the oldest is evicted, and evicted tokens keep their columns */
  int64_t alive, next;  /* with oldest: number of held columns; columns before `next` can no longer be evicted */
  int32_t *key, *place; /* [Tk] the key in a column; its position in the text */
  int32_t *at;          /* [Tk] its position in the document; -1: evicted */
  double *score;        /* [Tk] if it never changes */
  double *note;         /* [notes,Tk] */
  double *F;            /* [choices,Tk] */
  void *keys;           /* [Tk,D] */
  void *logits;         /* [heads or choices,ROWS,Tk] products */
  void *selecting;      /* [choices,ROWS,Tk] bilinear */
  void *relative;       /* [heads or choices,ROWS,reach] q . p[x] */
  void *sink_logits;    /* [heads,ROWS,n] */
  double *bias;         /* [heads or choices,Tk] the biases by distance */
  void *add;            /* [choices or 1,n] for one row: -F, or -inf if it does not see the column */
  void *extra, *span;   /* [heads,n] for one row, or NULL: terms by distance to be added; the span mask. With a curve,
                         * extra is the whole mapped logit, as with keyed maps */
  void *zero;           /* [heads,Tk] zeros, which replace the products in the sums if extra has whole logits */
  enum wn_isa isa;
  double *room;          /* for a score of all held tokens by keys and values */
  void *row_sums;        /* [Tk] for one row */
  double *row_notes;     /* [Tk] its attention sums */
  void *y, *f, *weights; /* for op->own: [H/P,D]; [G,Tk] F of the rows so far; [Tk] */
  void *scratch;         /* for products, and for operations on one row */
  size_t scratch_bytes;
};

/* Lays out the arrays of one thread; then w is ready, except for sequence and group. */
void wn_walk_lay(const struct wn_exec *exec, const struct wn_evictions *op, struct wn_arrays *arrays,
                 struct wn_walk *w);
/* Starts sequence b and group `group` of the call. */
void wn_walk_begin(struct wn_walk *w, int64_t b, int64_t group);
/* Starts a document whose first token is at position `first`, with no key held. */
void wn_walk_document(struct wn_walk *w, int64_t first);
/* Makes column w->n the key at position `place`, with notes and F of 0. */
void wn_walk_enter(struct wn_walk *w, int64_t column, int64_t key, int64_t place);
/* Walks rows row0..row0+rows-1 of the call, in order. last: the document's last row in the call, whose attention
 * weights have no effect; or -1. evicted_at [Tk]: of the sequence and group. */
wn_status wn_walk_rows(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows, int64_t last,
                       int32_t *evicted_at);

/* ---- walk_logits.c: logits, selections and attention sums of rows ---- */

/* The head in the group whose logits select for choice s. */
int64_t wn_walk_selecting_head(const struct wn_walk *w, int64_t s);
int64_t wn_walk_reach(const struct wn_attention *a);
/* Do maps read the whole logit, so that they cannot be added to the products? */
static inline bool wn_walk_maps_whole(const struct wn_attention *a) {
  return wn_score_curve(a) || wn_score_keyed(a) > 0;
}
/* Computes biases by distance, for the heads that are needed. */
void wn_walk_biases(struct wn_walk *w);
/* Computes the products of a block's rows with all columns. */
wn_status wn_walk_products(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows);
/* F of choice s += S of row r of the block, for n columns; the last is the row's own. */
void wn_walk_select(struct wn_walk *w, int64_t s, int64_t r, int64_t n);
/* row_notes [n] = the attention sums of row `row` of the call, which is row r of the block. */
wn_status wn_walk_sums(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t r, int64_t n,
                       const int32_t *evicted_at);
/* Bytes of scratch for operations on one row and (products) for the products. */
size_t wn_walk_scratch(const struct wn_exec *exec, const struct wn_walk *w, bool products);

#endif
