/* Arrays of forward, and rows whose logits are kept (forward_logits.c), for a threshold or a look. */
#ifndef WN_BACKENDS_CPU_ATTENTION_FORWARD_H
#define WN_BACKENDS_CPU_ATTENTION_FORWARD_H

#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/operands.h"
#include "backends/cpu/attention/sparse.h"

enum { WN_FORWARD_ROWS = WN_SPARSE_BLOCKS }; /* at most this many row blocks are processed together */

/* A unit's keys and values in tiles. */
struct wn_forward_packed {
  void *kt;          /* [blocks][groups][D][64] times scale: in the order of use */
  void *v;           /* [blocks][groups][64][Dp] */
  float *skt;        /* [blocks][D][64], bilinear */
  float *k, *rows_v; /* [groups][blocks*64][Dp], if keys are gathered by distance */
  int32_t *first;    /* [groups] the first block that some row sees; earlier ones are not packed */
};

/* The state of one row block. */
struct wn_forward_rows {
  struct wn_attention_rows at;
  void *q;                     /* [heads][64][Dp] */
  float *acc, *m, *l;          /* [heads][64] of Dp, 1 and 16 floats */
  float *base, *F;             /* [64][64] of the current tile */
  float *sq;                   /* [64][Dp], bilinear */
  float *mem;                  /* [64] */
  struct wn_span_range *spans; /* [heads] */
  float *logits;               /* [heads whose logits are kept][64][blocks*64]: threshold, a look */
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  int count; /* number of strips in the current tile */
  struct wn_sparse_rows sparse;
};

struct wn_forward_worker {
  struct wn_forward_rows rows[WN_FORWARD_ROWS];
  float *tile;   /* [64][64]; if keys are gathered, one for each row block */
  float *factor; /* [64] */
  float *carry;  /* [blocks*64] */
  float *order;  /* threshold, a look: keys of one row */
  struct wn_dead_keys_bound bound;
  struct wn_dead_keys_list list;
};

/* Are whole rows of logits kept? */
bool wn_forward_keeps_logits(const struct wn_attention *a);
/* How many heads' rows are kept at a time. */
int64_t wn_forward_logits_heads(const struct wn_attention *a, int64_t heads);
/* The kept logits of head h, [64][blocks*64], or NULL. */
float *wn_forward_logits_of(const struct wn_attention_plan *p, const struct wn_forward_rows *r, int64_t h);
/* Floats of scratch for sorting one row. */
int64_t wn_forward_order_floats(const struct wn_attention_plan *p);
/* Sets logits to -inf that no tile will store: those outside the tiles, and those beside the strips of the diagonal. */
void wn_forward_clear_logits(const struct wn_attention_plan *p, const struct wn_forward_rows *r, int64_t h);
/* Uses the kept logits of head h, once those of a whole row block are complete. */
void wn_forward_use_logits(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                           const struct wn_forward_packed *k, const struct wn_forward_worker *w,
                           const struct wn_forward_rows *r, int64_t h);

#endif
