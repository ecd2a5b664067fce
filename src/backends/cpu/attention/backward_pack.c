/* Arrays of backward: their layout in scratch; copying rows and columns into tiles and back. */
#include <string.h>
#include "backends/cpu/attention/backward.h"

static bool backward_bilinear(const struct wn_attention_plan *p) {
  return p->a->sel.on && p->a->sel.bilinear;
}

void wn_backward_lay_rows(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                          struct wn_backward_rows *r) {
  const int64_t tall = p->blocks * WN_TILE;
  const size_t operand = wn_operand_size(p);
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(r->q, operand, "q", true, WN_DIMS(heads, tall, p->Dp)),
      WN_ARRAY_SIZED(r->dy, operand, "dy", true, WN_DIMS(heads, tall, p->Dp)),
      WN_ARRAY_SIZED(r->q_right, operand, "pairs of q", p->bf16, WN_DIMS(heads, tall, p->Dp)),
      WN_ARRAY_SIZED(r->dy_right, operand, "pairs of dy", p->bf16, WN_DIMS(heads, tall, p->Dp)),
      WN_ARRAY_FOR(r->lse, "lse", true, WN_DIMS(heads, tall)),
      WN_ARRAY_FOR(r->delta, "delta", true, WN_DIMS(heads, tall)),
      WN_ARRAY_FOR(r->sq, "sq", backward_bilinear(p), WN_DIMS(tall, p->Dp)),
      WN_ARRAY_FOR(r->spans, "spans", p->a->span.on, WN_DIMS(p->blocks, heads)),
      WN_ARRAY_FOR(r->first, "first", true, WN_DIMS(groups)),
  };
  WN_ARRAYS_LAY(l, rows);
  if (!p->bf16) r->q_right = r->q, r->dy_right = r->dy;
}

