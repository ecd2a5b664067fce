/* Open rows that select (an encoder's, docs/selective-attention.md): F[i,j] = the sum over rows k != i of S[k,j].
 *
 * A unit is a sequence, or a key-value head's group if each group has its own selection. As many units as there are
 * threads are processed at a time, in steps that all threads share:
 *
 *   forward:  1. pack keys and values
 *             2. sum S down each column block, from the selecting head's logits
 *             3. row blocks: the tile of F serves all heads of the unit
 *   backward: 1. pack rows
 *             2. column blocks: selecting logits and sums of S; W, G, dv, dF of every head; sums of dF, and from them
 *                dS[k,j] = sum over i != k of dF[i,j], which is added to the selecting head's G
 *             3. add up the parts of dq
 *
 * Each block belongs to one thread and sums run in a fixed order, so results are bitwise independent of the number of
 * threads. Nothing is T x T. Forward computes the selecting head's logits once more than dense attention: 2 D
 * operations a pair for all heads together. Backward keeps those of a column block, so it needs no product beyond dense
 * attention (except in the bilinear form). Scratch of a thread in backward: three times T x 64 floats. */
#include "backends/cpu/attention/open_select.h"
#include "backends/cpu/attention/products.h"

#include <string.h>
#include "backends/cpu/attention/score.h"

