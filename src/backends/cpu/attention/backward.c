/* Backward of the fused attention (Dao 2023, FlashAttention-2; the gradient through F: docs/selective-attention.md).
 *
 * The outer loop is over column blocks: F[i,j] depends only on column j, so columns are independent except for dq. For
 * each column block, a pass down the rows recomputes the selecting logits of its 64 columns, and the carry (the sum of
 * S over earlier rows) at each row block; both are linear in T and kept. Then row blocks are visited from last to
 * first: W and G = W*(dW - delta) of every head; dF = -sum of G; from dF and its carry from the rows below comes dS,
 * the gradient of the selections, which is added to the selecting head's G before that head's products. So selection
 * needs no product beyond dense attention (except in the bilinear form). In a team each thread takes column blocks and
 * has its own dq; these are added in fixed order. 10 D operations per pair and head, 6 D if the key is constant.
 * Scratch in floats: 2 T H D for packed rows, T H D for each thread's dq. */
#include <math.h>
#include <string.h>
#include "backends/cpu/attention/backward.h"
#include "backends/cpu/attention/score.h"
#include "backends/cpu/attention/threshold.h"

/* The state of one column block: rows, sums, and the worker's tiles. */
struct column {
  const struct wn_attention_plan *p;
  const struct wn_attention_unit *u;
  const struct wn_backward_rows *rows;
  const struct wn_backward_sums *sums;
  struct wn_backward_worker *w;
  int64_t c;
  bool alone;  /* a single tile is processed: w has only its base and carries */
  bool listed; /* and the tile holds `size` listed keys, `keys`; c is 0 */
  const int32_t *keys;
  int64_t size;
  bool varies;                                     /* some of its keys are not constant */
  struct wn_attention_strip strips[WN_STRIPS_MAX]; /* of the current tile */
  int count;
  const float *dM;      /* [Tq] gradient of the rows' M, or NULL */
  float carry[WN_TILE]; /* dF summed over the row blocks done */
  double dstrength;     /* summed over all column blocks processed with this struct */
};

/* The selecting logits of a tile; below, the carries of its F. */
static float *base_of(const struct column *x, int64_t block) {
  return x->w->base + (x->alone ? 0 : block * WN_TILE_AREA);
}
static float *carries_of(const struct column *x, int64_t block) {
  return x->w->carries + (x->alone ? 0 : block * WN_TILE);
}

static struct wn_tile_select selection(const struct column *x, int64_t block, const struct wn_attention_strip *s) {
  const struct wn_attention *a = x->p->a;
  return (struct wn_tile_select){.base = base_of(x, block) + s->row * WN_TILE,
                                 .allow = s->allow,
                                 .rows = s->rows,
                                 .relu = a->sel.relu,
                                 .shift = a->sel.shift,
                                 .strength = wn_strength(a, x->u->choice)};
}

/* The keys of the selecting head, or of the bilinear form. */
static const void *selected_columns(const struct column *x) {
  if (x->w->skt) return x->w->skt;
  return wn_operand_at(x->p, x->w->kt, x->u->select / x->p->group * wn_operand_columns(x->p));
}

/* Goes down the rows: selecting logits and carries. */
static void select_columns(const struct column *x) {
  const struct wn_attention_plan *p = x->p;
  const int64_t tall = WN_TILE * p->Dp;
  const int64_t step = x->rows->sq ? tall : x->u->heads * tall;
  const void *q = x->rows->sq ? x->rows->sq : wn_operand_at(p, x->rows->q, x->u->select * tall),
             *kt = selected_columns(x);
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  struct wn_attention_rows r;
  float carry[WN_TILE] = {0};
  const struct wn_attention *a = p->a;
  if (a->sel.f_in)
    memcpy(carry,
           (const float *)a->sel.f_in + (x->u->b * wn_selection_groups(a) + x->u->choice) * wn_selection_stride(a) +
               x->c * WN_TILE,
           (size_t)wn_min_i64(WN_TILE, a->Tk - x->c * WN_TILE) * sizeof *carry);
  for (int64_t block = wn_max_i64(x->c, p->first_block); block < p->blocks; block++) {
    memcpy(x->w->carries + block * WN_TILE, carry, sizeof carry);
    wn_attention_rows_init(p, x->u->b, block, &r);
    const int n = wn_attention_strips(p, &r, x->c, strips);
    for (int i = 0; i < n; i++) {
      struct wn_tile_select s = selection(x, block, &strips[i]);
      s.carry = carry;
      const void *strip = wn_operand_at(p, q, block * step + strips[i].row * p->Dp);
      wn_product_logits(p, strips[i].rows, strips[i].width, kt, strip, (float *)s.base, a->scale);
      if (!a->sel.bilinear) {
        const struct wn_terms_strip terms = wn_terms_strip_of(p, x->u, x->u->select, r.r0, &strips[i], x->c);
        wn_logits_complete(p, &terms, strip, (float *)s.base);
      }
      const bool apart = x->w->sparse.F && x->c < wn_sparse_edge(p, block);
      if (apart) s.F = x->w->F + strips[i].row * WN_TILE;
      p->ops->select(&s);
    }
    if (x->w->sparse.F && n > 0 && x->c < wn_sparse_edge(p, block))
      wn_sparse_columns_take(p, &r, x->c, &x->w->sparse, x->w->F);
  }
}

