/* The walk that finds evictions (ops/evictions.h): it visits the rows of one sequence and group of heads in order, as
 * decoding would, but without the attention itself. Products and sums are the operations of the backend that was asked,
 * so that cpu's walk is this one too.
 *
 * Rows come in blocks of WN_WALK_ROWS. Logits do not depend on evictions, so those of a block's rows against the keys
 * held and the block's own are matrix products; then row by row: if the budget is full a token is evicted, the row's
 * selections are added to F, and its attention sums over the keys held are added to the policy's notes. For rows of T:
 *
 *   nothing      O(T): without a score the oldest token that is no sink is evicted (streaming, window)
 *   positions    O(T K)
 *   selections   O(T (K + ROWS) D) per selection in the products: only the selecting head
 *   sums         O(T (K + ROWS) D) per head in the products, O(T (K + ROWS)) exponentials; with a threshold, whose
 * choice is the operation's own, the operation on one row at a time, O(T^2 D) a head at most
 *
 * Logits come from the backend's product in the call's precision, scores add up in double in the order of the rows. A
 * cache keeps them in its own precision and its logits come from other products; it evicts another token only where two
 * scores are equal to rounding. Scores that are equal in exact arithmetic, such as F of tokens that nothing has
 * selected, are exactly 0 in both. */
#ifndef WN_BACKENDS_REF_WALK_H
#define WN_BACKENDS_REF_WALK_H

#include "base/arrays.h"
#include "ops/attention.h"
#include "ops/evictions.h"

enum { WN_WALK_ROWS = 64 };

/* A column is a key that was held at the block's first row, or one of the block's own. */
struct wn_walk {
  const struct wn_evictions *op;
  const struct wn_attention *a;
  struct wn_evict_rule rule; /* of the group */
  wn_dtype dtype;
  bool sums;                               /* are wanted */
  bool operation;                          /* computed by op->own */
  bool all;                                /* logits of all heads; else of the selecting ones */
  int64_t kv_heads, heads, choices, notes; /* of the group; choices: selections that are computed */
  int64_t b, group, K;
  int64_t first;        /* the position of the document's first token */
  int64_t n;            /* columns held at the next block's first row, oldest first */
  bool oldest;          /* all scores are equal: the oldest goes, and columns of evicted tokens stay where they are */
  int64_t alive, next;  /* oldest: columns that are held; no column before `next` can be evicted */
  int32_t *key, *place; /* [Tk] the column's key, and its position in the text */
  int32_t *at;          /* [Tk] its position in the document; -1: evicted */
  double *score;        /* [Tk] by position */
  double *note;         /* [notes,Tk] */
  double *F;            /* [choices,Tk] */
  void *keys;           /* [Tk,D] */
  void *logits;         /* [heads or choices,ROWS,Tk] products */
  void *selecting;      /* [choices,ROWS,Tk] bilinear */
  void *relative;       /* [heads or choices,ROWS,reach] q . p[x] */
  void *sink_logits;    /* [heads,ROWS,n] */
  double *bias;         /* [heads or choices,farthest+1] by distance */
  void *add;            /* [choices or 1,n] of one row: -F, -inf where a column is not seen */
  void *extra, *span;   /* [heads,n] of one row: added by distance, and the factor of a span; or NULL. With score maps
                           extra is all of a mapped logit */
  void *zero;           /* [heads,Tk] with score maps: what the sums then have for products */
  enum wn_isa isa;
  void *row_sums;        /* [Tk] of one row */
  double *row_notes;     /* [Tk] its sums */
  void *y, *f, *weights; /* of op->own: [H/P,D]; [G,Tk] F of the rows so far; [Tk] */
  void *scratch;         /* of the products and of the operations on one row */
  size_t scratch_bytes;
};

/* The arrays of one thread; w is set up for the call except for the sequence and group. */
void wn_walk_lay(const struct wn_exec *exec, const struct wn_evictions *op, struct wn_arrays *arrays,
                 struct wn_walk *w);
/* Sequence b and group `group` of the call. */
void wn_walk_begin(struct wn_walk *w, int64_t b, int64_t group);
/* A document whose first token is at position `first`: nothing is held. */
void wn_walk_document(struct wn_walk *w, int64_t first);
/* Column w->n is the key at position `place`, whose notes and F are 0. */
void wn_walk_enter(struct wn_walk *w, int64_t column, int64_t key, int64_t place);
/* Rows row0..row0+rows-1 of the call, in order; `last`: the document's last row in the call, whose weights have no
 * effect, or -1. evicted_at [Tk] of the sequence and group. */
wn_status wn_walk_rows(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows, int64_t last,
                       int32_t *evicted_at);

/* ---- walk_logits.c: logits, selections and attention sums of rows ---- */

/* The head, of the group's, whose logits select for choice s. */
int64_t wn_walk_selecting_head(const struct wn_walk *w, int64_t s);
int64_t wn_walk_reach(const struct wn_attention *a);
/* Position biases of the heads that are run, by distance. */
void wn_walk_biases(struct wn_walk *w);
/* Products of a block's rows with all columns. */
wn_status wn_walk_products(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows);
/* F of choice s += S of row r of the block, over n columns, its own the last. */
void wn_walk_select(struct wn_walk *w, int64_t s, int64_t r, int64_t n);
/* row_notes [n]: the attention sums of row `row` of the call, row r of the block. */
wn_status wn_walk_sums(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t r, int64_t n,
                       const int32_t *evicted_at);
/* Scratch of the operations on one row and, where there are any, of the products. */
size_t wn_walk_scratch(const struct wn_exec *exec, const struct wn_walk *w, bool products);

#endif
