/* Backward's arrays: where they lie in scratch, and copies of rows and columns into tiles and back. */
#include <string.h>
#include "backends/cpu/attention/backward.h"

static bool backward_bilinear(const struct wn_attention_plan *p) {
  return p->a->sel.on && p->a->sel.bilinear;
}

void wn_backward_lay_rows(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                          struct wn_backward_rows *r) {
  const int64_t tall = p->blocks * WN_TILE;
  const struct wn_array rows[] = {
      {"q", true, WN_DIMS(heads, tall, p->Dp), sizeof *r->q, &r->q},
      {"dy", true, WN_DIMS(heads, tall, p->Dp), sizeof *r->dy, &r->dy},
      {"lse", true, WN_DIMS(heads, tall), sizeof *r->lse, &r->lse},
      {"delta", true, WN_DIMS(heads, tall), sizeof *r->delta, &r->delta},
      {"sq", backward_bilinear(p), WN_DIMS(tall, p->Dp), sizeof *r->sq, &r->sq},
      {"spans", p->a->span.on, WN_DIMS(p->blocks, heads), sizeof *r->spans, &r->spans},
      {"first", true, WN_DIMS(groups), sizeof *r->first, &r->first},
  };
  WN_ARRAYS_LAY(l, rows);
}

void wn_backward_lay_sums(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads,
                          struct wn_backward_sums *s) {
  const struct wn_array rows[] = {
      {"dq", true, WN_DIMS(heads, p->blocks, WN_TILE, p->Dp), sizeof *s->dq, &s->dq},
      {"dsq", backward_bilinear(p), WN_DIMS(p->blocks, WN_TILE, p->Dp), sizeof *s->dsq, &s->dsq},
      {"dz", p->a->span.on, WN_DIMS(heads, p->blocks, WN_TILE), sizeof *s->dz, &s->dz},
  };
  WN_ARRAYS_LAY(l, rows);
}

static void backward_lay_worker(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                                struct wn_backward_worker *w) {
  const int64_t columns = WN_TILE * p->a->D, tile = WN_TILE * p->Dp;
  const bool on = p->a->sel.on, own = backward_bilinear(p);
  const struct wn_array rows[] = {
      {"k", true, WN_DIMS(groups, tile), sizeof *w->k, &w->k},
      {"dk", true, WN_DIMS(groups, tile), sizeof *w->dk, &w->dk},
      {"dv", true, WN_DIMS(groups, tile), sizeof *w->dv, &w->dv},
      {"kt", true, WN_DIMS(groups, columns), sizeof *w->kt, &w->kt},
      {"vt", true, WN_DIMS(groups, columns), sizeof *w->vt, &w->vt},
      {"sk", own, WN_DIMS(tile), sizeof *w->sk, &w->sk},
      {"dsk", own, WN_DIMS(tile), sizeof *w->dsk, &w->dsk},
      {"skt", own, WN_DIMS(columns), sizeof *w->skt, &w->skt},
      {"base", on, WN_DIMS(p->blocks, WN_TILE_AREA), sizeof *w->base, &w->base},
      {"carries", on, WN_DIMS(p->blocks, WN_TILE), sizeof *w->carries, &w->carries},
      {"F", on, WN_DIMS(WN_TILE_AREA), sizeof *w->F, &w->F},
      {"dF", on, WN_DIMS(WN_TILE_AREA), sizeof *w->dF, &w->dF},
      {"far F", on && p->sparse.on, WN_DIMS(wn_sparse_chunks(p), WN_TILE_AREA), sizeof *w->sparse.F, &w->sparse.F},
      {"far dF", on && p->sparse.on, WN_DIMS(wn_sparse_chunks(p), WN_TILE_AREA), sizeof *w->sparse.dF, &w->sparse.dF},
  };
  WN_ARRAYS_LAY(l, rows);
}

/* Column blocks that are processed together. Where the unit's rows outgrow half a usual last-level cache, each visit of
 * a tile of rows serves several column blocks, as long as a team's threads still get a few turns each. */
int64_t wn_backward_columns_at_once(const struct wn_attention_plan *p, int64_t heads) {
  const int64_t bytes = heads * p->blocks * WN_TILE * p->Dp * 3 * (int64_t)sizeof(float);
  if (bytes <= 16 << 20 || (!p->own && p->blocks < 4 * WN_BACKWARD_COLUMNS * p->chunks)) return 1;
  return WN_BACKWARD_COLUMNS;
}