/* Handles the pairs of the column block that are gathered by distance. */
static void columns_apart(const struct column *x) {
  const struct wn_backward_worker *w = x->w;
  wn_sparse_backward(&(struct wn_sparse_backward){.p = x->p,
                                                  .u = x->u,
                                                  .keys = &w->sparse,
                                                  .c = x->c,
                                                  .q = x->rows->q,
                                                  .dy = x->rows->dy,
                                                  .lse = x->rows->lse,
                                                  .delta = x->rows->delta,
                                                  .dq = x->sums->dq,
                                                  .k = w->k,
                                                  .dk = w->dk,
                                                  .dv = w->dv,
                                                  .w = w->w,
                                                  .g = w->g,
                                                  .lse_of = w->pairs[0],
                                                  .delta_of = w->pairs[1]});
}

/* dk += G^T q and dq += G k on a strip. g and dq begin at the strip's first row, q at the block's. */
static void score_products(const struct column *x, const struct wn_attention_strip *s, const float *g, const void *q,
                           const void *k, float *dk, float *dq) {
  if (x->varies) wn_product_columns(x->p, s->row, s->rows, s->width, q, g, dk);
  wn_product_values(x->p, s->rows, s->width, k, g, dq);
}

static struct wn_terms_strip strip_terms(const struct column *x, int64_t h, int64_t block,
                                         const struct wn_attention_strip *s) {
  return wn_terms_strip_of(x->p, x->u, h, wn_max_i64(block * WN_TILE, x->p->offset) - x->p->offset, s, x->c);
}

/* May some row of the tile see only one key (its own or the one before)? */
static bool may_be_lone(const struct column *x, int64_t block) {
  const struct wn_attention *a = x->p->a;
  if (block - x->c > (a->span.on && a->span.exclude_self ? 1 : 0)) return false;
  return block == 0 || a->doc_start || (a->window > 0 && a->window <= 2) || a->slots.evicted_at;
}

/* If a row sees only one key, its attention weight is 1 whatever the logit. So its G is set to exactly zero, without
 * rounding error, and with it the share of dF and of the spans' dz. dF may be NULL; dz_before: dz without this tile. */
static void clear_lone(const struct column *x, int64_t h, int64_t p0, const struct wn_attention_strip *s, float *g,
                       float *dF, float *dz, const float *dz_before) {
  const struct wn_attention *a = x->p->a;
  for (int64_t i = 0; i < s->rows; i++) {
    if (!wn_terms_lone(a, x->u->b, x->u->g0 + h / x->p->group, p0 + s->row + i)) continue;
    memset(g + i * WN_TILE, 0, WN_TILE * sizeof *g);
    bool all = true; /* heads with their own evictions may see more here */
    for (int64_t group = 0; wn_terms_evicted_apart(a) && group < x->u->groups; group++)
      all = all && wn_terms_lone(a, x->u->b, x->u->g0 + group, p0 + s->row + i);
    if (dF && all) memset(dF + i * WN_TILE, 0, WN_TILE * sizeof *dF);
    if (dz) dz[i] = dz_before[i];
  }
}

/* Turns the gradient G of a strip's mapped logits `mapped` (NULL: no map) into that of the product q.k, and adds the
 * gradients of the other terms of the logit. */