void wn_backward_lay_sums(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads,
                          struct wn_backward_sums *s) {
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->dq, "dq", true, WN_DIMS(heads, p->blocks, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(s->dsq, "dsq", backward_bilinear(p), WN_DIMS(p->blocks, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(s->dz, "dz", p->a->span.on, WN_DIMS(heads, p->blocks, WN_TILE)),
      WN_ARRAY_FOR(s->excess, "sums of G", p->a->span.on && p->bf16, WN_DIMS(heads, p->blocks, WN_TILE)),
      WN_ARRAY_FOR(s->steep, "W/m", p->a->span.on && p->bf16, WN_DIMS(heads, p->blocks, WN_TILE)),
  };
  WN_ARRAYS_LAY(l, rows);
}

static void backward_lay_worker(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                                struct wn_backward_worker *w) {
  const int64_t columns = wn_operand_columns(p), tile = WN_TILE * p->Dp;
  const size_t operand = wn_operand_size(p);
  const bool on = p->a->sel.on, own = backward_bilinear(p);
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(w->k, operand, "k", true, WN_DIMS(groups, tile)),
      WN_ARRAY_FOR(w->dk, "dk", true, WN_DIMS(groups, tile)),
      WN_ARRAY_FOR(w->dv, "dv", true, WN_DIMS(groups, tile)),
      WN_ARRAY_SIZED(w->kt, operand, "kt", true, WN_DIMS(groups, columns)),
      WN_ARRAY_SIZED(w->vt, operand, "vt", true, WN_DIMS(groups, columns)),
      WN_ARRAY_FOR(w->sk, "sk", own, WN_DIMS(tile)),
      WN_ARRAY_FOR(w->dsk, "dsk", own, WN_DIMS(tile)),
      WN_ARRAY_FOR(w->skt, "skt", own, WN_DIMS(columns)),
      WN_ARRAY_FOR(w->base, "base", on, WN_DIMS(p->blocks, WN_TILE_AREA)),
      WN_ARRAY_FOR(w->carries, "carries", on, WN_DIMS(p->blocks, WN_TILE)),
      WN_ARRAY_FOR(w->F, "F", on, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(w->dF, "dF", on, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(w->sparse.F, "far F", on && p->sparse.on, WN_DIMS(wn_sparse_chunks(p), WN_TILE_AREA)),
      WN_ARRAY_FOR(w->sparse.dF, "far dF", on && p->sparse.on, WN_DIMS(wn_sparse_chunks(p), WN_TILE_AREA)),
  };
  WN_ARRAYS_LAY(l, rows);
}

/* How many column blocks are processed together. If the unit's rows are larger than half a usual last-level cache, each
 * visit of a tile of rows serves several column blocks, but a team's threads must still get a few turns each. */
int64_t wn_backward_columns_at_once(const struct wn_attention_plan *p, int64_t heads) {
  const int64_t bytes = heads * p->blocks * WN_TILE * p->Dp * 3 * (int64_t)sizeof(float); /* bf16 takes as much */
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
      WN_ARRAY_FOR(weights, "weights", true, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(g, "G", true, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(pairs[0], "lse of pairs", p->sparse.on, WN_DIMS(WN_TILE_AREA)),
      WN_ARRAY_FOR(pairs[1], "delta of pairs", p->sparse.on, WN_DIMS(WN_TILE_AREA)),
  };
  WN_ARRAYS_LAY(l, rows);
  for (int64_t i = 0; i < wn_backward_columns_at_once(p, heads); i++) {
    backward_lay_worker(p, l, groups, &w[i]);
    memcpy(w[i].pairs, pairs, sizeof pairs);
    w[i].w = weights;
    w[i].g = g;
  }
}

/* The number of heads and groups in a unit. */
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

/* Packs row block `block` of head h (counted from u->h0). */
void wn_backward_pack_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                           int64_t block, const struct wn_backward_rows *to) {
  const struct wn_attention *a = p->a;
  const struct wn_tile_ops *o = p->ops;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  const int64_t at = block * u->heads + h, D = a->D, tile = at * WN_TILE * p->Dp;
  const void *q = wn_row_at(p, a->q, a->s_q, u->b, r.r0, u->h0 + h),
             *dy = wn_row_at(p, a->dy, a->s_y, u->b, r.r0, u->h0 + h);
  wn_pack_rows(p, wn_operand_at(p, to->q, tile), q, a->s_q.t, r.rows);
  if (!a->exclusive.on || D < p->Dp) wn_pack_rows(p, wn_operand_at(p, to->dy, tile), dy, a->s_y.t, r.rows);
  if (p->bf16) {
    wn_pack_rows_right(p, wn_operand_at(p, to->q_right, tile), q, a->s_q.t, r.rows);
    wn_pack_rows_right(p, wn_operand_at(p, to->dy_right, tile), dy, a->s_y.t, r.rows);
  }
  if (a->exclusive.on)
    wn_exclusive_gradient(p, u->b, u->h0 + h, r.r0, r.rows, wn_operand_at(p, to->dy, tile), to->delta + at * WN_TILE);
  else
    wn_rows_dot(p, to->delta + at * WN_TILE, dy, wn_row_at(p, a->y, a->s_y, u->b, r.r0, u->h0 + h), a->s_y.t, r.rows);
  const float *lse = (const float *)a->lse + (u->b * a->H + u->h0 + h) * a->Tq + r.r0;
  for (int64_t i = 0; i < r.rows; i++) to->lse[at * WN_TILE + i] = lse[i];
  if (to->spans) to->spans[at] = wn_terms_span_range(a, u->b, u->h0 + h, r.r0, r.rows, true);
  if (h == 0 && to->sq) {
    const float *sq = wn_floats_at(a->sel.sq, a->sel.s_sq, u->b, r.r0, u->choice);
    o->pack(to->sq + block * WN_TILE * p->Dp, r.rows, p->Dp, sq, a->sel.s_sq.t, r.rows, D, 1.0f);
  }
}

void wn_backward_first_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                             const struct wn_backward_rows *to, int64_t g) {
  to->first[g] = (int32_t)wn_terms_first_block(p, u->b, u->h0 + g * p->group, p->group, true);
}

void wn_backward_pack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                              const int32_t *first, const struct wn_backward_worker *w) {
  const struct wn_attention *a = p->a;
  const struct wn_tile_ops *o = p->ops;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, a->Tk - j0), D = a->D;
  for (int64_t g = 0; g < u->groups; g++) {
    if (c < first[g]) continue;
    const void *k = wn_row_at(p, a->k, a->s_k, u->b, j0, u->g0 + g),
               *v = wn_row_at(p, a->v, a->s_v, u->b, j0, u->g0 + g);
    wn_pack_values(p, wn_operand_at(p, w->k, g * WN_TILE * p->Dp), k, a->s_k.t, rows);
    wn_pack_columns(p, wn_operand_at(p, w->kt, g * wn_operand_columns(p)), k, a->s_k.t, rows, a->scale);
    wn_pack_columns(p, wn_operand_at(p, w->vt, g * wn_operand_columns(p)), v, a->s_v.t, rows, 1);
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

void wn_backward_unpack_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                                const struct wn_backward_worker *w) {
  const struct wn_attention *a = p->a;
  const int64_t skip = wn_max_i64(0, a->dk_from - c * WN_TILE), j0 = c * WN_TILE + skip;
  const int64_t rows = wn_min_i64(WN_TILE - skip, a->Tk - j0), tile = WN_TILE * p->Dp;
  if (rows <= 0) return; /* all its keys are constant */
  for (int64_t g = 0; g < u->groups; g++) {
    if (a->dk)
      wn_unpack_columns(p, wn_row_at(p, a->dk, a->s_k, u->b, j0, u->g0 + g), a->s_k.t, w->dk + g * tile, skip, rows,
                        a->scale);
    if (a->dv)
      wn_unpack_columns(p, wn_row_at(p, a->dv, a->s_v, u->b, j0, u->g0 + g), a->s_v.t, w->dv + g * tile, skip, rows, 1);
  }
  if (w->sk && a->dsk)
    wn_unpack_columns(p, wn_floats_out(a->dsk, a->sel.s_sk, u->b, j0, u->choice), a->sel.s_sk.t, w->dsk, skip, rows,
                      a->scale);
}

void wn_backward_write_dq(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                          int64_t block, const struct wn_backward_sums *s, int64_t parts, int64_t step) {
  const struct wn_attention *a = p->a;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  if (a->dq)
    wn_unpack_rows(p, wn_row_at(p, a->dq, a->s_q, u->b, r.r0, u->h0 + h), a->s_q.t,
                   &(struct wn_unpack){.from = s->dq + (block * u->heads + h) * WN_TILE * p->Dp,
                                       .parts = parts,
                                       .step = step,
                                       .rows = r.rows,
                                       .all = (float)a->scale});
  float *rows = p->terms.span_rows;
  for (int64_t i = 0; a->span.on && a->span.dz && i < r.rows; i++) {
    const int64_t at = (block * u->heads + h) * WN_TILE + i;
    float sum = 0, excess = 0, steep = 0;
    for (int64_t n = 0; n < parts; n++) {
      sum += s->dz[at + n * step];
      if (s->excess) excess += s->excess[at + n * step], steep += s->steep[at + n * step];
    }
    sum -= excess * steep; /* as if delta were computed as the sum of W dW */
    const float most = (float)WN_SPAN_STEEPEST / wn_terms_span_factor(a);
    sum = WN_SPAN_CUT(sum, most);
    if (a->span.dynamic)
      *wn_floats_out(a->span.dz, a->span.s_z, u->b, r.r0 + i, u->h0 + h) = sum * wn_terms_span_factor(a);
    else
      rows[(u->b * a->H + u->h0 + h) * a->Tq + r.r0 + i] = sum;
  }
  if (h == 0 && s->dsq && a->dsq)
    p->ops->unpack(wn_floats_out(a->dsq, a->sel.s_sq, u->b, r.r0, u->choice), a->sel.s_sq.t,
                   s->dsq + block * WN_TILE * p->Dp, p->Dp, parts, step, r.rows, a->D, NULL, (float)a->scale);
}