static void open_unit_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x,
                          struct wn_open_unit *t) {
  const int64_t R = wn_open_blocks(p), D = p->a->D, Dp = p->Dp, heads = wn_open_heads(p), groups = wn_open_groups(p);
  const int64_t parts = wn_open_parts(p);
  const bool bilinear = p->a->sel.bilinear;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(t->kt, "kt", !backward, WN_DIMS(groups, R, D, WN_TILE)),
      WN_ARRAY_FOR(t->v, "v", !backward, WN_DIMS(groups, R, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->skt, "skt", !backward && bilinear, WN_DIMS(R, D, WN_TILE)),
      WN_ARRAY_FOR(t->hi, "sums of S", !backward, WN_DIMS(R, WN_TILE)),
      WN_ARRAY_FOR(t->lo, "sums of S, rest", !backward, WN_DIMS(R, WN_TILE)),
      WN_ARRAY_FOR(t->q, "q", backward, WN_DIMS(heads, R, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->dy, "dy", backward, WN_DIMS(heads, R, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->sq, "sq", backward && bilinear, WN_DIMS(R, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->lse, "lse", backward, WN_DIMS(heads, R, WN_TILE)),
      WN_ARRAY_FOR(t->delta, "delta", backward, WN_DIMS(heads, R, WN_TILE)),
      WN_ARRAY_FOR(t->dq, "dq", backward, WN_DIMS(parts * heads, R, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->dsq, "dsq", backward && bilinear, WN_DIMS(parts, R, WN_TILE, Dp)),
  };
  WN_ARRAYS_LAY(x, rows);
}

void wn_open_worker_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x,
                        struct wn_open_worker *t) {
  const int64_t R = backward ? wn_open_blocks(p) : 1, D = p->a->D, Dp = p->Dp, heads = wn_open_heads(p);
  const int64_t groups = wn_open_groups(p);
  const bool bilinear = backward && p->a->sel.bilinear;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(t->q, "q", !backward, WN_DIMS(heads, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->sq, "sq", !backward, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->acc, "acc", !backward, WN_DIMS(heads, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->m, "m", !backward, WN_DIMS(heads, WN_TILE)),
      WN_ARRAY_FOR(t->l, "l", !backward, WN_DIMS(heads, WN_TILE, WN_TILE_LANES)),
      WN_ARRAY_FOR(t->factor, "factor", !backward, WN_DIMS(WN_TILE)),
      WN_ARRAY_FOR(t->k, "k", backward, WN_DIMS(groups, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->kt, "kt", backward, WN_DIMS(groups, D, WN_TILE)),
      WN_ARRAY_FOR(t->vt, "vt", backward, WN_DIMS(groups, D, WN_TILE)),
      WN_ARRAY_FOR(t->dk, "dk", backward, WN_DIMS(groups, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->dv, "dv", backward, WN_DIMS(groups, WN_TILE, Dp)),
      WN_ARRAY_FOR(t->sk, "sk", bilinear, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->skt, "skt", bilinear, WN_DIMS(D, WN_TILE)),
      WN_ARRAY_FOR(t->dsk, "dsk", bilinear, WN_DIMS(WN_TILE, Dp)),
      WN_ARRAY_FOR(t->base, "selecting logits", true, WN_DIMS(R, WN_TILE_AREA)),
      WN_ARRAY_FOR(t->G, "G", backward, WN_DIMS(R, WN_TILE_AREA)),
      WN_ARRAY_FOR(t->dF, "dF", backward, WN_DIMS(R, WN_TILE_AREA)),
      WN_ARRAY_FOR(t->w, "w", true, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(t->g, "g", backward, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(t->F, "F", true, WN_DIMS(WN_TILE_AREA)),
  };
  WN_ARRAYS_LAY(x, rows);
}

void wn_open_select_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x, struct wn_open_room *s) {
  *s = (struct wn_open_room){0};
  open_unit_lay(p, backward, &s->unit, &(struct wn_open_unit){0});
  wn_open_worker_lay(p, backward, &s->worker, &(struct wn_open_worker){0});
  s->units = wn_arrays_lay_copies(x, &s->unit, wn_open_units(p));
  s->workers = wn_arrays_lay_copies(x, &s->worker, p->exec->threads);
  const struct wn_array rows[] = {WN_ARRAY_FOR(s->strength, "strength", backward, WN_DIMS(p->units, wn_open_parts(p)))};
  WN_ARRAYS_LAY(x, rows);
}

struct wn_arrays wn_open_select_scratch(const struct wn_attention_plan *p, bool backward) {
  struct wn_arrays x = {0};
  wn_open_select_lay(p, backward, &x, &(struct wn_open_room){0});
  return x;
}

void wn_open_place_init(const struct wn_attention_plan *p, const struct wn_open_room *s, const struct wn_open_worker *w,
                        bool backward, int64_t n, struct wn_open_place *x) {
  const struct wn_attention *a = p->a;
  struct wn_arrays shared = wn_arrays_copy(&s->unit, s->units, n % wn_open_units(p));
  open_unit_lay(p, backward, &shared, &x->shared);
  x->p = p, x->w = w;
  wn_attention_unit_init(p, n, &x->u);
  x->keys = a->key_count ? a->key_count[x->u.b] : a->Tk;
  x->blocks = wn_div_up(x->keys, WN_TILE);
  x->R = wn_open_blocks(p);
  const int64_t last = x->keys % WN_TILE;
  for (int i = 0; i < WN_TILE; i++) x->tail[i] = last ? ~UINT64_C(0) >> (WN_TILE - last) : ~UINT64_C(0);
}

/* What the rows of block r may select among the columns of block c; NULL: all. */
static const uint64_t *open_allowed(struct wn_open_place *x, int64_t r, int64_t c) {
  const struct wn_attention *a = x->p->a;
  const uint64_t *seen = wn_open_seen(x, c);
  const bool first = c == 0 && a->sel.protect_first, self = r == c && a->sel.protect_self;
  if (!seen && !first && !self && (r + 1) * WN_TILE <= x->keys) return NULL;
  for (int64_t i = 0; i < WN_TILE; i++) {
    uint64_t bits = seen ? seen[i] : ~UINT64_C(0);
    if (first) bits &= ~UINT64_C(1);
    if (self) bits &= ~(UINT64_C(1) << i);
    x->allow[i] = r * WN_TILE + i < x->keys ? bits : 0;
  }
  return x->allow;
}

void wn_open_selecting_logits(const struct wn_open_place *x, int64_t r, int64_t c, const float *q, const float *kt,
                              float *base) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_terms_strip s = wn_open_strip(x, x->u.select, r, c);
  wn_tile_logits(p, wn_open_rows(x, r), WN_TILE, kt, q, base);
  if (x->u.select >= 0) wn_logits_complete(p, &s, q, base);
}

struct wn_tile_open wn_open_tile(struct wn_open_place *x, int64_t r, int64_t c, const float *base) {
  const struct wn_attention *a = x->p->a;
  return (struct wn_tile_open){.x = base,
                               .allow = open_allowed(x, r, c),
                               .rows = wn_open_rows(x, r),
                               .relu = a->sel.relu,
                               .own = !a->sel.shift,
                               .strength = wn_strength(a, x->u.choice)};
}

void wn_open_pack_rows(const struct wn_open_place *x, const void *from, struct wn_stride s, int64_t h, int64_t r,
                       float *to) {
  x->p->ops->pack(to, wn_open_rows(x, r), x->p->Dp, wn_floats_at(from, s, x->u.b, r * WN_TILE, h), s.t,
                  wn_open_rows(x, r), x->p->a->D, 1.0f);
}

/* ---- forward ---- */

static void open_pack_group(const struct wn_open_place *x, int64_t g) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t D = a->D;
  for (int64_t c = 0; c < x->blocks; c++) {
    const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0), at = g * x->R + c;
    p->ops->pack_transposed(x->shared.kt + at * D * WN_TILE, wn_floats_at(a->k, a->s_k, x->u.b, j0, x->u.g0 + g),
                            a->s_k.t, rows, D, (float)a->scale);
    p->ops->pack(x->shared.v + at * WN_TILE * p->Dp, WN_TILE, p->Dp,
                 wn_floats_at(a->v, a->s_v, x->u.b, j0, x->u.g0 + g), a->s_v.t, rows, D, 1.0f);
    if (g == 0 && a->sel.bilinear)
      p->ops->pack_transposed(x->shared.skt + c * D * WN_TILE,
                              wn_floats_at(a->sel.sk, a->sel.s_sk, x->u.b, j0, x->u.choice), a->sel.s_sk.t, rows, D,
                              (float)a->scale);
  }
}

static const float *open_selected_columns(const struct wn_open_place *x, int64_t c) {
  const int64_t tile = x->p->a->D * WN_TILE;
  if (x->u.select < 0) return x->shared.skt + c * tile;
  return x->shared.kt + (x->u.select / x->p->group * x->R + c) * tile;
}

static void open_sum_column(struct wn_open_place *x, int64_t c) {
  const struct wn_attention *a = x->p->a;
  float *hi = x->shared.hi + c * WN_TILE, *lo = x->shared.lo + c * WN_TILE;
  memset(hi, 0, WN_TILE * sizeof *hi);
  memset(lo, 0, WN_TILE * sizeof *lo);
  for (int64_t r = 0; r < x->blocks; r++) {
    if (x->u.select < 0)
      wn_open_pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, x->w->sq);
    else
      wn_open_pack_rows(x, a->q, a->s_q, x->u.h0 + x->u.select, r, x->w->sq);
    wn_open_selecting_logits(x, r, c, x->w->sq, open_selected_columns(x, c), x->w->base);
    struct wn_tile_open t = wn_open_tile(x, r, c, x->w->base);
    t.hi = hi, t.lo = lo;
    x->p->ops->open_sum(&t);
  }
}

/* Copies F of a tile to the caller if requested. c = x->blocks: the columns of padding. */
static void open_show_F(const struct wn_open_place *x, int64_t r, int64_t c) {
  const struct wn_attention *a = x->p->a;
  const int64_t at = x->u.b * wn_selection_groups(a) + x->u.choice;
  for (int64_t i = 0; a->sel.F && i < wn_open_rows(x, r); i++) {
    float *row = (float *)a->sel.F + (at * a->Tq + r * WN_TILE + i) * a->Tk;
    for (int64_t j = c * WN_TILE; j < a->Tk && (j < (c + 1) * WN_TILE || c == x->blocks); j++)
      row[j] = j < x->keys ? x->w->F[i * WN_TILE + j % WN_TILE] : 0;
  }
}

static void open_select_head(const struct wn_open_place *x, int64_t h, int64_t r, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const int64_t Dp = p->Dp, tile = h * WN_TILE * Dp, rows = wn_open_rows(x, r), at = h / p->group * x->R + c;
  const struct wn_terms_strip s = wn_open_strip(x, h, r, c);
  uint64_t keep[WN_TILE];
  if (h == x->u.select) {
    memcpy(w->w, w->base, (size_t)(rows * WN_TILE) * sizeof *w->w);
  } else {
    wn_tile_logits(p, rows, WN_TILE, x->shared.kt + at * a->D * WN_TILE, w->q + tile, w->w);
    wn_logits_complete(p, &s, w->q + tile, w->w);
  }
  p->ops->softmax(&(struct wn_tile_softmax){.a = w->w,
                                            .F = w->F,
                                            .seen = wn_open_seen(x, c),
                                            .rows = rows,
                                            .width = WN_TILE,
                                            .m = w->m + h * WN_TILE,
                                            .l = w->l + h * WN_TILE * WN_TILE_LANES,
                                            .acc = w->acc + tile,
                                            .acc_width = Dp});
  if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, w->w);
  wn_tile_values(p, rows, WN_TILE, x->shared.v + at * WN_TILE * Dp, w->w, w->acc + tile);
}

static void open_select_rows(struct wn_open_place *x, int64_t r) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_open_worker *w = x->w;
  const int64_t Dp = p->Dp, D = a->D, rows = wn_open_rows(x, r), heads = x->u.heads, tall = WN_TILE * Dp;
  for (int64_t h = 0; h < heads; h++) wn_open_pack_rows(x, a->q, a->s_q, x->u.h0 + h, r, w->q + h * tall);
  if (x->u.select < 0) wn_open_pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, w->sq);
  const float *q = x->u.select < 0 ? w->sq : w->q + x->u.select * tall;
  memset(w->acc, 0, (size_t)(heads * tall) * sizeof *w->acc);
  memset(w->l, 0, (size_t)(heads * WN_TILE * WN_TILE_LANES) * sizeof *w->l);
  for (int64_t i = 0; i < heads * WN_TILE; i++) w->m[i] = -INFINITY;
  for (int64_t c = 0; c < x->blocks; c++) {
    wn_open_selecting_logits(x, r, c, q, open_selected_columns(x, c), w->base);
    struct wn_tile_open t = wn_open_tile(x, r, c, w->base);
    t.hi = x->shared.hi + c * WN_TILE, t.lo = x->shared.lo + c * WN_TILE, t.out = w->F;
    p->ops->open_rest(&t);
    open_show_F(x, r, c);
    for (int64_t h = 0; h < heads; h++) open_select_head(x, h, r, c);
  }
  open_show_F(x, r, x->blocks);
  for (int64_t h = 0; h < heads; h++) {
    float *lse = a->lse ? (float *)a->lse + (x->u.b * a->H + x->u.h0 + h) * a->Tq + r * WN_TILE : NULL;
    const float *m = w->m + h * WN_TILE;
    p->ops->finish(&(struct wn_tile_finish){
        .m = m, .l = w->l + h * WN_TILE * WN_TILE_LANES, .rows = rows, .factor = w->factor, .lse = lse});
    wn_terms_unseen(m, w->factor, lse, rows);
    p->ops->unpack(wn_floats_out(a->y, a->s_y, x->u.b, r * WN_TILE, x->u.h0 + h), a->s_y.t, w->acc + h * tall, Dp, 1, 0,
                   rows, D, w->factor, 1.0f);
  }
}