static void logits_gradient(const struct column *x, const struct wn_terms_strip *s, const float *mapped, const float *q,
                            float *G, float *dq) {
  const struct wn_attention_plan *p = x->p;
  if (mapped) wn_score_tile_gradient(p, s, mapped, G);
  if (p->dkeys) wn_score_keys_gradient(p, s, mapped, G, x->sums->dkeys);
  if (p->a->relative.P > 0) wn_terms_relative_gradient(p, s, G, q, dq, x->sums->dp);
  if (p->dbias) wn_score_sum(p, s, G, x->sums->dbias);
}

/* The products of a strip: gradient = dy.v; the head's logits are stored in `weights`, or returned from where
 * they are. */
static const float *backward_logits(const struct column *x, const struct wn_terms_strip *terms, int64_t h,
                                    int64_t block, int64_t row, float *weights, float *gradient) {
  const struct wn_attention_plan *p = x->p;
  const int64_t columns = h / p->group * wn_operand_columns(p), at = (block * x->u->heads + h) * WN_TILE + row;
  const void *q = wn_operand_at(p, x->rows->q, at * p->Dp), *dy = wn_operand_at(p, x->rows->dy, at * p->Dp);
  wn_product_logits(p, terms->rows, terms->width, wn_operand_at(p, x->w->vt, columns), dy, gradient, 1);
  if (h == x->u->select) return base_of(x, block) + row * WN_TILE;
  wn_product_logits(p, terms->rows, terms->width, wn_operand_at(p, x->w->kt, columns), q, weights, p->a->scale);
  wn_logits_complete(p, terms, q, weights);
  return weights;
}

/* sums[rows] += the sum of each row of a tile [rows,width]. */
static void rows_summed(float *sums, const float *tile, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; i++) {
    float sum = 0;
    for (int64_t j = 0; j < width; j++) sum += tile[i * WN_TILE + j];
    sums[i] += sum;
  }
}

