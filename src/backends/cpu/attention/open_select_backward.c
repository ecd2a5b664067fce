/* Backward of open rows that select (open_select.c). */
#include "backends/cpu/attention/open_select.h"
#include "backends/cpu/attention/products.h"

#include <string.h>
#include "backends/cpu/attention/score.h"

/* One part of a unit's columns: where its gradients are added. */
struct open_part {
  float *dq, *dsq, *dbias;
  double strength;
};

static void open_pack_unit_rows(const struct wn_open_place *x, int64_t h, int64_t r) {
  const struct wn_attention *a = x->p->a;
  const int64_t at = (h * x->R + r) * WN_TILE, rows = wn_open_rows(x, r), head = x->u.h0 + h;
  const float *dy = wn_floats_at(a->dy, a->s_y, x->u.b, r * WN_TILE, head);
  wn_open_pack_rows(x, a->q, a->s_q, head, r, x->shared.q + at * x->p->Dp);
  wn_open_pack_rows(x, a->dy, a->s_y, head, r, x->shared.dy + at * x->p->Dp);
  if (h == 0 && x->u.select < 0)
    wn_open_pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, x->shared.sq + r * WN_TILE * x->p->Dp);
  x->p->ops->row_dot(x->shared.delta + at, dy, a->s_y.t, wn_floats_at(a->y, a->s_y, x->u.b, r * WN_TILE, head),
                     a->s_y.t, rows, a->D);
  memcpy(x->shared.lse + at, (const float *)a->lse + (x->u.b * a->H + head) * a->Tq + r * WN_TILE,
         (size_t)rows * sizeof(float));
}

static void open_pack_column(const struct wn_open_place *x, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0), D = a->D, tall = WN_TILE * p->Dp;
  for (int64_t g = 0; g < x->u.groups; g++) {
    const float *k = wn_floats_at(a->k, a->s_k, x->u.b, j0, x->u.g0 + g),
                *v = wn_floats_at(a->v, a->s_v, x->u.b, j0, x->u.g0 + g);
    p->ops->pack(w->k + g * tall, WN_TILE, p->Dp, k, a->s_k.t, rows, D, 1.0f);
    p->ops->pack_transposed(w->kt + g * WN_TILE * D, k, a->s_k.t, rows, D, (float)a->scale);
    p->ops->pack_transposed(w->vt + g * WN_TILE * D, v, a->s_v.t, rows, D, 1.0f);
  }
  memset(w->dk, 0, (size_t)(x->u.groups * tall) * sizeof *w->dk);
  memset(w->dv, 0, (size_t)(x->u.groups * tall) * sizeof *w->dv);
  if (x->u.select >= 0) return;
  const float *sk = wn_floats_at(a->sel.sk, a->sel.s_sk, x->u.b, j0, x->u.choice);
  p->ops->pack(w->sk, WN_TILE, p->Dp, sk, a->sel.s_sk.t, rows, D, 1.0f);
  p->ops->pack_transposed(w->skt, sk, a->sel.s_sk.t, rows, D, (float)a->scale);
  memset(w->dsk, 0, (size_t)tall * sizeof *w->dsk);
}

/* From the gradient G of a tile's logits, mapped to `mapped` (NULL: no map needs them), to those of q and k. */
static void open_logits_gradient(const struct wn_open_place *x, const struct open_part *to, int64_t h, int64_t r,
                                 int64_t c, const float *mapped, float *G) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_terms_strip s = wn_open_strip(x, h, r, c);
  const int64_t g = h / p->group * WN_TILE * p->Dp, at = (h * x->R + r) * WN_TILE * p->Dp;
  if (mapped) wn_score_tile_gradient(p, &s, mapped, G);
  if (p->dbias) wn_score_sum(p, &s, G, to->dbias);
  wn_tile_columns(p, s.rows, WN_TILE, x->shared.q + at, G, x->w->dk + g);
  wn_tile_values(p, s.rows, WN_TILE, x->w->k + g, G, to->dq + at);
}

/* One head on a tile: W, G, dv, dF; also dk and dq, unless the selections' gradient must be added first. */
static void open_backward_head(const struct wn_open_place *x, const struct open_part *to, int64_t h, int64_t r,
                               int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const struct wn_terms_strip s = wn_open_strip(x, h, r, c);
  const int64_t g = h / p->group, row = (h * x->R + r) * WN_TILE, rows = s.rows;
  const bool selects = h == x->u.select, bends = !selects && wn_score_curve(a);
  const float *q = x->shared.q + row * p->Dp, *dy = x->shared.dy + row * p->Dp;
  float *G = selects ? w->G + r * WN_TILE_AREA : w->g, mapped[WN_TILE_AREA];
  uint64_t keep[WN_TILE];
  wn_tile_logits(p, rows, WN_TILE, w->vt + g * WN_TILE * a->D, dy, G);
  if (!selects) {
    wn_tile_logits(p, rows, WN_TILE, w->kt + g * WN_TILE * a->D, q, w->w);
    wn_logits_complete(p, &s, q, w->w);
  }
  if (bends) memcpy(mapped, w->w, (size_t)(rows * WN_TILE) * sizeof *mapped); /* W overwrites them */
  if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, G);
  p->ops->gradient(&(struct wn_tile_gradient){.a = selects ? w->base + r * WN_TILE_AREA : w->w,
                                              .w = w->w,
                                              .g = G,
                                              .F = w->F,
                                              .seen = wn_open_seen(x, c),
                                              .rows = rows,
                                              .width = WN_TILE,
                                              .lse = x->shared.lse + row,
                                              .delta = x->shared.delta + row,
                                              .dF = w->dF + r * WN_TILE_AREA});
  if (x->keys == 1) memset(G, 0, (size_t)(rows * WN_TILE) * sizeof *G); /* its attention weight is 1 */
  if (a->dropout.p > 0) wn_terms_drop(p, &s, keep, w->w);
  wn_tile_columns(p, rows, WN_TILE, dy, w->w, w->dv + g * WN_TILE * p->Dp);
  if (!selects) open_logits_gradient(x, to, h, r, c, bends ? mapped : NULL, G);
}

