/* Arrays of backward (backward_pack.c): a unit's rows and columns in tiles, and the sums over them. */
#ifndef WN_BACKENDS_CPU_ATTENTION_BACKWARD_H
#define WN_BACKENDS_CPU_ATTENTION_BACKWARD_H

#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/operands.h"
#include "backends/cpu/attention/sparse.h"

enum { WN_BACKWARD_COLUMNS = 4 }; /* at most this many column blocks are processed together */

/* A unit's rows in tiles. */
struct wn_backward_rows {
  void *q, *dy;                /* [blocks][heads][64][Dp]: in the order of use; left operands of products */
  void *q_right, *dy_right;    /* the same as right operands; for floats these are the same arrays */
  float *lse, *delta;          /* [blocks][heads][64] */
  float *sq;                   /* [blocks][64][Dp], bilinear */
  struct wn_span_range *spans; /* [blocks][heads] */
  int32_t *first;              /* [groups] the first column block that any row sees */
};

/* Sums over column blocks. */
struct wn_backward_sums {
  float *dq;  /* [blocks][heads][64][Dp] */
  float *dsq; /* [blocks][64][Dp], bilinear */
  float *dz;  /* [blocks][heads][64], spans */
  /* With spans and bf16 rows, else NULL: sums of a row's G, and of W/m over the ramp. G sums to 0 except for the
   * rounding of y in delta, and the factor 1/m would put much of that rounding into a row's dz. */
  float *excess, *steep; /* [blocks][heads][64] */
  float *dp;             /* relative positions: one part, see wn_terms_relative_part; or NULL */
  float *dbias;          /* sums for parameters of biases */
  double *dkeys;         /* and for the keys' numbers: wn_score_keys_part; or NULL */
  float *sinks;          /* one part, see wn_sinks_part; or NULL */
};

/* One column block. */
struct wn_backward_worker {
  void *k;               /* [groups][64][Dp] */
  float *dk, *dv;        /* [groups][64][Dp] */
  void *kt, *vt;         /* [groups][D][64]; kt times scale */
  float *sk, *skt, *dsk; /* bilinear: [64][Dp], [D][64], [64][Dp] */
  float *base;           /* [blocks][64][64] selecting logits */
  float *carries;        /* [blocks][64] sum of S over the rows before each row block */
  float *F, *dF;         /* [64][64] */
  float *pairs[2];       /* [64][64] each, if keys are gathered by distance */
  struct wn_sparse_rows sparse;
  float *w, *g; /* [64][64], shared by a thread's column blocks */
};

/* For dead-key skipping; one per thread. */
struct wn_backward_dead_keys {
  struct wn_dead_keys_bound bound;
  struct wn_dead_keys_history history;
  struct wn_dead_keys_slots slots;
};

/* The scratch of a call: with own units rows and sums for each thread; in a team shared rows, and sums for each
 * part. */
struct wn_backward_scratch {
  struct wn_arrays rows, sums, worker; /* the size of one each */
  void *rows_at, *sums_at, *workers_at;
};

/* Lays out the arrays in scratch. */
void wn_backward_lay_rows(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                          struct wn_backward_rows *r);
void wn_backward_lay_sums(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads,
                          struct wn_backward_sums *s);
/* How many column blocks are processed together. */
int64_t wn_backward_columns_at_once(const struct wn_attention_plan *p, int64_t heads);
void wn_backward_lay_workers(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                             struct wn_backward_worker w[WN_BACKWARD_COLUMNS], struct wn_backward_dead_keys *dead_keys);
/* The number of heads and groups in a unit. */
void wn_backward_unit_shape(const struct wn_attention_plan *p, int64_t *heads, int64_t *groups);
void wn_backward_lay(const struct wn_attention_plan *p, struct wn_arrays *l, struct wn_backward_scratch *s);
/* Packs row block `block` of head h (counted from u->h0). */
void wn_backward_pack_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                           int64_t block, const struct wn_backward_rows *to);
/* Sets the first column block that group g sees. */
void wn_backward_first_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                             const struct wn_backward_rows *to, int64_t g);
/* Packs keys and values of column block c and clears their gradients. */
void wn_backward_pack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                              const int32_t *first, const struct wn_backward_worker *w);
/* Adds the block's gradients to the caller's. */
void wn_backward_unpack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                                const struct wn_backward_worker *w);

/* Writes dq of row block `block` of head h: the sum of `parts` arrays, `step` apart. */
void wn_backward_write_dq(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                          int64_t block, const struct wn_backward_sums *s, int64_t parts, int64_t step);

#endif