void wn_backward_lay_workers(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                             struct wn_backward_worker w[WN_BACKWARD_COLUMNS],
                             struct wn_backward_dead_keys *dead_keys) {
  if (p->dead_keys.wanted) {
    wn_dead_keys_bound_lay(p, l, heads, groups, &dead_keys->bound);
    wn_dead_keys_backward_lay(p, l, groups, &dead_keys->history, &dead_keys->slots);
  }
  float *weights, *g, *pairs[2];
  const struct wn_array rows[] = {
      {"weights", true, WN_DIMS(WN_TILE_AREA), sizeof *weights, &weights},
      {"G", true, WN_DIMS(WN_TILE_AREA), sizeof *g, &g},
      {"lse of pairs", p->sparse.on, WN_DIMS(WN_TILE_AREA), sizeof *pairs[0], &pairs[0]},
      {"delta of pairs", p->sparse.on, WN_DIMS(WN_TILE_AREA), sizeof *pairs[1], &pairs[1]},
  };
  WN_ARRAYS_LAY(l, rows);
  for (int64_t i = 0; i < wn_backward_columns_at_once(p, heads); i++) {
    backward_lay_worker(p, l, groups, &w[i]);
    memcpy(w[i].pairs, pairs, sizeof pairs);
    w[i].w = weights;
    w[i].g = g;
  }
}

/* Heads and groups of a unit. */
void wn_backward_unit_shape(const struct wn_attention_plan *p, int64_t *heads, int64_t *groups) {
  const bool whole = !p->own || p->units == p->a->B;
  *heads = whole ? p->a->H : p->group;
  *groups = whole ? p->a->Hkv : 1;
}

void wn_backward_lay(const struct wn_attention_plan *p, struct wn_arrays *l, struct wn_backward_scratch *s) {
  int64_t heads, groups;
  wn_backward_unit_shape(p, &heads, &groups);
  *s = (struct wn_backward_scratch){0};
  wn_backward_lay_rows(p, &s->rows, heads, groups, &(struct wn_backward_rows){0});
  wn_backward_lay_sums(p, &s->sums, heads, &(struct wn_backward_sums){0});
  wn_backward_lay_workers(p, &s->worker, heads, groups, (struct wn_backward_worker[WN_BACKWARD_COLUMNS]){0},
                          &(struct wn_backward_dead_keys){0});
  s->rows_at = wn_arrays_lay_copies(l, &s->rows, p->own ? p->threads : 1);
  s->sums_at = wn_arrays_lay_copies(l, &s->sums, p->own ? p->threads : p->chunks);
  s->workers_at = wn_arrays_lay_copies(l, &s->worker, p->threads);
}

struct wn_arrays wn_attention_backward_scratch(const struct wn_attention_plan *p) {
  struct wn_arrays l = {0};
  wn_backward_lay(p, &l, &(struct wn_backward_scratch){0});
  return l;
}

/* Row block `block` of head h (from u->h0). */
void wn_backward_pack_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                           int64_t block, const struct wn_backward_rows *to) {
  const struct wn_attention *a = p->a;
  const struct wn_tile_ops *o = p->ops;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  const int64_t at = block * u->heads + h, D = a->D;
  const float *q = wn_floats_at(a->q, a->s_q, u->b, r.r0, u->h0 + h),
              *dy = wn_floats_at(a->dy, a->s_y, u->b, r.r0, u->h0 + h);
  o->pack(to->q + at * WN_TILE * p->Dp, r.rows, p->Dp, q, a->s_q.t, r.rows, D, 1.0f);
  if (!a->exclusive.on || D < p->Dp)
    o->pack(to->dy + at * WN_TILE * p->Dp, r.rows, p->Dp, dy, a->s_y.t, r.rows, D, 1.0f);
  if (a->exclusive.on)
    wn_exclusive_gradient(p, u->b, u->h0 + h, r.r0, r.rows, to->dy + at * WN_TILE * p->Dp, to->delta + at * WN_TILE);
  else
    o->row_dot(to->delta + at * WN_TILE, dy, a->s_y.t, wn_floats_at(a->y, a->s_y, u->b, r.r0, u->h0 + h), a->s_y.t,
               r.rows, D);
  const float *lse = (const float *)a->lse + (u->b * a->H + u->h0 + h) * a->Tq + r.r0;
  for (int64_t i = 0; i < r.rows; i++) to->lse[at * WN_TILE + i] = lse[i];
  if (to->spans) to->spans[at] = wn_terms_span_range(a, u->b, u->h0 + h, r.r0, r.rows);
  if (h == 0 && to->sq) {
    const float *sq = wn_floats_at(a->sel.sq, a->sel.s_sq, u->b, r.r0, u->choice);
    o->pack(to->sq + block * WN_TILE * p->Dp, r.rows, p->Dp, sq, a->sel.s_sq.t, r.rows, D, 1.0f);
  }
}