/* From the sums of dF over all rows to dS of a tile, and on to what its rows selected with. */
static void open_selection_gradient(struct wn_open_place *x, struct open_part *to, int64_t r, int64_t c,
                                    const float *hi, const float *lo) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const int64_t rows = wn_open_rows(x, r), at = r * WN_TILE * p->Dp;
  const float *base = w->base + r * WN_TILE_AREA;
  float *G = w->G + r * WN_TILE_AREA;
  p->ops->open_rest(&(struct wn_tile_open){.x = w->dF + r * WN_TILE_AREA,
                                           .rows = rows,
                                           .own = !a->sel.shift,
                                           .strength = 1,
                                           .hi = (float *)(uintptr_t)hi,
                                           .lo = (float *)(uintptr_t)lo,
                                           .out = w->F});
  struct wn_tile_open t = wn_open_tile(x, r, c, base);
  t.out = G;
  if (x->u.select < 0) memset(G, 0, (size_t)(rows * WN_TILE) * sizeof *G);
  p->ops->open_gradient(&t, w->F, a->sel.dstrength ? &to->strength : NULL);
  if (x->u.select >= 0) {
    open_logits_gradient(x, to, x->u.select, r, c, wn_score_curve(a) ? base : NULL, G);
  } else {
    wn_tile_columns(p, rows, WN_TILE, x->shared.sq + at, G, w->dsk);
    wn_tile_values(p, rows, WN_TILE, w->sk, G, to->dsq + at);
  }
}

/* Stores the rows of a column block of dk, dv or dsk. */
static void open_store_column(const struct wn_open_place *x, void *array, struct wn_stride stride, int64_t head,
                              int64_t c, const float *from, double factor) {
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0);
  if (array)
    x->p->ops->unpack(wn_floats_out(array, stride, x->u.b, j0, head), stride.t, from, x->p->Dp, 1, 0, rows, x->p->a->D,
                      NULL, (float)factor);
}

static void open_backward_column(struct wn_open_place *x, struct open_part *to, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const int64_t tall = WN_TILE * p->Dp;
  const float *kt = x->u.select < 0 ? w->skt : w->kt + x->u.select / p->group * WN_TILE * a->D;
  float S[2][WN_TILE] = {{0}}, dF[2][WN_TILE] = {{0}}; /* sums, and their rounding errors */
  open_pack_column(x, c);
  for (int64_t r = 0; r < x->R; r++) { /* rows of padding select nothing, but the heads need their logits */
    const float *q = x->u.select < 0 ? x->shared.sq + r * tall : x->shared.q + (x->u.select * x->R + r) * tall;
    wn_open_selecting_logits(x, r, c, q, kt, w->base + r * WN_TILE_AREA);
    struct wn_tile_open t = wn_open_tile(x, r, c, w->base + r * WN_TILE_AREA);
    t.hi = S[0], t.lo = S[1];
    p->ops->open_sum(&t);
  }
  for (int64_t r = 0; r < x->R; r++) {
    struct wn_tile_open t = wn_open_tile(x, r, c, w->base + r * WN_TILE_AREA);
    float *down = w->dF + r * WN_TILE_AREA;
    t.hi = S[0], t.lo = S[1], t.out = w->F;
    p->ops->open_rest(&t);
    memset(down, 0, WN_TILE_AREA * sizeof *down);
    for (int64_t h = 0; h < x->u.heads; h++) open_backward_head(x, to, h, r, c);
    if (x->keys == 1) memset(down, 0, WN_TILE_AREA * sizeof *down);
    p->ops->open_sum(
        &(struct wn_tile_open){.x = down, .rows = wn_open_rows(x, r), .strength = 1, .hi = dF[0], .lo = dF[1]});
  }
  for (int64_t r = 0; r < x->R; r++) open_selection_gradient(x, to, r, c, dF[0], dF[1]);
  for (int64_t g = 0; g < x->u.groups; g++) {
    open_store_column(x, a->dk, a->s_k, x->u.g0 + g, c, w->dk + g * tall, a->scale);
    open_store_column(x, a->dv, a->s_v, x->u.g0 + g, c, w->dv + g * tall, 1);
  }
  if (x->u.select < 0) open_store_column(x, a->dsk, a->sel.s_sk, x->u.choice, c, w->dsk, a->scale);
}