/* One head on one tile: W, G, dF, dv; also dk and dq, unless the selections' gradient must be added first. */
static void backward_head(const struct column *x, int64_t h, int64_t block) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_backward_worker *w = x->w;
  const int64_t Dp = p->Dp, g = h / p->group, tile = g * WN_TILE * Dp;
  const int64_t first = (block * x->u->heads + h) * WN_TILE;
  const bool lone = may_be_lone(x, block), bends = h != x->u->select && wn_score_bends(p->a);
  float mapped[WN_TILE_AREA];
  for (int i = 0; i < x->count; i++) {
    const struct wn_attention_strip *s = &x->strips[i];
    const int64_t row = first + s->row, in_tile = s->row * WN_TILE;
    float *weights = w->w + in_tile, *gradient = w->g + in_tile;
    const struct wn_terms_strip terms = strip_terms(x, h, block, s);
    const struct wn_span_range *range = x->rows->spans ? x->rows->spans + block * x->u->heads + h : NULL;
    uint64_t own[WN_TILE];
    const enum wn_terms_evicted evicted =
        wn_terms_evicted_own(p->a, x->u->b, x->u->g0 + g, terms.r + p->offset, s->rows, terms.j0, own);
    if (s->skip || evicted == WN_EVICTED_ALL || (range && terms.j0 + s->width <= range->first)) {
      if (h == x->u->select) memset(gradient, 0, (size_t)(s->rows * WN_TILE) * sizeof *gradient);
      continue;
    }
    const bool ramp = range && terms.j0 < range->full;
    const float *logits = backward_logits(x, &terms, h, block, s->row, weights, gradient);
    const uint64_t *seen = wn_terms_evicted_join(evicted, s->seen, own, s->rows);
    struct wn_tile_span span;
    uint64_t keep[WN_TILE];
    int8_t edge[WN_TILE];
    if (ramp) wn_terms_span_edges(&terms, seen, edge);
    if (bends) memcpy(mapped, weights, (size_t)(s->rows * WN_TILE) * sizeof *mapped); /* W overwrites them */
    if (ramp && p->a->threshold.on) {
      if (logits != weights) memcpy(weights, logits, (size_t)(s->rows * WN_TILE) * sizeof *weights);
      logits = weights; /* keeps the selecting logits unchanged */
      seen = wn_terms_span_log(&terms, seen, own, weights);
    } else if (ramp) {
      seen = wn_terms_span(&terms, seen, own, &span);
    }
    if (p->a->threshold.on) {
      seen = wn_threshold_mask(p, &terms, wn_threshold_cut(&terms), logits, w->F ? w->F + in_tile : NULL, seen, own);
      wn_threshold_hide_single(&terms, wn_threshold_cut(&terms), own);
    }
    if (p->a->dropout.p > 0) {
      wn_terms_dropout(p, &terms, keep);
      wn_terms_drop(p, &terms, keep, gradient);
    }
    float *dz = ramp && !p->a->threshold.on ? x->sums->dz + row : NULL, dz_before[WN_TILE];
    float *steep = ramp && x->sums->steep ? x->sums->steep + row : NULL;
    if (lone && dz) memcpy(dz_before, dz, (size_t)s->rows * sizeof *dz);
    const struct wn_tile_gradient tile_gradient = {.a = logits,
                                                   .w = weights,
                                                   .g = gradient,
                                                   .F = w->F ? w->F + in_tile : NULL,
                                                   .seen = seen,
                                                   .rows = s->rows,
                                                   .width = s->width,
                                                   .lse = x->rows->lse + row,
                                                   .delta = x->rows->delta + row,
                                                   .dF = w->dF ? w->dF + in_tile : NULL,
                                                   .span = dz ? &span : NULL,
                                                   .dz = dz,
                                                   .steep = steep};
    if (ramp) wn_terms_span_edge_gradient(&terms, edge, &tile_gradient, x->sums->dz + row, steep);
    p->ops->gradient(&tile_gradient);
    if (p->a->threshold.on) wn_threshold_show_single(&terms, wn_threshold_cut(&terms), weights);
    if (lone)
      clear_lone(x, h, wn_max_i64(block * WN_TILE, p->offset), s, gradient, w->dF ? w->dF + in_tile : NULL, dz,
                 dz_before);
    if (ramp && p->a->threshold.on) wn_terms_span_log_gradient(&terms, gradient, x->sums->dz + row);
    if (steep && p->a->threshold.on) wn_terms_span_log_gradient(&terms, weights, steep);
    if (x->sums->excess) rows_summed(x->sums->excess + row, gradient, s->rows, s->width);
    if (x->varies) {
      if (p->a->dropout.p > 0) wn_terms_drop(p, &terms, keep, weights);
      wn_product_columns(p, s->row, s->rows, s->width, wn_operand_at(p, x->rows->dy_right, first * Dp), weights,
                         w->dv + tile);
    }
    if (h == x->u->select) continue;
    logits_gradient(x, &terms, bends ? mapped : NULL, wn_operand_at(p, x->rows->q, row * Dp), gradient,
                    x->sums->dq + row * Dp);
    score_products(x, s, gradient, wn_operand_at(p, x->rows->q_right, first * Dp), wn_operand_at(p, w->k, tile),
                   w->dk + tile, x->sums->dq + row * Dp);
  }
}

/* A row's M falls as F grows, where F < tau. */
static void memory_gradient(const struct column *x, const struct wn_attention_rows *r,
                            const struct wn_attention_strip *s) {
  const struct wn_attention *a = x->p->a;
  if (!x->dM) return;
  const float tau = (float)a->sel.mem_tau;
  for (int64_t i = 0; i < s->rows; i++) {
    const float each = x->dM[r->r0 + s->row + i] / tau;
    const uint64_t past = s->past ? s->past[i] : ~UINT64_C(0);
    const int64_t row = (s->row + i) * WN_TILE;
    for (int64_t j = 0; j < s->width && each != 0; j++)
      if (past >> j & 1 && x->w->F[row + j] < tau) x->w->dF[row + j] -= each;
  }
}

