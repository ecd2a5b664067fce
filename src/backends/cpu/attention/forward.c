/* Forward of the fused attention (Dao 2023, FlashAttention-2; Milakov & Gimelshein 2018).
 *
 * Row blocks are visited in order, and in a row block the tiles from left to right. On a tile the selecting head's
 * logits come first; they and the column carry c[j] (the sum of S over earlier rows) give the tile of F. Then every
 * head: logits, softmax against a running reference, values. F's tile serves all heads while it is in cache; nothing is
 * T x T. If several threads share a sequence, each takes a chunk of rows. An earlier pass down the columns computes the
 * carry at each chunk's first row, in the same order as a single thread, so results are bitwise the same. 4 D
 * operations per pair and head; a team that selects needs 2 D more for at most the pairs above the last chunk. */
#include <math.h>
#include <string.h>
#include "backends/cpu/attention/forward.h"
#include "backends/cpu/attention/score.h"
#include "backends/cpu/attention/threshold.h"

/* How many row blocks are processed together. If the unit's keys and values are larger than some share of the
 * last-level cache, each visit of a tile serves two row blocks. */
static int64_t rows_at_once(const struct wn_attention_plan *p, int64_t heads) {
  const int64_t bytes = heads / p->group * p->blocks * WN_TILE * p->Dp * 2 * (int64_t)wn_operand_size(p);
  if (p->sparse.on) return WN_FORWARD_ROWS;
  if (p->dead_keys.wanted) return 1;
  return bytes > 8 << 20 ? 2 : 1;
}