/* Clears the gradients of keys that are padding. */
static void open_clear_padding(const struct wn_open_place *x, void *array, struct wn_stride stride, int64_t head) {
  const struct wn_attention *a = x->p->a;
  for (int64_t j = x->keys; array && j < a->Tk; j++)
    memset(wn_floats_out(array, stride, x->u.b, j, head), 0, (size_t)a->D * sizeof(float));
}

static double open_backward_part(struct wn_open_place *x, int64_t part) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_open_parts(p), tall = x->R * WN_TILE * p->Dp, all = x->u.heads * tall;
  struct open_part to = {.dq = x->shared.dq + part * all, .dbias = wn_score_part(p, x->u.b * parts + part)};
  if (x->u.select < 0) to.dsq = x->shared.dsq + part * tall;
  memset(to.dq, 0, (size_t)all * sizeof *to.dq);
  if (to.dsq) memset(to.dsq, 0, (size_t)tall * sizeof *to.dsq);
  for (int64_t c = part * x->R / parts; c < wn_min_i64((part + 1) * x->R / parts, x->blocks); c++)
    open_backward_column(x, &to, c);
  for (int64_t g = x->u.g0; part == 0 && g < x->u.g0 + x->u.groups; g++) {
    open_clear_padding(x, a->dk, a->s_k, g);
    open_clear_padding(x, a->dv, a->s_v, g);
  }
  if (part == 0 && x->u.select < 0) open_clear_padding(x, a->dsk, a->sel.s_sk, x->u.choice);
  return to.strength;
}

static void open_write_dq(const struct wn_open_place *x, int64_t h, int64_t r) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_open_parts(p), tall = WN_TILE * p->Dp, rows = wn_open_rows(x, r);
  if (a->dq)
    p->ops->unpack(wn_floats_out(a->dq, a->s_q, x->u.b, r * WN_TILE, x->u.h0 + h), a->s_q.t,
                   x->shared.dq + (h * x->R + r) * tall, p->Dp, parts, x->u.heads * x->R * tall, rows, a->D, NULL,
                   (float)a->scale);
  if (h == 0 && x->u.select < 0 && a->dsq)
    p->ops->unpack(wn_floats_out(a->dsq, a->sel.s_sq, x->u.b, r * WN_TILE, x->u.choice), a->sel.s_sq.t,
                   x->shared.dsq + r * tall, p->Dp, parts, x->R * tall, rows, a->D, NULL, (float)a->scale);
}

static void open_strength_end(const struct wn_attention_plan *p, const double *strength) {
  const struct wn_attention *a = p->a;
  const int64_t G = wn_selection_groups(a), parts = wn_open_parts(p);
  for (int64_t g = 0; a->sel.dstrength && g < G; g++) {
    float *to = (float *)a->sel.dstrength + g;
    double sum = (double)*to;
    for (int64_t n = g; n < p->units; n += G)
      for (int64_t part = 0; part < parts; part++) sum += strength[n * parts + part];
    *to = (float)sum;
  }
}

static void open_select_backward(void *plan) {
  const struct wn_attention_plan *p = plan;
  const int64_t at_once = wn_open_units(p), parts = wn_open_parts(p), of_rows = wn_open_heads(p) * wn_open_blocks(p);
  const int64_t R = wn_open_blocks(p);
  struct wn_open_room s;
  wn_open_select_lay(p, true, &(struct wn_arrays){.base = p->exec->scratch}, &s);
  struct wn_arrays copy = wn_arrays_copy(&s.worker, s.workers, wn_hand());
  struct wn_open_worker w;
  struct wn_open_place x;
  wn_open_worker_lay(p, true, &copy, &w);
  for (int64_t first = 0; first < p->units; first += at_once) {
    const int64_t n = wn_min_i64(at_once, p->units - first);
    for (struct wn_share i = wn_share(n * of_rows); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, true, first + i.at / of_rows, &x);
      open_pack_unit_rows(&x, i.at % of_rows / R, i.at % R);
    }
    wn_barrier();
    for (struct wn_share i = wn_share(n * parts); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, true, first + i.at / parts, &x);
      s.strength[first * parts + i.at] = open_backward_part(&x, i.at % parts);
    }
    wn_barrier();
    for (struct wn_share i = wn_share(n * of_rows); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, true, first + i.at / of_rows, &x);
      open_write_dq(&x, i.at % of_rows / R, i.at % R);
    }
    wn_barrier();
  }
}

void wn_open_select_backward_run(const struct wn_attention_plan *p) {
  struct wn_open_room s;
  wn_open_select_lay(p, true, &(struct wn_arrays){.base = p->exec->scratch}, &s);
  wn_parallel(p->exec->threads, open_select_backward, p);
  wn_score_end(p);
  open_strength_end(p, s.strength);
}