static void open_select_forward(void *plan) {
  const struct wn_attention_plan *p = plan;
  const int64_t at_once = wn_open_units(p), R = wn_open_blocks(p), groups = wn_open_groups(p);
  struct wn_open_room s;
  wn_open_select_lay(p, false, &(struct wn_arrays){.base = p->exec->scratch}, &s);
  struct wn_arrays copy = wn_arrays_copy(&s.worker, s.workers, wn_hand());
  struct wn_open_worker w;
  struct wn_open_place x;
  wn_open_worker_lay(p, false, &copy, &w);
  for (int64_t first = 0; first < p->units; first += at_once) {
    const int64_t n = wn_min_i64(at_once, p->units - first);
    for (struct wn_share i = wn_share(n * groups); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, false, first + i.at / groups, &x);
      open_pack_group(&x, i.at % groups);
    }
    wn_barrier();
    for (struct wn_share i = wn_share(n * R); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, false, first + i.at / R, &x);
      if (i.at % R < x.blocks) open_sum_column(&x, i.at % R);
    }
    wn_barrier();
    for (struct wn_share i = wn_share(n * R); i.at < i.end; i.at++) {
      wn_open_place_init(p, &s, &w, false, first + i.at / R, &x);
      open_select_rows(&x, i.at % R);
    }
    wn_barrier();
  }
}

void wn_open_select_forward_run(const struct wn_attention_plan *p) {
  wn_parallel(p->exec->threads, open_select_forward, p);
}