static void lay_packed(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                       struct wn_forward_packed *k) {
  const int64_t D = p->a->D, tiles = p->blocks;
  const size_t operand = wn_operand_size(p);
  const bool far = p->sparse.on && !p->sparse.direct;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(k->kt, operand, "kt", true, WN_DIMS(groups, tiles, wn_operand_columns(p))),
      WN_ARRAY_SIZED(k->v, operand, "v", true, WN_DIMS(groups, tiles, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(k->skt, "skt", p->a->sel.on && p->a->sel.bilinear, WN_DIMS(tiles, D, WN_TILE)),
      WN_ARRAY_FOR(k->k, "k", far, WN_DIMS(groups, tiles, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(k->rows_v, "rows of v", far && groups > 1, WN_DIMS(groups, tiles, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(k->first, "first", true, WN_DIMS(groups)),
  };
  WN_ARRAYS_LAY(l, rows);
  if (!k->rows_v) k->rows_v = k->v;
}

static void lay_worker(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads,
                       struct wn_forward_worker *w) {
  const struct wn_attention *a = p->a;
  for (int64_t i = 0; i < rows_at_once(p, heads); i++) {
    struct wn_forward_rows *r = &w->rows[i];
    const struct wn_array rows[] = {
        WN_ARRAY_SIZED(r->q, wn_operand_size(p), "q", true, WN_DIMS(heads, WN_TILE, p->Dp)),
        WN_ARRAY_FOR(r->acc, "acc", true, WN_DIMS(heads, WN_TILE, p->Dp)),
        WN_ARRAY_FOR(r->m, "m", true, WN_DIMS(heads, WN_TILE)),
        WN_ARRAY_FOR(r->l, "l", true, WN_DIMS(heads, WN_TILE, WN_TILE_LANES)),
        WN_ARRAY_FOR(r->base, "base", a->sel.on, WN_DIMS(WN_TILE_AREA)),
        WN_ARRAY_FOR(r->F, "F", a->sel.on, WN_DIMS(WN_TILE_AREA)),
        WN_ARRAY_FOR(r->sq, "sq", a->sel.on && a->sel.bilinear, WN_DIMS(WN_TILE, p->Dp)),
        WN_ARRAY_FOR(r->mem, "mem", a->sel.on, WN_DIMS(WN_TILE)),
        WN_ARRAY_FOR(r->spans, "spans", a->span.on, WN_DIMS(heads)),
        WN_ARRAY_FOR(r->logits, "logits", wn_forward_keeps_logits(a),
                     WN_DIMS(wn_forward_logits_heads(a, heads), p->blocks, WN_TILE_AREA)),
        WN_ARRAY_FOR(r->sparse.F, "far F", a->sel.on && p->sparse.on, WN_DIMS(wn_sparse_chunks(p), WN_TILE_AREA)),
    };
    WN_ARRAYS_LAY(l, rows);
  }
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(w->tile, "tile", true, WN_DIMS(p->sparse.on ? WN_FORWARD_ROWS : 1, WN_TILE_AREA)),
      WN_ARRAY_FOR(w->factor, "factor", true, WN_DIMS(WN_TILE)),
      WN_ARRAY_FOR(w->carry, "carry", a->sel.on, WN_DIMS(p->blocks, WN_TILE)),
      WN_ARRAY_FOR(w->order, "order", wn_forward_keeps_logits(a), WN_DIMS(wn_forward_order_floats(p))),
  };
  WN_ARRAYS_LAY(l, rows);
  if (!p->dead_keys.wanted) return;
  wn_dead_keys_bound_lay(p, l, heads, heads / p->group, &w->bound);
  wn_dead_keys_list_lay(p, l, heads / p->group, &w->list);
}

/* Shared by a team besides the packed keys: carries at the chunks' first rows, and the selecting queries. */
struct shared {
  float *carries; /* [chunks][blocks*64] */
  void *selq;     /* [blocks][64][Dp] */
};

static void lay_shared(const struct wn_attention_plan *p, struct wn_arrays *l, struct shared *s) {
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->carries, "carries", p->a->sel.on, WN_DIMS(p->chunks, p->blocks, WN_TILE)),
      WN_ARRAY_SIZED(s->selq, wn_operand_size(p), "selq", p->a->sel.on, WN_DIMS(p->blocks, WN_TILE, p->Dp)),
  };
  WN_ARRAYS_LAY(l, rows);
}

/* All scratch of a call: the team's shared arrays, and one worker per thread. */
struct forward_scratch {
  struct wn_forward_packed k; /* shared by a team */
  struct shared s;
  struct wn_arrays each; /* the size of one worker's arrays */
  void *workers;
};

static void lay_own(const struct wn_attention_plan *p, struct wn_arrays *l, struct wn_forward_packed *k,
                    struct wn_forward_worker *w) {
  const bool whole = !p->own || p->units == p->a->B;
  if (p->own) lay_packed(p, l, whole ? p->a->Hkv : 1, k);
  lay_worker(p, l, whole ? p->a->H : p->group, w);
}

static void lay_forward(const struct wn_attention_plan *p, struct wn_arrays *l, struct forward_scratch *all) {
  struct wn_forward_packed k;
  struct wn_forward_worker w;
  if (!p->own) lay_packed(p, l, p->a->Hkv, &all->k), lay_shared(p, l, &all->s);
  all->each = (struct wn_arrays){0};
  lay_own(p, &all->each, &k, &w);
  all->workers = wn_arrays_lay_copies(l, &all->each, p->threads);
}

struct wn_arrays wn_attention_forward_scratch(const struct wn_attention_plan *p) {
  struct wn_arrays l = {0};
  lay_forward(p, &l, &(struct forward_scratch){0});
  return l;
}

static void forward_first_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                                const struct wn_forward_packed *k, int64_t g) {
  k->first[g] = (int32_t)wn_terms_first_block(p, u->b, u->h0 + g * p->group, p->group, false);
}

/* Packs tile c of group g. */
static void pack_tile(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                      const struct wn_forward_packed *k, int64_t g, int64_t c) {
  const struct wn_attention *a = p->a;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, a->Tk - j0), at = c * u->groups + g;
  if (c < k->first[g]) return;
  const bool apart = c < wn_sparse_edge(p, p->first_block); /* all its keys are gathered: no row sees it as a tile */
  if (a->k_type) {                                          /* neither sparse nor gathered */
    _Alignas(64) float wide[WN_TILE * WN_STORED_D];
    _Alignas(64) uint16_t rounded[WN_TILE * WN_STORED_D];
    const void *from = p->rounds ? (const void *)rounded : wide;
    wn_widen(p, a->k_type, a->k, a->s_k, u->b, j0, u->g0 + g, rows, wide);
    if (p->rounds) p->bf16->round(rounded, a->D, wide, rows, a->D, a->D);
    wn_pack_columns(p, wn_operand_at(p, k->kt, at * wn_operand_columns(p)), from, a->D, rows, a->scale);
    wn_widen(p, a->v_type, a->v, a->s_v, u->b, j0, u->g0 + g, rows, wide);
    if (p->rounds) p->bf16->round(rounded, a->D, wide, rows, a->D, a->D);
    wn_pack_values(p, wn_operand_at(p, k->v, at * WN_TILE * p->Dp), from, a->D, rows);
    if (g == 0 && k->skt)
      p->ops->pack_transposed(k->skt + c * a->D * WN_TILE, wn_floats_at(a->sel.sk, a->sel.s_sk, u->b, j0, u->choice),
                              a->sel.s_sk.t, rows, a->D, (float)a->scale);
    return;
  }
  if (!apart || (u->select >= 0 && g == u->select / p->group))
    wn_pack_columns(p, wn_operand_at(p, k->kt, at * wn_operand_columns(p)),
                    wn_row_at(p, a->k, a->s_k, u->b, j0, u->g0 + g), a->s_k.t, rows, a->scale);
  if (!apart || !p->sparse.direct)
    wn_pack_values(p, wn_operand_at(p, k->v, at * WN_TILE * p->Dp), wn_row_at(p, a->v, a->s_v, u->b, j0, u->g0 + g),
                   a->s_v.t, rows);
  const int64_t row = (g * p->blocks + c) * WN_TILE * p->Dp;
  if (k->k)
    p->ops->pack(k->k + row, WN_TILE, p->Dp, wn_floats_at(a->k, a->s_k, u->b, j0, u->g0 + g), a->s_k.t, rows, a->D,
                 1.0f);
  if (k->rows_v != k->v)
    memcpy(k->rows_v + row, wn_operand_at(p, k->v, at * WN_TILE * p->Dp), (size_t)(WN_TILE * p->Dp) * sizeof(float));
  if (g == 0 && k->skt)
    p->ops->pack_transposed(k->skt + c * a->D * WN_TILE, wn_floats_at(a->sel.sk, a->sel.s_sk, u->b, j0, u->choice),
                            a->sel.s_sk.t, rows, a->D, (float)a->scale);
}