/* From dF to the gradient of the selecting logits, and their products. */
static void selection_gradient(struct column *x, int64_t block) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct wn_backward_worker *w = x->w;
  const int64_t Dp = p->Dp, h = x->u->select, tile = h / p->group * WN_TILE * Dp;
  for (int i = x->count - 1; i >= 0; i--) {
    const struct wn_attention_strip *s = &x->strips[i];
    const int64_t in_tile = s->row * WN_TILE;
    p->ops->select_gradient(&(struct wn_tile_select_gradient){.base = base_of(x, block) + in_tile,
                                                              .allow = s->allow,
                                                              .dF = w->dF + in_tile,
                                                              .carry = x->carry,
                                                              .add = h >= 0 ? w->g + in_tile : NULL,
                                                              .out = w->g + in_tile,
                                                              .rows = s->rows,
                                                              .relu = a->sel.relu,
                                                              .shift = a->sel.shift,
                                                              .strength = wn_strength(a, x->u->choice),
                                                              .dstrength = a->sel.dstrength ? &x->dstrength : NULL});
    const int64_t row = block * WN_TILE + s->row, of_head = (block * x->u->heads + h) * WN_TILE + s->row;
    if (h >= 0) {
      const struct wn_terms_strip terms = strip_terms(x, h, block, s);
      logits_gradient(x, &terms, base_of(x, block) + in_tile, wn_operand_at(p, x->rows->q, of_head * Dp),
                      w->g + in_tile, x->sums->dq + of_head * Dp);
      score_products(x, s, w->g + in_tile, wn_operand_at(p, x->rows->q_right, (of_head - s->row) * Dp),
                     wn_operand_at(p, w->k, tile), w->dk + tile, x->sums->dq + of_head * Dp);
    } else {
      score_products(x, s, w->g + in_tile, x->rows->sq + (row - s->row) * Dp, w->sk, w->dsk, x->sums->dsq + row * Dp);
    }
  }
}

/* The selecting logits of a single tile. */
static void select_alone(struct column *x, int64_t block) {
  const struct wn_attention_plan *p = x->p;
  const int64_t tall = WN_TILE * p->Dp;
  const void *q = x->rows->sq ? x->rows->sq + block * tall
                              : wn_operand_at(p, x->rows->q, (block * x->u->heads + x->u->select) * tall);
  for (int i = 0; i < x->count; i++) {
    const struct wn_attention_strip *s = &x->strips[i];
    /* For listed keys, the whole tile: unused columns must be finite. */
    wn_product_logits(p, s->rows, x->listed ? WN_TILE : s->width, selected_columns(x),
                      wn_operand_at(p, q, s->row * p->Dp), base_of(x, block) + s->row * WN_TILE, p->a->scale);
  }
}

/* Computes F of the current tile and clears dF. */
static void backward_begin_tile(struct column *x, const struct wn_attention_rows *r) {
  const struct wn_backward_worker *w = x->w;
  if (x->listed) {
    wn_dead_keys_strip(x->p, r, x->keys, x->size, &x->strips[0]);
    x->count = !x->strips[0].empty;
  } else {
    x->count = wn_attention_strips(x->p, r, x->c, x->strips);
  }
  if (x->count == 0 || !x->p->a->sel.on) return;
  if (x->alone) select_alone(x, r->block);
  for (int i = 0; i < x->count; i++) {
    struct wn_tile_select s = selection(x, r->block, &x->strips[i]);
    s.carry = carries_of(x, r->block);
    s.F = w->F + x->strips[i].row * WN_TILE;
    x->p->ops->select(&s);
  }
  memset(w->dF, 0, WN_TILE_AREA * sizeof *w->dF);
  if (w->sparse.dF && x->c < wn_sparse_edge(x->p, r->block)) wn_sparse_columns_put(x->p, r, x->c, &x->w->sparse, w->dF);
}

/* Processes `count` column blocks, from x[0].c on. */
static void backward_columns(struct column *x, int64_t count) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention_unit *u = x->u;
  struct wn_attention_rows r;
  for (int64_t n = 0; n < count; n++) {
    wn_backward_pack_columns(p, u, x[n].c, x[n].rows->first, x[n].w);
    memset(x[n].carry, 0, sizeof x[n].carry);
    if (p->sparse.on) wn_sparse_columns_init(p, u->b, x[n].c, &x[n].w->sparse);
    if (p->a->sel.on) select_columns(&x[n]);
    if (p->sparse.on) columns_apart(&x[n]);
  }
  for (int64_t block = p->blocks - 1; block >= wn_max_i64(x->c, p->first_block); block--) {
    wn_attention_rows_init(p, u->b, block, &r);
    for (int64_t n = 0; n < count; n++) backward_begin_tile(&x[n], &r);
    for (int64_t h = 0; h < u->heads; h++)
      for (int64_t n = 0; n < count; n++)
        if (h != u->select) backward_head(&x[n], h, block);
    for (int64_t n = 0; n < count && p->a->sel.on; n++) {
      if (x[n].count == 0) continue;
      if (u->select >= 0) backward_head(&x[n], u->select, block);
      for (int i = 0; i < x[n].count; i++) memory_gradient(&x[n], &r, &x[n].strips[i]);
      selection_gradient(&x[n], block);
    }
  }
  for (int64_t n = 0; n < count; n++) wn_backward_unpack_columns(p, u, x[n].c, x[n].w);
}