void wn_backward_first_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                             const struct wn_backward_rows *to, int64_t g) {
  to->first[g] = (int32_t)wn_terms_first_block(p, u->b, u->h0 + g * p->group, p->group);
}

void wn_backward_pack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                              const int32_t *first, const struct wn_backward_worker *w) {
  const struct wn_attention *a = p->a;
  const struct wn_tile_ops *o = p->ops;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, a->Tk - j0), D = a->D;
  for (int64_t g = 0; g < u->groups; g++) {
    if (c < first[g]) continue;
    const float *k = wn_floats_at(a->k, a->s_k, u->b, j0, u->g0 + g),
                *v = wn_floats_at(a->v, a->s_v, u->b, j0, u->g0 + g);
    o->pack(w->k + g * WN_TILE * p->Dp, WN_TILE, p->Dp, k, a->s_k.t, rows, D, 1.0f);
    o->pack_transposed(w->kt + g * WN_TILE * D, k, a->s_k.t, rows, D, (float)a->scale);
    o->pack_transposed(w->vt + g * WN_TILE * D, v, a->s_v.t, rows, D, 1.0f);
  }
  memset(w->dk, 0, (size_t)(u->groups * WN_TILE * p->Dp) * sizeof(float));
  memset(w->dv, 0, (size_t)(u->groups * WN_TILE * p->Dp) * sizeof(float));
  if (a->exclusive.on && a->dv) wn_exclusive_values(p, u, c, w->dv);
  if (!w->sk) return;
  const float *sk = wn_floats_at(a->sel.sk, a->sel.s_sk, u->b, j0, u->choice);
  o->pack(w->sk, WN_TILE, p->Dp, sk, a->sel.s_sk.t, rows, D, 1.0f);
  o->pack_transposed(w->skt, sk, a->sel.s_sk.t, rows, D, (float)a->scale);
  memset(w->dsk, 0, (size_t)(WN_TILE * p->Dp) * sizeof(float));
}

/* to[rows,D] = factor * from[rows,Dp] */
static void backward_unpack_tile(const struct wn_attention_plan *p, float *to, int64_t stride, const float *from,
                                 int64_t rows, double factor) {
  p->ops->unpack(to, stride, from, p->Dp, 1, 0, rows, p->a->D, NULL, (float)factor);
}

void wn_backward_unpack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                                const struct wn_backward_worker *w) {
  const struct wn_attention *a = p->a;
  const int64_t skip = wn_max_i64(0, a->dk_from - c * WN_TILE), j0 = c * WN_TILE + skip;
  const int64_t rows = wn_min_i64(WN_TILE - skip, a->Tk - j0), tile = WN_TILE * p->Dp;
  if (rows <= 0) return; /* all of it is held constant */
  for (int64_t g = 0; g < u->groups; g++) {
    const int64_t from = g * tile + skip * p->Dp;
    if (a->dk)
      backward_unpack_tile(p, wn_floats_out(a->dk, a->s_k, u->b, j0, u->g0 + g), a->s_k.t, w->dk + from, rows,
                           a->scale);
    if (a->dv)
      backward_unpack_tile(p, wn_floats_out(a->dv, a->s_v, u->b, j0, u->g0 + g), a->s_v.t, w->dv + from, rows, 1.0);
  }
  if (w->sk && a->dsk)
    backward_unpack_tile(p, wn_floats_out(a->dsk, a->sel.s_sk, u->b, j0, u->choice), a->sel.s_sk.t,
                         w->dsk + skip * p->Dp, rows, a->scale);
}