/* Packs the selecting queries of a row block to [64][Dp]. */
static void pack_selecting(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t choice,
                           void *to) {
  const struct wn_attention *a = p->a;
  if (a->sel.bilinear)
    wn_pack_rows(p, to, wn_floats_at(a->sel.sq, a->sel.s_sq, r->b, r->r0, choice), a->sel.s_sq.t, r->rows);
  else
    wn_pack_rows(p, to, wn_row_at(p, a->q, a->s_q, r->b, r->r0, a->sel.head), a->s_q.t, r->rows);
}

/* Tile c of the selecting head's keys, or of the bilinear form's. */
static const void *selected_keys(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                                 const struct wn_forward_packed *k, int64_t c) {
  const struct wn_attention *a = p->a;
  if (k->skt) return k->skt + c * a->D * WN_TILE;
  return wn_operand_at(p, k->kt, (c * u->groups + u->select / p->group) * wn_operand_columns(p));
}

/* Index of the unit's selection among all. */
static int64_t of_unit(const struct wn_attention *a, const struct wn_attention_unit *u) {
  return u->b * wn_selection_groups(a) + u->choice;
}

/* Sets carry[Tk] at the first query. */
static void carry_begin(const struct wn_attention_plan *p, const struct wn_attention_unit *u, float *carry) {
  const struct wn_attention *a = p->a;
  memset(carry, 0, (size_t)(p->blocks * WN_TILE) * sizeof *carry);
  if (a->sel.f_in)
    memcpy(carry, (const float *)a->sel.f_in + of_unit(a, u) * wn_selection_stride(a), (size_t)a->Tk * sizeof *carry);
}

static void carry_end(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const float *carry) {
  const struct wn_attention *a = p->a;
  if (a->sel.f_out)
    memcpy((float *)a->sel.f_out + of_unit(a, u) * wn_selection_stride(a), carry, (size_t)a->Tk * sizeof *carry);
}

/* For inspection: copies tile c of F to the caller, from `F` [rows,64], or from the carry if the tile has no
 * selections. */
static void write_F(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                    const struct wn_attention_rows *r, int64_t row, int64_t rows, int64_t c, const float *F,
                    const float *carry) {
  const int64_t j0 = c * WN_TILE, count = wn_min_i64(WN_TILE, p->a->Tk - j0);
  for (int64_t i = 0; i < rows; i++)
    memcpy((float *)p->a->sel.F + (of_unit(p->a, u) * p->a->Tq + r->r0 + row + i) * p->a->Tk + j0,
           F ? F + i * WN_TILE : carry + j0, (size_t)count * sizeof(float));
}

