/* Backward's arrays (backward_pack.c): rows and columns of a unit in tiles, and what sums up over them. */
#ifndef WN_BACKENDS_CPU_ATTENTION_BACKWARD_H
#define WN_BACKENDS_CPU_ATTENTION_BACKWARD_H

#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/operands.h"
#include "backends/cpu/attention/sparse.h"

enum { WN_BACKWARD_COLUMNS = 4 }; /* column blocks that are processed together, at most */

/* Row side of a unit in tiles. */
struct wn_backward_rows {
  void *q, *dy;                /* [blocks][heads][64][Dp]: in the order of use; left sides of products */
  void *q_right, *dy_right;    /* the same for right sides; of floats, the same arrays */
  float *lse, *delta;          /* [blocks][heads][64] */
  float *sq;                   /* [blocks][64][Dp], bilinear */
  struct wn_span_range *spans; /* [blocks][heads] */
  int32_t *first;              /* [groups] the first column block that is seen */
};

/* What sums up over column blocks. */
struct wn_backward_sums {
  float *dq;  /* [blocks][heads][64][Dp] */
  float *dsq; /* [blocks][64][Dp], bilinear */
  float *dz;  /* [blocks][heads][64], spans */
  /* With spans and rows in bf16: sums of a row's G, which are 0 but for the rounding of the y that delta is taken from,
   * and of W/m over the ramp. Through 1/m a row's dz would get much of that rounding. Or NULL. */
  float *excess, *steep; /* [blocks][heads][64] */
  float *dp;             /* relative positions: a part of wn_terms_relative_part, or NULL */
  float *dbias;          /* position biases */
  float *sinks;          /* a part of wn_sinks_part, or NULL */
};

/* Column side: one column block. */
struct wn_backward_worker {
  void *k;               /* [groups][64][Dp] */
  float *dk, *dv;        /* [groups][64][Dp] */
  void *kt, *vt;         /* [groups][D][64]; kt times scale */
  float *sk, *skt, *dsk; /* bilinear: [64][Dp], [D][64], [64][Dp] */
  float *base;           /* [blocks][64][64] selecting logits of the column block */
  float *carries;        /* [blocks][64] sum of S above each row block */
  float *F, *dF;         /* [64][64] */
  float *pairs[2];       /* [64][64] each, where distances are gathered */
  struct wn_sparse_rows sparse;
  float *w, *g; /* [64][64], the same for all column blocks of a thread */
};

/* Dead-key skipping; one for each thread. */
struct wn_backward_dead_keys {
  struct wn_dead_keys_bound bound;
  struct wn_dead_keys_history history;
  struct wn_dead_keys_slots slots;
};

/* The scratch of a call: rows and sums of each thread (own units), or rows of the team and sums of each of its parts.
 */
struct wn_backward_scratch {
  struct wn_arrays rows, sums, worker; /* one of each, counted */
  void *rows_at, *sums_at, *workers_at;
};

/* Their places in scratch. */
void wn_backward_lay_rows(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                          struct wn_backward_rows *r);
void wn_backward_lay_sums(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads,
                          struct wn_backward_sums *s);
/* Column blocks that are processed together. */
int64_t wn_backward_columns_at_once(const struct wn_attention_plan *p, int64_t heads);
void wn_backward_lay_workers(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                             struct wn_backward_worker w[WN_BACKWARD_COLUMNS], struct wn_backward_dead_keys *dead_keys);
/* Heads and groups of a unit. */
void wn_backward_unit_shape(const struct wn_attention_plan *p, int64_t *heads, int64_t *groups);
void wn_backward_lay(const struct wn_attention_plan *p, struct wn_arrays *l, struct wn_backward_scratch *s);
/* Row block `block` of head h (from u->h0). */
void wn_backward_pack_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                           int64_t block, const struct wn_backward_rows *to);
/* The first column block that group g sees. */
void wn_backward_first_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                             const struct wn_backward_rows *to, int64_t g);
/* The keys and values of column block c; their gradients empty. */
void wn_backward_pack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                              const int32_t *first, const struct wn_backward_worker *w);
/* Adds those gradients to the caller's. */
void wn_backward_unpack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                                const struct wn_backward_worker *w);

/* dq of row block `block` of head h from `parts` sums `step` apart. */
void wn_backward_write_dq(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                          int64_t block, const struct wn_backward_sums *s, int64_t parts, int64_t step);

#endif