/* One tile of row block r, all heads. */
static void backward_tile(struct column *x, const struct wn_attention_rows *r) {
  backward_begin_tile(x, r);
  if (x->count == 0) return;
  for (int64_t h = 0; h < x->u->heads; h++)
    if (h != x->u->select) backward_head(x, h, r->block);
  if (x->u->select >= 0) backward_head(x, x->u->select, r->block);
  for (int i = 0; i < x->count; i++) memory_gradient(x, r, &x->strips[i]);
  selection_gradient(x, r->block);
}

/* The whole unit with dead keys skipped, by row blocks from last to first: first the listed keys, then the block's
 * own. */
static void backward_skipping(struct column *x, struct wn_backward_dead_keys *dead_keys) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention_unit *u = x->u;
  const struct wn_attention *a = p->a;
  struct wn_dead_keys_slots *slots = &dead_keys->slots;
  const int64_t row = u->groups * WN_TILE * p->Dp, column = u->groups * WN_TILE * a->D;
  x->alone = true;
  for (int64_t block = p->blocks - 1; block >= 0; block--) {
    struct wn_attention_rows r;
    wn_attention_rows_init(p, u->b, block, &r);
    x->c = block;
    x->varies = (block + 1) * WN_TILE > a->dk_from;
    wn_backward_pack_columns(p, u, block, x->rows->first, x->w);
    memset(x->carry, 0, sizeof x->carry);
    memset(x->w->carries, 0, sizeof x->carry);
    if (a->sel.f_in)
      memcpy(x->w->carries,
             (const float *)a->sel.f_in + (u->b * wn_selection_groups(a) + u->choice) * wn_selection_stride(a) +
                 block * WN_TILE,
             (size_t)wn_min_i64(WN_TILE, a->Tk - block * WN_TILE) * sizeof(float));
    wn_dead_keys_enter(
        p, u, &dead_keys->history, block,
        &(struct wn_dead_keys_home){.dk = x->w->dk, .dv = x->w->dv, .dsk = x->w->dsk, .dcarry = x->carry},
        dead_keys->bound.wide, slots);
    for (int64_t t = 0; t * WN_TILE < slots->n; t++) {
      struct wn_backward_worker w = *x->w;
      struct column y = *x;
      w.k = slots->k + t * row, w.dk = slots->dk + t * row, w.dv = slots->dv + t * row;
      w.kt = slots->kt + t * column, w.vt = slots->vt + t * column;
      if (slots->sk) {
        w.sk = slots->sk + t * WN_TILE * p->Dp, w.dsk = slots->dsk + t * WN_TILE * p->Dp;
        w.skt = slots->skt + t * WN_TILE * a->D;
      }
      w.carries = slots->carry + t * WN_TILE;
      y.w = &w, y.c = 0, y.listed = true, y.varies = true;
      y.keys = slots->at + t * WN_TILE, y.size = wn_min_i64(WN_TILE, slots->n - t * WN_TILE);
      memcpy(y.carry, slots->dcarry + t * WN_TILE, sizeof y.carry);
      backward_tile(&y, &r);
      memcpy(slots->dcarry + t * WN_TILE, y.carry, sizeof y.carry);
      x->dstrength = y.dstrength;
    }
    backward_tile(x, &r);
    wn_backward_unpack_columns(p, u, block, x->w);
  }
}

/* Do enough keys die to make the walk by row blocks worthwhile? */
static bool record(const struct column *x, struct wn_backward_dead_keys *dead_keys) {
  const struct wn_attention_plan *p = x->p;
  const int64_t tall = WN_TILE * p->Dp;
  const void *q = x->rows->sq ? x->rows->sq : wn_operand_at(p, x->rows->q, x->u->select * tall);
  return wn_dead_keys_record(p, x->u, &dead_keys->bound, q, x->rows->sq ? tall : x->u->heads * tall, x->w->base,
                             &dead_keys->history, &dead_keys->slots);
}