/* Begins tile c of a row block: its strips, and F from the selecting logits and the carry. heard: the selections count
 * for M of L_mem. */
static void forward_begin_tile(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                               const struct wn_forward_packed *k, struct wn_forward_worker *w,
                               struct wn_forward_rows *r, int64_t c, bool heard) {
  const struct wn_attention *a = p->a;
  r->count = wn_attention_strips(p, &r->at, c, r->strips);
  if (!a->sel.on) return;
  if (a->sel.F && r->count == 0) write_F(p, u, &r->at, 0, r->at.rows, c, NULL, w->carry);
  const void *q = r->sq ? r->sq : wn_operand_at(p, r->q, u->select * WN_TILE * p->Dp);
  for (int i = 0; i < r->count; i++) {
    const struct wn_attention_strip *s = &r->strips[i];
    float *base = r->base + s->row * WN_TILE, *F = r->F + s->row * WN_TILE;
    const void *strip = wn_operand_at(p, q, s->row * p->Dp);
    wn_product_logits(p, s->rows, s->width, selected_keys(p, u, k, c), strip, base, a->scale);
    if (!a->sel.bilinear) {
      const struct wn_terms_strip terms = wn_terms_strip_of(p, u, u->select, r->at.r0, s, c);
      wn_logits_complete(p, &terms, strip, base);
    }
    p->ops->select(&(struct wn_tile_select){.base = base,
                                            .allow = s->allow,
                                            .carry = w->carry + c * WN_TILE,
                                            .F = F,
                                            .rows = s->rows,
                                            .relu = a->sel.relu,
                                            .shift = a->sel.shift,
                                            .strength = wn_strength(a, u->choice),
                                            .seen = s->past,
                                            .inv_tau = (float)(1.0 / a->sel.mem_tau),
                                            .mem = heard && a->sel.mem && a->sel.M ? r->mem + s->row : NULL});
    if (r->sparse.F) wn_sparse_take(p, &r->at, &r->sparse, s->row, s->rows, c, F);
    if (a->sel.F) write_F(p, u, &r->at, s->row, s->rows, c, F, NULL);
  }
}

/* Begins tile t of the list. */
static void begin_listed(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                         const struct wn_forward_packed *k, const struct wn_dead_keys_list *list,
                         struct wn_forward_rows *r, int64_t t) {
  const struct wn_attention *a = p->a;
  struct wn_attention_strip *s = &r->strips[0];
  wn_dead_keys_strip(p, &r->at, list->at + t * WN_TILE, wn_min_i64(WN_TILE, list->n - t * WN_TILE), s);
  r->count = !s->empty;
  if (s->empty) return;
  wn_product_logits(p, s->rows, WN_TILE, selected_keys(p, u, k, t),
                    r->sq ? r->sq : wn_operand_at(p, r->q, u->select * WN_TILE * p->Dp), r->base, a->scale);
  p->ops->select(&(struct wn_tile_select){.base = r->base,
                                          .allow = s->allow,
                                          .carry = list->carry + t * WN_TILE,
                                          .F = r->F,
                                          .rows = s->rows,
                                          .relu = true,
                                          .shift = a->sel.shift,
                                          .strength = wn_strength(a, u->choice),
                                          .seen = s->past,
                                          .inv_tau = (float)(1.0 / a->sel.mem_tau),
                                          .mem = a->sel.mem && a->sel.M ? r->mem : NULL});
}

