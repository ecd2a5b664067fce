/* Attention without causality: an encoder's rows, and rows that attend to another sequence's keys (cross-attention).
 * Every row sees every key that is not padding. Serves terms with WN_TRAIT_OPEN.
 *
 * A task is one key-value head of one sequence. Its keys and values are packed once; the row blocks of all its query
 * heads run over them, with the tile operations of the causal kernels. 4 D operations per pair and head forward, 10 D
 * backward. A single row (decoding) reads keys and values in place. */
#include "backends/cpu/attention/products.h"
#include "backends/cpu/attention/score.h"

#include <string.h>

struct open_task {
  const struct wn_attention_plan *p;
  int64_t b, g, keys, blocks; /* number of keys seen, and of their tiles */
  uint64_t tail[WN_TILE];     /* mask of the last tile's columns */
  float *kt, *v, *k, *vt;     /* [blocks][D][64], [blocks][64][Dp]; backward: [blocks][64][Dp], [blocks][D][64] */
  float *dk, *dv;             /* [blocks][64][Dp] */
  float *q, *dy, *acc;        /* [64][Dp]; acc: y, or dq */
  float *w, *G;               /* [64][64] */
  float *m, *l, *factor;      /* [64], [64][16], [64]; backward: m is lse, factor delta */
};

