/* Shared by forward and backward of open rows that select (open_select.c). */
#ifndef WN_BACKENDS_CPU_ATTENTION_OPEN_SELECT_H
#define WN_BACKENDS_CPU_ATTENTION_OPEN_SELECT_H

#include "backends/cpu/attention/score.h"

/* Shared by the threads of a unit. R: number of row blocks; those with keys are column blocks too. */
struct wn_open_unit {
  float *kt, *v, *skt; /* forward: [groups][R][D][64], [groups][R][64][Dp], bilinear [R][D][64] */
  float *hi, *lo;      /* forward: [R][64] sums of S */
  float *q, *dy, *sq;  /* backward: [heads][R][64][Dp] twice, bilinear [R][64][Dp] */
  float *lse, *delta;  /* backward: [heads][R][64] */
  float *dq, *dsq;     /* backward: [parts][heads][R][64][Dp], [parts][R][64][Dp] */
};
struct wn_open_worker {
  float *q, *sq, *acc, *m, *l, *factor; /* forward: [heads][64][Dp], [64][Dp], [heads][64][Dp], [heads][64],
                                         * [heads][64][16], [64] */
  float *k, *kt, *vt, *dk, *dv;         /* backward: a column block of each group */
  float *sk, *skt, *dsk;                /* likewise for the bilinear form */
  float *base, *G, *dF;                 /* [64][64]; backward: [R][64][64] */
  float *w, *g, *F;                     /* [64][64] */
};

/* The state of one thread in one unit: the keys of its sequence, and the masks of a tile. */
struct wn_open_place {
  const struct wn_attention_plan *p;
  struct wn_open_unit shared;
  const struct wn_open_worker *w;
  struct wn_attention_unit u;
  int64_t keys, blocks, R;
  uint64_t tail[WN_TILE], allow[WN_TILE];
};

/* All scratch: units, workers, and the strengths' gradient of every part. */
struct wn_open_room {
  struct wn_arrays unit, worker;
  void *units, *workers;
  double *strength; /* [units][parts] */
};

static inline int64_t wn_open_heads(const struct wn_attention_plan *p) {
  return p->units == p->a->B ? p->a->H : p->group;
}
static inline int64_t wn_open_groups(const struct wn_attention_plan *p) {
  return p->units == p->a->B ? p->a->Hkv : 1;
}
static inline int64_t wn_open_blocks(const struct wn_attention_plan *p) {
  return wn_div_up(p->a->Tq, WN_TILE);
}
/* Parts of a unit's columns in backward: several if there are few units. They depend only on the shape, since the order
 * of sums must not depend on the number of threads. */
static inline int64_t wn_open_parts(const struct wn_attention_plan *p) {
  enum { ITEMS = 8 };
  return wn_max_i64(1, wn_min_i64(ITEMS / p->units, wn_open_blocks(p)));
}
static inline int64_t wn_open_units(const struct wn_attention_plan *p) {
  return wn_min_i64(p->units, p->exec->threads);
}
static inline int64_t wn_open_rows(const struct wn_open_place *x, int64_t r) {
  return wn_min_i64(WN_TILE, x->p->a->Tq - r * WN_TILE);
}
static inline const uint64_t *wn_open_seen(const struct wn_open_place *x, int64_t c) {
  return c == x->blocks - 1 && x->keys % WN_TILE ? x->tail : NULL;
}
static inline struct wn_terms_strip wn_open_strip(const struct wn_open_place *x, int64_t h, int64_t r, int64_t c) {
  return (struct wn_terms_strip){.a = x->p->a,
                                 .b = x->u.b,
                                 .h = x->u.h0 + h,
                                 .r = r * WN_TILE,
                                 .rows = wn_open_rows(x, r),
                                 .width = WN_TILE,
                                 .j0 = c * WN_TILE};
}

/* Lay out the arrays of a worker, and of a call. */
void wn_open_worker_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x,
                        struct wn_open_worker *t);
void wn_open_select_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x, struct wn_open_room *s);
/* Begins work on unit n. */
void wn_open_place_init(const struct wn_attention_plan *p, const struct wn_open_room *s, const struct wn_open_worker *w,
                        bool backward, int64_t n, struct wn_open_place *x);
/* The selecting logits of a tile: q, the selecting rows, times the packed columns. */
void wn_open_selecting_logits(const struct wn_open_place *x, int64_t r, int64_t c, const float *q, const float *kt,
                              float *base);
/* What the rows of block r select among the columns of block c, given the logits `base`. */
struct wn_tile_open wn_open_tile(struct wn_open_place *x, int64_t r, int64_t c, const float *base);
/* to[64,Dp] = rows of block r of head h. */
void wn_open_pack_rows(const struct wn_open_place *x, const void *from, struct wn_stride s, int64_t h, int64_t r,
                       float *to);

#endif