/* One head on tile c of a row block. */
static void head_tile(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                      const struct wn_forward_packed *k, const struct wn_forward_worker *w,
                      const struct wn_forward_rows *r, int64_t h, int64_t c) {
  const int64_t Dp = p->Dp, at = c * u->groups + h / p->group;
  for (int i = 0; i < r->count; i++) {
    const struct wn_attention_strip *s = &r->strips[i];
    if (s->skip) continue;
    const int64_t row = h * WN_TILE + s->row;
    const void *q = wn_operand_at(p, r->q, row * Dp);
    float *tile = w->tile;
    const struct wn_terms_strip terms = wn_terms_strip_of(p, u, h, r->at.r0, s, c);
    if (r->spans && terms.j0 + s->width <= r->spans[h].first) continue;
    const bool ramp = r->spans && terms.j0 < r->spans[h].full;
    const uint64_t *seen = s->seen;
    uint64_t own[WN_TILE];
    struct wn_tile_span span;
    if (wn_terms_evicted_apart(p->a)) {
      const enum wn_terms_evicted evicted = wn_terms_evicted(
          p->a, u->b, u->g0 + h / p->group, wn_slot_position(p->a, u->b, u->g0 + h / p->group, r->at.p0 + s->row),
          s->rows, c * WN_TILE, own);
      if (evicted == WN_EVICTED_ALL) continue;
      seen = wn_terms_evicted_join(evicted, seen, own, s->rows);
    }
    if (h == u->select)
      tile = r->base + s->row * WN_TILE; /* the selecting head's logits are there already */
    else
      wn_product_logits(p, s->rows, s->width, wn_operand_at(p, k->kt, at * wn_operand_columns(p)), q, tile,
                        p->a->scale);
    if (h != u->select) wn_logits_complete(p, &terms, q, tile);
    const bool log_mask = r->logits || p->a->slots.at;
    if (ramp) seen = log_mask ? wn_terms_span_log(&terms, seen, own, tile) : wn_terms_span(&terms, seen, own, &span);
    if (r->logits) {
      const int64_t stride = p->blocks * WN_TILE;
      wn_threshold_store(&terms, tile, r->F ? r->F + s->row * WN_TILE : NULL, seen,
                         wn_forward_logits_of(p, r, h) + s->row * stride + c * WN_TILE, stride);
      if (p->a->threshold.on) continue; /* a threshold chooses once all logits are known */
    }
    p->ops->softmax(&(struct wn_tile_softmax){.a = tile,
                                              .F = r->F ? r->F + s->row * WN_TILE : NULL,
                                              .seen = seen,
                                              .span = ramp && !log_mask ? &span : NULL,
                                              .rows = s->rows,
                                              .width = s->width,
                                              .m = r->m + row,
                                              .l = r->l + row * WN_TILE_LANES,
                                              .acc = r->acc + row * Dp,
                                              .acc_width = Dp});
    if (p->a->dropout.p > 0) {
      wn_terms_dropout(p, &terms, own);
      wn_terms_drop(p, &terms, own, tile);
    }
    wn_product_values(p, s->rows, s->width, wn_operand_at(p, k->v, at * WN_TILE * Dp), tile, r->acc + row * Dp);
  }
}

static void begin_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, struct wn_forward_rows *r,
                       int64_t block) {
  const struct wn_attention *a = p->a;
  wn_attention_rows_init(p, u->b, block, &r->at);
  for (int64_t h = 0; h < u->heads; h++)
    wn_pack_rows(p, wn_operand_at(p, r->q, h * WN_TILE * p->Dp), wn_row_at(p, a->q, a->s_q, u->b, r->at.r0, u->h0 + h),
                 a->s_q.t, r->at.rows);
  if (r->sq) pack_selecting(p, &r->at, u->choice, r->sq);
  memset(r->acc, 0, (size_t)(u->heads * WN_TILE * p->Dp) * sizeof *r->acc);
  memset(r->l, 0, (size_t)(u->heads * WN_TILE * WN_TILE_LANES) * sizeof *r->l);
  for (int64_t i = 0; i < u->heads * WN_TILE; i++) r->m[i] = -INFINITY;
  for (int64_t h = 0; a->sinks.n > 0 && h < u->heads; h++)
    wn_terms_sinks(p, wn_operand_at(p, r->q, h * WN_TILE * p->Dp), p->Dp, u->g0 + h / p->group, r->at.rows,
                   r->m + h * WN_TILE, r->l + h * WN_TILE * WN_TILE_LANES, r->acc + h * WN_TILE * p->Dp);
  for (int64_t h = 0; r->spans && h < u->heads; h++)
    r->spans[h] = wn_terms_span_range(a, u->b, u->h0 + h, r->at.r0, r->at.rows, false);
  if (r->mem) memset(r->mem, 0, WN_TILE * sizeof *r->mem);
  if (p->sparse.on) wn_sparse_rows_init(p, &r->at, &r->sparse);
  for (int64_t h = 0; r->logits && a->sel.on && h < u->heads; h++) wn_forward_clear_logits(p, r, h);
}