/* Processes column blocks c..c+at_once-1, as far as they exist. */
static void columns_from(struct column *x, int64_t c, int64_t at_once) {
  const int64_t count = wn_min_i64(at_once, x->p->blocks - c);
  for (int64_t n = 0; n < count; n++) {
    x[n].c = c + n;
    x[n].varies = (c + n + 1) * WN_TILE > x->p->a->dk_from;
  }
  if (count > 0) backward_columns(x, count);
}

/* Stores the gradient of the strengths of a unit, or of a thread's part of it. */
static void put_strength(const struct wn_attention_plan *p, int64_t at, const struct column x[WN_BACKWARD_COLUMNS]) {
  if (!p->terms.strength) return;
  p->terms.strength[at] = 0;
  for (int i = 0; i < WN_BACKWARD_COLUMNS; i++) p->terms.strength[at] += x[i].dstrength;
}

/* The gradient of M [Tq] for a unit's rows; NULL: none. */
static const float *backward_memory(const struct wn_attention *a, const struct wn_attention_unit *u) {
  if (!a->sel.on || !a->sel.mem || !a->sel.dM) return NULL;
  return (const float *)a->sel.dM + (u->b * wn_selection_groups(a) + u->choice) * a->Tq;
}

static void backward_sinks(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t h,
                           int64_t block, const struct wn_backward_rows *rows, const struct wn_backward_sums *s) {
  const int64_t row = (block * u->heads + h) * WN_TILE;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  wn_sinks_gradient(p, u->g0 + h / p->group, r.rows, wn_operand_at(p, rows->q, row * p->Dp),
                    wn_operand_at(p, rows->dy, row * p->Dp), rows->lse + row, rows->delta + row, s->dq + row * p->Dp,
                    s->sinks);
}

static void backward_part(void *plan, int64_t part) {
  const struct wn_attention_plan *p = plan;
  int64_t heads, groups;
  wn_backward_unit_shape(p, &heads, &groups);
  struct wn_backward_scratch all;
  wn_backward_lay(p, &(struct wn_arrays){.base = p->exec->scratch}, &all);
  const int64_t at_once = wn_backward_columns_at_once(p, heads), parts = wn_terms_parts(p);
  wn_products_begin(p);
  const int me = wn_hand();
  struct wn_backward_rows rows;
  struct wn_backward_sums sums;
  struct wn_backward_worker w[WN_BACKWARD_COLUMNS];
  struct column x[WN_BACKWARD_COLUMNS];
  struct wn_backward_dead_keys dead_keys;
  struct wn_arrays at = wn_arrays_copy(&all.rows, all.rows_at, me);
  wn_backward_lay_rows(p, &at, heads, groups, &rows);
  at = wn_arrays_copy(&all.sums, all.sums_at, me);
  wn_backward_lay_sums(p, &at, heads, &sums);
  at = wn_arrays_copy(&all.worker, all.workers_at, me);
  wn_backward_lay_workers(p, &at, heads, groups, w, &dead_keys);
  sums.dp = wn_terms_relative_part(p, part);
  sums.sinks = wn_sinks_part(p, part);
  wn_terms_relative_part_clear(p, sums.dp);
  wn_sinks_part_clear(p, sums.sinks);
  for (int64_t n = p->units * part / parts; n < p->units * (part + 1) / parts; n++) {
    struct wn_attention_unit u;
    wn_attention_unit_init(p, n, &u);
    for (int64_t block = p->first_block; block < p->blocks; block++)
      for (int64_t h = 0; h < u.heads; h++) wn_backward_pack_rows(p, &u, h, block, &rows);
    for (int64_t g = 0; g < u.groups; g++) wn_backward_first_block(p, &u, &rows, g);
    sums.dbias = wn_score_part(p, u.b);
    sums.dkeys = wn_score_keys_part(p, 0, u.b);
    memset(sums.dq, 0, all.sums.bytes); /* dq is the first array */
    for (int i = 0; i < WN_BACKWARD_COLUMNS; i++)
      x[i] =
          (struct column){.p = p, .u = &u, .rows = &rows, .sums = &sums, .w = &w[i], .dM = backward_memory(p->a, &u)};
    for (int64_t n = 0; sums.sinks && n < u.heads * (p->blocks - p->first_block); n++)
      backward_sinks(p, &u, n % u.heads, p->first_block + n / u.heads, &rows, &sums);
    if (p->dead_keys.on && record(x, &dead_keys))
      backward_skipping(x, &dead_keys);
    else
      for (int64_t c = 0; c < p->blocks; c += at_once) columns_from(x, c, at_once);
    put_strength(p, u.b * wn_selection_groups(p->a) + u.choice, x);
    for (int64_t block = p->first_block; block < p->blocks; block++)
      for (int64_t h = 0; h < u.heads; h++) wn_backward_write_dq(p, &u, h, block, &sums, 1, 0);
  }
  wn_products_end(p);
}