static void open_lay(const struct wn_attention_plan *p, struct wn_arrays *x, bool backward, struct open_task *t) {
  const int64_t tiles = wn_div_up(p->a->Tk, WN_TILE), D = p->a->D, Dp = p->Dp;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(t->kt, "kt", true, WN_DIMS(tiles, D, WN_TILE)),
      WN_ARRAY_FOR(t->v, "v", !backward, WN_DIMS(tiles, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->k, "k", backward, WN_DIMS(tiles, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->vt, "vt", backward, WN_DIMS(tiles, D, WN_TILE)),
      WN_ARRAY_FOR(t->dk, "dk", backward, WN_DIMS(tiles, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->dv, "dv", backward, WN_DIMS(tiles, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->q, "q", true, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->dy, "dy", backward, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->acc, "acc", true, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->w, "w", true, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(t->G, "G", backward, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(t->m, "m", true, WN_DIMS(WN_TILE)),
      WN_ARRAY_FOR(t->l, "l", true, WN_DIMS(WN_TILE, WN_TILE_LANES)),
      WN_ARRAY_FOR(t->factor, "factor", true, WN_DIMS(WN_TILE)),
  };
  WN_ARRAYS_LAY(x, rows);
}

static int threads_of(const struct wn_attention_plan *p) {
  const int64_t tasks = p->a->B * p->a->Hkv;
  return tasks < p->exec->threads ? (int)tasks : p->exec->threads;
}

static struct wn_arrays open_count(const struct wn_attention_plan *p, bool backward) {
  struct wn_arrays x = {0};
  open_lay(p, &x, backward, &(struct open_task){0});
  return x;
}

struct wn_arrays wn_open_scratch(const struct wn_attention_plan *p, bool backward) {
  const struct wn_arrays each = open_count(p, backward);
  struct wn_arrays all = {0};
  wn_arrays_lay_copies(&all, &each, threads_of(p));
  return all;
}

static void open_begin(const struct wn_attention_plan *p, int64_t n, bool backward, struct open_task *t) {
  const struct wn_attention *a = p->a;
  const int64_t D = a->D;
  t->p = p;
  t->b = n / a->Hkv, t->g = n % a->Hkv;
  t->keys = a->key_count ? a->key_count[t->b] : a->Tk;
  t->blocks = wn_div_up(t->keys, WN_TILE);
  const int64_t last = t->keys % WN_TILE;
  for (int i = 0; i < WN_TILE; i++) t->tail[i] = last ? ~UINT64_C(0) >> (WN_TILE - last) : ~UINT64_C(0);
  if (a->Tq == 1 && !backward) return;
  for (int64_t c = 0; c < t->blocks; c++) {
    const int64_t rows = wn_min_i64(WN_TILE, t->keys - c * WN_TILE);
    const float *k = wn_floats_at(a->k, a->s_k, t->b, c * WN_TILE, t->g),
                *v = wn_floats_at(a->v, a->s_v, t->b, c * WN_TILE, t->g);
    p->ops->pack_transposed(t->kt + c * D * WN_TILE, k, a->s_k.t, rows, D, (float)a->scale);
    if (!backward) p->ops->pack(t->v + c * WN_TILE * p->Dp, WN_TILE, p->Dp, v, a->s_v.t, rows, D, 1.0f);
    if (!backward) continue;
    p->ops->pack(t->k + c * WN_TILE * p->Dp, WN_TILE, p->Dp, k, a->s_k.t, rows, D, 1.0f);
    p->ops->pack_transposed(t->vt + c * D * WN_TILE, v, a->s_v.t, rows, D, 1.0f);
  }
}

static const uint64_t *mask_of(const struct open_task *t, int64_t c) {
  return c == t->blocks - 1 && t->keys % WN_TILE ? t->tail : NULL;
}

/* Computes y of rows r..r+rows-1 of head h. */
static void open_forward_rows(const struct open_task *t, int64_t h, int64_t r, int64_t rows) {
  const struct wn_attention_plan *p = t->p;
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, D = a->D;
  const float *q = wn_floats_at(a->q, a->s_q, t->b, r, h);
  const bool single = a->Tq == 1;
  if (!single) p->ops->pack(t->q, rows, Dp, q, a->s_q.t, rows, D, 1.0f);
  memset(t->acc, 0, (size_t)(rows * Dp) * sizeof *t->acc);
  memset(t->l, 0, (size_t)(rows * WN_TILE_LANES) * sizeof *t->l);
  for (int64_t i = 0; i < rows; i++) t->m[i] = -INFINITY;
  for (int64_t c = 0; c < t->blocks; c++) {
    const int64_t j0 = c * WN_TILE, count = wn_min_i64(WN_TILE, t->keys - j0);
    uint64_t keep[WN_TILE];
    const struct wn_terms_strip s = {.a = a, .b = t->b, .h = h, .r = r, .rows = rows, .width = WN_TILE, .j0 = j0};
    if (single) {
      memset(t->w, 0, WN_TILE * sizeof *t->w);
      p->ops->decode_logits(t->w, q, wn_floats_at(a->k, a->s_k, t->b, j0, t->g), a->s_k.t, count, D, (float)a->scale);
    } else {
      wn_tile_logits(p, rows, WN_TILE, t->kt + j0 * D, t->q, t->w);
    }
    if (a->maps > 0) wn_score_tile(p, &s, t->w);
    p->ops->softmax(&(struct wn_tile_softmax){.a = t->w,
                                              .seen = mask_of(t, c),
                                              .rows = rows,
                                              .width = WN_TILE,
                                              .m = t->m,
                                              .l = t->l,
                                              .acc = t->acc,
                                              .acc_width = Dp});
    if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, t->w);
    if (single)
      p->ops->decode_values(t->acc, t->w, wn_floats_at(a->v, a->s_v, t->b, j0, t->g), a->s_v.t, count, D);
    else
      wn_tile_values(p, rows, WN_TILE, t->v + j0 * Dp, t->w, t->acc);
  }
  float *lse = a->lse ? (float *)a->lse + (t->b * a->H + h) * a->Tq + r : NULL;
  p->ops->finish(&(struct wn_tile_finish){.m = t->m, .l = t->l, .rows = rows, .factor = t->factor, .lse = lse});
  wn_terms_unseen(t->m, t->factor, lse, rows);
  p->ops->unpack(wn_floats_out(a->y, a->s_y, t->b, r, h), a->s_y.t, t->acc, Dp, 1, 0, rows, D, t->factor, 1.0f);
}

static void open_forward_group(void *plan, int64_t n) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const struct wn_arrays each = open_count(p, false);
  struct wn_arrays x = wn_arrays_copy(&each, p->exec->scratch, wn_hand());
  struct open_task t;
  open_lay(p, &x, false, &t);
  open_begin(p, n, false, &t);
  for (int64_t h = t.g * p->group; h < (t.g + 1) * p->group; h++)
    for (int64_t r = 0; r < a->Tq; r += WN_TILE) open_forward_rows(&t, h, r, wn_min_i64(WN_TILE, a->Tq - r));
}
void wn_open_forward_run(const struct wn_attention_plan *p) {
  wn_parallel_for(threads_of(p), p->a->B * p->a->Hkv, open_forward_group, p);
}

/* Computes dq of rows r..r+rows-1 of head h, and adds to dk, dv and the sums for parameters of biases. */
static void backward_rows(const struct open_task *t, int64_t h, int64_t r, int64_t rows) {
  const struct wn_attention_plan *p = t->p;
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, D = a->D;
  const bool bends = wn_score_curve(a);
  float mapped[WN_TILE_AREA];
  const float *dy = wn_floats_at(a->dy, a->s_y, t->b, r, h);
  p->ops->pack(t->q, rows, Dp, wn_floats_at(a->q, a->s_q, t->b, r, h), a->s_q.t, rows, D, 1.0f);
  p->ops->pack(t->dy, rows, Dp, dy, a->s_y.t, rows, D, 1.0f);
  p->ops->row_dot(t->factor, dy, a->s_y.t, wn_floats_at(a->y, a->s_y, t->b, r, h), a->s_y.t, rows, D);
  memcpy(t->m, (const float *)a->lse + (t->b * a->H + h) * a->Tq + r, (size_t)rows * sizeof *t->m);
  memset(t->acc, 0, (size_t)(rows * Dp) * sizeof *t->acc);
  for (int64_t c = 0; c < t->blocks; c++) {
    const int64_t j0 = c * WN_TILE;
    uint64_t keep[WN_TILE];
    const struct wn_terms_strip s = {.a = a, .b = t->b, .h = h, .r = r, .rows = rows, .width = WN_TILE, .j0 = j0};
    wn_tile_logits(p, rows, WN_TILE, t->kt + j0 * D, t->q, t->w);
    wn_tile_logits(p, rows, WN_TILE, t->vt + j0 * D, t->dy, t->G);
    if (a->maps > 0) wn_score_tile(p, &s, t->w);
    if (bends) memcpy(mapped, t->w, (size_t)(rows * WN_TILE) * sizeof *mapped); /* W overwrites them */
    if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, t->G);
    p->ops->gradient(&(struct wn_tile_gradient){.a = t->w,
                                                .w = t->w,
                                                .g = t->G,
                                                .seen = mask_of(t, c),
                                                .rows = rows,
                                                .width = WN_TILE,
                                                .lse = t->m,
                                                .delta = t->factor});
    if (t->keys == 1) memset(t->G, 0, (size_t)(rows * WN_TILE) * sizeof *t->G); /* attention weight 1 */
    if (a->dropout.p > 0) wn_terms_drop(p, &s, keep, t->w);
    wn_tile_columns(p, rows, WN_TILE, t->dy, t->w, t->dv + j0 * Dp);
    if (bends) wn_score_tile_gradient(p, &s, mapped, t->G);
    wn_tile_columns(p, rows, WN_TILE, t->q, t->G, t->dk + j0 * Dp);
    wn_tile_values(p, rows, WN_TILE, t->k + j0 * Dp, t->G, t->acc);
    if (p->dbias) wn_score_sum(p, &s, t->G, wn_score_part(p, t->b));
  }
  if (a->dq)
    p->ops->unpack(wn_floats_out(a->dq, a->s_q, t->b, r, h), a->s_q.t, t->acc, Dp, 1, 0, rows, D, NULL,
                   (float)a->scale);
}

/* to[Tk,D] = factor * from; 0 for padding. */
static void open_store(const struct open_task *t, void *array, struct wn_stride stride, const float *from,
                       double factor) {
  const struct wn_attention *a = t->p->a;
  if (!array) return;
  float *to = wn_floats_out(array, stride, t->b, 0, t->g);
  t->p->ops->unpack(to, stride.t, from, t->p->Dp, 1, 0, t->keys, a->D, NULL, (float)factor);
  for (int64_t j = t->keys; j < a->Tk; j++) memset(to + j * stride.t, 0, (size_t)a->D * sizeof *to);
}

static void open_backward_group(void *plan, int64_t n) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const struct wn_arrays each = open_count(p, true);
  struct wn_arrays x = wn_arrays_copy(&each, p->exec->scratch, wn_hand());
  struct open_task t;
  open_lay(p, &x, true, &t);
  open_begin(p, n, true, &t);
  memset(t.dk, 0, (size_t)(t.blocks * WN_TILE * p->Dp) * sizeof *t.dk);
  memset(t.dv, 0, (size_t)(t.blocks * WN_TILE * p->Dp) * sizeof *t.dv);
  for (int64_t h = t.g * p->group; h < (t.g + 1) * p->group; h++)
    for (int64_t r = 0; r < a->Tq; r += WN_TILE) backward_rows(&t, h, r, wn_min_i64(WN_TILE, a->Tq - r));
  open_store(&t, a->dk, a->s_k, t.dk, a->scale);
  open_store(&t, a->dv, a->s_v, t.dv, 1.0);
}
void wn_open_backward_run(const struct wn_attention_plan *p) {
  wn_parallel_for(threads_of(p), p->a->B * p->a->Hkv, open_backward_group, p);
  wn_score_end(p);
}