static void finish_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                        const struct wn_forward_rows *r, const struct wn_forward_worker *w) {
  const struct wn_attention *a = p->a;
  const int64_t r0 = r->at.r0, rows = r->at.rows;
  for (int64_t h = 0; h < u->heads; h++) {
    float *lse = a->lse ? (float *)a->lse + (u->b * a->H + u->h0 + h) * a->Tq + r0 : NULL;
    p->ops->finish(&(struct wn_tile_finish){.m = r->m + h * WN_TILE,
                                            .l = r->l + h * WN_TILE * WN_TILE_LANES,
                                            .rows = rows,
                                            .factor = w->factor,
                                            .lse = lse});
    if (wn_terms_mask(a) || a->slots.evicted_at || a->span.on)
      wn_terms_unseen(r->m + h * WN_TILE, w->factor, lse, rows);
    wn_unpack_rows(
        p, wn_row_at(p, a->y, a->s_y, u->b, r0, u->h0 + h), a->s_y.t,
        &(struct wn_unpack){.from = r->acc + h * WN_TILE * p->Dp, .parts = 1, .rows = rows, .factor = w->factor});
    if (a->exclusive.on) wn_exclusive_rows(p, u->b, u->h0 + h, r0, rows);
  }
  if (a->sel.on && a->sel.mem && a->sel.M)
    memcpy((float *)a->sel.M + of_unit(a, u) * a->Tq + r0, r->mem, (size_t)rows * sizeof *r->mem);
}

/* Processes the listed keys for one row block; returns the first column block after the list. */
static int64_t listed_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                           const struct wn_forward_packed *k, struct wn_forward_worker *w, int64_t first) {
  struct wn_forward_rows *r = &w->rows[0];
  const struct wn_forward_packed listed = {.kt = w->list.kt, .v = w->list.v, .skt = w->list.skt};
  wn_dead_keys_list_update(p, u, &w->bound, &r->at, w->carry, &w->list);
  for (int64_t t = 0; t * WN_TILE < w->list.n; t++) {
    begin_listed(p, u, &listed, &w->list, r, t);
    for (int64_t h = 0; h < u->heads; h++) head_tile(p, u, &listed, w, r, h, t);
  }
  /* The caller's F also needs the selections of the skipped columns. */
  for (int64_t c = first; p->a->sel.f_out && c < w->list.begin; c++) forward_begin_tile(p, u, k, w, r, c, false);
  return wn_max_i64(first, w->list.begin);
}

/* Processes row blocks block..block+count-1. */
static void forward_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                         const struct wn_forward_packed *k, struct wn_forward_worker *w, int64_t block, int64_t count) {
  const bool inspect = p->a->sel.on && p->a->sel.F;
  int64_t first = p->blocks, seen = p->blocks;
  for (int64_t i = 0; i < count; i++) {
    begin_rows(p, u, &w->rows[i], block + i);
    first = wn_min_i64(first, wn_attention_first_column(p, &w->rows[i].at));
  }
  for (int64_t g = 0; g < u->groups; g++) seen = wn_min_i64(seen, k->first[g]);
  first = wn_max_i64(first, seen);
  if (p->dead_keys.on) first = listed_rows(p, u, k, w, first);
  const bool apart = wn_forward_keeps_logits(p->a) && !p->a->sel.on; /* one head after the other */
  for (int64_t h = 0; apart && h < u->heads; h++) {
    for (int64_t i = 0; i < count; i++) wn_forward_clear_logits(p, &w->rows[i], h);
    for (int64_t c = first; c < block + count; c++)
      for (int64_t i = 0; i < count; i++) {
        forward_begin_tile(p, u, k, w, &w->rows[i], c, true);
        head_tile(p, u, k, w, &w->rows[i], h, c);
      }
    for (int64_t i = 0; i < count; i++) wn_forward_use_logits(p, u, k, w, &w->rows[i], h);
  }
  for (int64_t c = inspect ? 0 : first; !apart && c < (inspect ? p->blocks : block + count); c++) {
    for (int64_t i = 0; i < count; i++) forward_begin_tile(p, u, k, w, &w->rows[i], c, true);
    for (int64_t h = 0; h < u->heads; h++)
      for (int64_t i = 0; i < count; i++) head_tile(p, u, k, w, &w->rows[i], h, c);
  }
  for (int64_t i = 0; wn_forward_keeps_logits(p->a) && !apart && i < count; i++)
    for (int64_t h = 0; h < u->heads; h++) wn_forward_use_logits(p, u, k, w, &w->rows[i], h);
  if (p->sparse.on) {
    struct wn_sparse_forward f[WN_FORWARD_ROWS];
    for (int64_t i = 0; i < count; i++) {
      const struct wn_forward_rows *r = &w->rows[i];
      f[i] = (struct wn_sparse_forward){.at = &r->at,
                                        .rows = &r->sparse,
                                        .q = r->q,
                                        .m = r->m,
                                        .l = r->l,
                                        .acc = r->acc,
                                        .tile = w->tile + i * WN_TILE_AREA};
    }
    wn_sparse_forward(p, u, f, count, k->k, k->rows_v);
  }
  for (int64_t i = 0; i < count; i++) finish_rows(p, u, &w->rows[i], w);
}