static void backward_team(void *plan) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  struct wn_backward_scratch all;
  struct wn_backward_rows rows;
  wn_backward_lay(p, &(struct wn_arrays){.base = p->exec->scratch}, &all);
  struct wn_arrays shared = wn_arrays_copy(&all.rows, all.rows_at, 0);
  wn_backward_lay_rows(p, &shared, a->H, a->Hkv, &rows);
  const int64_t at_once = wn_backward_columns_at_once(p, a->H), tiles = a->H * (p->blocks - p->first_block);
  wn_products_begin(p);
  const int64_t me = wn_hand(), team = wn_hands();
  struct wn_arrays l = wn_arrays_copy(&all.worker, all.workers_at, me);
  struct wn_backward_worker w[WN_BACKWARD_COLUMNS];
  struct column x[WN_BACKWARD_COLUMNS];
  wn_backward_lay_workers(p, &l, a->H, a->Hkv, w, &(struct wn_backward_dead_keys){0});
  for (int64_t b = 0; b < a->B; b++) {
    const struct wn_attention_unit u = {
        .b = b, .heads = a->H, .groups = a->Hkv, .select = a->sel.on && !a->sel.bilinear ? a->sel.head : -1};
    for (struct wn_share n = wn_share(tiles); n.at < n.end; n.at++)
      wn_backward_pack_rows(p, &u, n.at % a->H, p->first_block + n.at / a->H, &rows);
    for (struct wn_share g = wn_share(a->Hkv); g.at < g.end; g.at++) wn_backward_first_block(p, &u, &rows, g.at);
    for (int64_t part = me; part < p->chunks; part += team)
      memset((char *)all.sums_at + (size_t)part * all.sums.bytes, 0, all.sums.bytes);
    wn_barrier();
    const float *dM = backward_memory(a, &u);
    for (int64_t part = me; part < p->chunks; part += team) {
      struct wn_arrays at = wn_arrays_copy(&all.sums, all.sums_at, part);
      struct wn_backward_sums sums;
      wn_backward_lay_sums(p, &at, a->H, &sums);
      sums.dp = wn_terms_relative_part(p, part);
      sums.dbias = wn_score_part(p, part);
      sums.dkeys = wn_score_keys_part(p, part, b);
      sums.sinks = wn_sinks_part(p, part);
      if (b == 0) wn_terms_relative_part_clear(p, sums.dp), wn_sinks_part_clear(p, sums.sinks);
      for (int64_t n = part; sums.sinks && n < a->H * (p->blocks - p->first_block); n += p->chunks)
        backward_sinks(p, &u, n % a->H, p->first_block + n / a->H, &rows, &sums);
      for (int n = 0; n < WN_BACKWARD_COLUMNS; n++)
        x[n] = (struct column){.p = p, .u = &u, .rows = &rows, .sums = &sums, .w = &w[n], .dM = dM};
      /* Parts take turns forwards, then backwards, so that each gets long and short columns. */
      for (int64_t turn = 0; turn * p->chunks * at_once < p->blocks; turn++)
        columns_from(x, (turn * p->chunks + (turn % 2 ? p->chunks - 1 - part : part)) * at_once, at_once);
      put_strength(p, part * a->B + b, x);
    }
    wn_barrier();
    struct wn_arrays at = wn_arrays_copy(&all.sums, all.sums_at, 0);
    struct wn_backward_sums sums;
    wn_backward_lay_sums(p, &at, a->H, &sums);
    for (struct wn_share n = wn_share(tiles); n.at < n.end; n.at++)
      wn_backward_write_dq(p, &u, n.at % a->H, p->first_block + n.at / a->H, &sums, p->chunks,
                           (int64_t)(all.sums.bytes / sizeof(float)));
    wn_barrier();
  }
  wn_products_end(p);
}

void wn_attention_backward_run(const struct wn_attention_plan *p) {
  if (p->own)
    wn_parallel_tasks(p->threads, wn_terms_parts(p), backward_part, p);
  else
    wn_parallel(p->threads, backward_team, p);
}