static void prefetch_rows(const struct wn_attention_plan *p, const void *x, int64_t stride, int64_t rows) {
  const int64_t size = (int64_t)wn_row_size(p);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t at = 0; at < p->a->D * size; at += 64)
      __builtin_prefetch((const char *)x + r * stride * size + at, 0, 2);
}

/* Prefetches the inputs of a row block. */
static void prefetch_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t block) {
  const struct wn_attention *a = p->a;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  for (int64_t g = 0; g < u->groups && !a->k_type; g++) {
    prefetch_rows(p, wn_row_at(p, a->k, a->s_k, u->b, r.p0, u->g0 + g), a->s_k.t, r.rows);
    prefetch_rows(p, wn_row_at(p, a->v, a->s_v, u->b, r.p0, u->g0 + g), a->s_v.t, r.rows);
  }
  for (int64_t h = 0; h < u->heads; h++)
    prefetch_rows(p, wn_row_at(p, a->q, a->s_q, u->b, r.r0, u->h0 + h), a->s_q.t, r.rows);
}

/* A thread takes consecutive units, so that it knows the next one. */
static int64_t forward_run(const struct wn_attention_plan *p) {
  return wn_max_i64(1, p->units / (8 * p->threads));
}
static void forward_units(void *plan, int64_t i) {
  const struct wn_attention_plan *p = plan;
  const int64_t end = wn_min_i64(p->units, (i + 1) * forward_run(p));
  const int64_t heads = p->units == p->a->B ? p->a->H : p->group;
  struct forward_scratch all;
  struct wn_forward_packed k;
  struct wn_forward_worker w;
  lay_forward(p, &(struct wn_arrays){.base = p->exec->scratch}, &all);
  struct wn_arrays mine = wn_arrays_copy(&all.each, all.workers, wn_hand());
  lay_own(p, &mine, &k, &w);
  wn_products_begin(p);
  for (int64_t n = i * forward_run(p); n < end; n++) {
    struct wn_attention_unit u, next;
    wn_attention_unit_init(p, n, &u);
    wn_attention_unit_init(p, n + 1, &next);
    for (int64_t g = 0; g < u.groups; g++) forward_first_block(p, &u, &k, g);
    if (w.carry) carry_begin(p, &u, w.carry);
    if (p->dead_keys.on) wn_dead_keys_list_begin(&w.list);
    /* A tile of keys is packed just before the first row block that sees it, and prefetched before that. */
    for (int64_t block = p->first_block, packed = 0, count; block < p->blocks; block += count) {
      count = wn_min_i64(rows_at_once(p, heads), p->blocks - block);
      for (; packed < block + count; packed++)
        for (int64_t g = 0; g < u.groups; g++) pack_tile(p, &u, &k, g, packed);
      if (block + count < p->blocks)
        prefetch_block(p, &u, block + count);
      else if (n + 1 < end)
        prefetch_block(p, &next, p->first_block);
      forward_rows(p, &u, &k, &w, block, count);
    }
    if (w.carry) carry_end(p, &u, w.carry);
  }
  wn_products_end(p);
}

/* Goes down the rows of column block c and stores the carry at each chunk's first row. */
static void carry_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c,
                          const struct wn_forward_packed *k, const struct shared *s, struct wn_forward_worker *w) {
  const int64_t last = wn_attention_chunk(p, p->chunks - 1), size = p->blocks * WN_TILE;
  const void *kt = selected_keys(p, u, k, c);
  const float *begin = s->carries + c * WN_TILE;
  float *carry = w->carry + c * WN_TILE;
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  struct wn_attention_rows r;
  memcpy(carry, begin, WN_TILE * sizeof *carry);
  int64_t chunk = 1;
  for (int64_t block = p->first_block;; block++) {
    while (chunk < p->chunks && wn_attention_chunk(p, chunk) == block)
      memcpy(s->carries + chunk++ * size + c * WN_TILE, carry, WN_TILE * sizeof *carry);
    if (block >= last) break;
    if (block < c) continue;
    wn_attention_rows_init(p, u->b, block, &r);
    const int n = wn_attention_strips(p, &r, c, strips);
    for (int i = 0; i < n; i++) {
      const void *q = wn_operand_at(p, s->selq, (block * WN_TILE + strips[i].row) * p->Dp);
      wn_product_logits(p, strips[i].rows, strips[i].width, kt, q, w->tile, p->a->scale);
      if (!p->a->sel.bilinear)
        wn_logits_complete(p,
                           &(struct wn_terms_strip){.a = p->a,
                                                    .b = u->b,
                                                    .h = u->select,
                                                    .r = r.r0 + strips[i].row,
                                                    .rows = strips[i].rows,
                                                    .width = strips[i].width,
                                                    .j0 = c * WN_TILE},
                           q, w->tile);
      p->ops->select(&(struct wn_tile_select){.base = w->tile,
                                              .allow = strips[i].allow,
                                              .carry = carry,
                                              .rows = strips[i].rows,
                                              .relu = p->a->sel.relu,
                                              .shift = p->a->sel.shift,
                                              .strength = wn_strength(p->a, u->choice)});
    }
  }
}

static void forward_team(void *plan) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const size_t size = (size_t)(p->blocks * WN_TILE);
  struct forward_scratch all;
  lay_forward(p, &(struct wn_arrays){.base = p->exec->scratch}, &all);
  const struct wn_forward_packed k = all.k;
  const struct shared s = all.s;
  wn_products_begin(p);
  const int me = wn_hand(), team = wn_hands();
  struct wn_arrays mine = wn_arrays_copy(&all.each, all.workers, me);
  struct wn_forward_worker w;
  lay_worker(p, &mine, a->H, &w);
  for (int64_t b = 0; b < a->B; b++) {
    const struct wn_attention_unit u = {
        .b = b, .heads = a->H, .groups = a->Hkv, .select = a->sel.on && !a->sel.bilinear ? a->sel.head : -1};
    for (struct wn_share g = wn_share(a->Hkv); g.at < g.end; g.at++) forward_first_block(p, &u, &k, g.at);
    wn_barrier();
    for (struct wn_share n = wn_share(a->Hkv * p->blocks); n.at < n.end; n.at++)
      pack_tile(p, &u, &k, n.at % a->Hkv, n.at / a->Hkv);
    wn_barrier();
    if (a->sel.on) {
      for (struct wn_share n = wn_share(p->blocks - p->first_block); n.at < n.end; n.at++) {
        const int64_t block = p->first_block + n.at;
        struct wn_attention_rows r;
        wn_attention_rows_init(p, b, block, &r);
        pack_selecting(p, &r, 0, wn_operand_at(p, s.selq, block * WN_TILE * p->Dp));
      }
      if (me == 0) carry_begin(p, &u, s.carries);
      wn_barrier();
      for (int64_t c; wn_task(p->blocks, &c);) carry_columns(p, &u, c, &k, &s, &w);
      wn_barrier();
    }
    for (int64_t chunk = me; chunk < p->chunks; chunk += team) {
      if (a->sel.on) memcpy(w.carry, s.carries + (size_t)chunk * size, size * sizeof *w.carry);
      if (p->dead_keys.on) wn_dead_keys_list_begin(&w.list);
      const int64_t end = wn_attention_chunk(p, chunk + 1);
      for (int64_t block = wn_attention_chunk(p, chunk), count; block < end; block += count) {
        count = wn_min_i64(rows_at_once(p, a->H), end - block);
        forward_rows(p, &u, &k, &w, block, count);
      }
      if (a->sel.on && chunk == p->chunks - 1) carry_end(p, &u, w.carry);
    }
    wn_barrier();
  }
  wn_products_end(p);
}

void wn_attention_forward_run(const struct wn_attention_plan *p) {
  if (p->own)
    wn_parallel_tasks(p->threads, (p->units + forward_run(p) - 1) / forward_run(p), forward_units, p);
  else
    wn_parallel(p->threads, forward_team, p);
}
