/* Dead-key skipping in backward. A first pass, from the first row block to the last, computes the selecting head's
 * logits and records which keys are not dead in each row block. Backward, from last to first, holds these keys in
 * slots, with their values and gradients. Cost: the selecting head's product once more, and 5 D operations for each key
 * loaded or stored. */
#include <string.h>
#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/products.h"

static int64_t history_size(const struct wn_attention_plan *p) {
  return p->blocks * (p->blocks - 1) / 2 * WN_TILE;
}

void wn_dead_keys_backward_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                               struct wn_dead_keys_history *history, struct wn_dead_keys_slots *slots) {
  const int64_t tall = p->blocks * WN_TILE;
  const bool own = p->a->sel.bilinear;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(history->from, "history's beginnings", true, WN_DIMS(p->blocks + 1)),
      WN_ARRAY_FOR(history->at, "history", true, WN_DIMS(history_size(p))),
      WN_ARRAY_FOR(history->carry, "carries of the history", true, WN_DIMS(history_size(p))),
      WN_ARRAY_FOR(slots->at, "at", true, WN_DIMS(tall)),
      WN_ARRAY_FOR(slots->slot, "slot", true, WN_DIMS(tall)),
      WN_ARRAY_FOR(slots->carry, "carry", true, WN_DIMS(tall)),
      WN_ARRAY_FOR(slots->dcarry, "dcarry", true, WN_DIMS(tall)),
      WN_ARRAY_FOR(slots->k, "k", true, WN_DIMS(groups, tall, p->Dp)),
      WN_ARRAY_FOR(slots->dk, "dk", true, WN_DIMS(groups, tall, p->Dp)),
      WN_ARRAY_FOR(slots->dv, "dv", true, WN_DIMS(groups, tall, p->Dp)),
      WN_ARRAY_FOR(slots->kt, "kt", true, WN_DIMS(groups, tall, p->a->D)),
      WN_ARRAY_FOR(slots->vt, "vt", true, WN_DIMS(groups, tall, p->a->D)),
      WN_ARRAY_FOR(slots->sk, "sk", own, WN_DIMS(tall, p->Dp)),
      WN_ARRAY_FOR(slots->dsk, "dsk", own, WN_DIMS(tall, p->Dp)),
      WN_ARRAY_FOR(slots->skt, "skt", own, WN_DIMS(tall, p->a->D)),
  };
  WN_ARRAYS_LAY(l, rows);
}

/* --- the first pass --- */

/* Row `j` of the selecting head's keys, or of the bilinear form's. */
static const float *selected(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t j) {
  const struct wn_attention *a = p->a;
  if (a->sel.bilinear) return wn_floats_at(a->sel.sk, a->sel.s_sk, u->b, j, u->choice);
  return wn_floats_at(a->k, a->s_k, u->b, j, u->g0 + u->select / p->group);
}

/* Packs tiles of kt from `tile` on with the selecting keys at[0..n-1]. rows: [64][D] of scratch. */
static void dead_keys_back_pack(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const int32_t *at,
                                int64_t n, int64_t tile, float *rows, float *kt) {
  const int64_t D = p->a->D;
  for (; tile * WN_TILE < n; tile++) {
    const int64_t count = wn_min_i64(WN_TILE, n - tile * WN_TILE);
    for (int64_t i = 0; i < count; i++)
      memcpy(rows + i * D, selected(p, u, at[tile * WN_TILE + i]), (size_t)D * sizeof *rows);
    p->ops->pack_transposed(kt + tile * D * WN_TILE, rows, D, count, D, (float)p->a->scale);
  }
}

/* Advances carry[64] by the rows of the strip. */
static void select_strip(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                         const struct wn_attention_strip *s, const float *kt, const float *q, bool listed, float *base,
                         float *carry) {
  wn_tile_logits(p, s->rows, listed ? WN_TILE : s->width, kt, q + s->row * p->Dp, base);
  p->ops->select(&(struct wn_tile_select){.base = base,
                                          .allow = s->allow,
                                          .carry = carry,
                                          .rows = s->rows,
                                          .relu = true,
                                          .shift = p->a->sel.shift,
                                          .strength = wn_strength(p->a, u->choice)});
}

bool wn_dead_keys_record(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                         const struct wn_dead_keys_bound *bound, const float *q, int64_t step, float *base,
                         const struct wn_dead_keys_history *history, struct wn_dead_keys_slots *slots) {
  const struct wn_attention *a = p->a;
  int32_t *at = slots->at; /* the slots' arrays are still free */
  float *carry = slots->carry, *kt = slots->kt, newest[WN_TILE] = {0}, *home = slots->vt;
  int64_t n = 0, used = 0;
  bool bounded = false;
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  for (int64_t block = 0; block < p->blocks; block++) {
    struct wn_attention_rows r;
    wn_attention_rows_init(p, u->b, block, &r);
    int64_t packed = n;
    for (int64_t i = 0; block > 0 && i < WN_TILE; i++)
      at[n] = (int32_t)((block - 1) * WN_TILE + i), carry[n++] = newest[i];
    if (!bounded) { /* as in forward: until F has grown, no bounds are needed */
      int64_t large = 0;
      for (int64_t i = 0; i < n; i++) large += carry[i] > -p->dead_keys.limit;
      if (large >= WN_TILE / 2) bounded = true, wn_dead_keys_bound_fill(p, u, a->lse, block, bound);
    }
    /* Keys that are not dead are recorded. Dead ones are removed from the list when that is worthwhile. */
    const int64_t from = history->from[block] = used;
    int64_t changed = n;
    for (int64_t i = 0; i < n; i++) {
      if (bounded && !wn_dead_keys_keep(p, u, bound, &r, at[i], carry[i])) {
        changed = wn_min_i64(changed, i);
        continue;
      }
      history->at[used] = at[i], history->carry[used++] = carry[i];
    }
    const int64_t left = used - from;
    if (block == p->blocks / 2 && (block * WN_TILE - left) * 3 < block * WN_TILE) return false;
    if (block + 1 == p->blocks) break;
    if (wn_dead_keys_pays(p, block, wn_dead_keys_width(n) - wn_dead_keys_width(left),
                          wn_div_up(left, WN_TILE) - changed / WN_TILE)) {
      memcpy(at, history->at + from, (size_t)left * sizeof *at);
      memcpy(carry, history->carry + from, (size_t)left * sizeof *carry);
      n = left, packed = wn_min_i64(packed, changed);
    }
    for (int64_t i = n; i % WN_TILE != 0; i++) carry[i] = INFINITY;
    dead_keys_back_pack(p, u, at, n, packed / WN_TILE, bound->wide, kt);
    for (int64_t t = 0; t * WN_TILE < n; t++) {
      wn_dead_keys_strip(p, &r, at + t * WN_TILE, wn_min_i64(WN_TILE, n - t * WN_TILE), &strips[0]);
      if (!strips[0].empty)
        select_strip(p, u, &strips[0], kt + t * a->D * WN_TILE, q + block * step, true, base, carry + t * WN_TILE);
    }
    int32_t own[WN_TILE];
    for (int i = 0; i < WN_TILE; i++) {
      own[i] = (int32_t)(block * WN_TILE + i), newest[i] = 0;
      if (a->sel.f_in)
        newest[i] =
            ((const float *)a->sel.f_in)[(u->b * wn_selection_groups(a) + u->choice) * wn_selection_stride(a) + own[i]];
    }
    dead_keys_back_pack(p, u, own, WN_TILE, 0, bound->wide, home);
    const int count = wn_attention_strips(p, &r, block, strips);
    for (int i = 0; i < count; i++) select_strip(p, u, &strips[i], home, q + block * step, false, base, newest);
  }
  history->from[p->blocks] = used;
  memset(slots->fresh, 0, sizeof slots->fresh);
  slots->n = slots->tiles = 0;
  for (int64_t j = 0; j < p->blocks * WN_TILE; j++) slots->slot[j] = -1;
  return true;
}

/* --- slots --- */

/* Where slot s's row is in group g's tiles; below, where its column is. */
static int64_t row_at(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t g, int64_t s) {
  return ((s / WN_TILE * u->groups + g) * WN_TILE + s % WN_TILE) * p->Dp;
}
static int64_t column_at(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t g, int64_t s) {
  return (s / WN_TILE * u->groups + g) * WN_TILE * p->a->D + s % WN_TILE;
}
static int64_t select_row(const struct wn_attention_plan *p, int64_t s) {
  return s * p->Dp;
}
static int64_t select_column(const struct wn_attention_plan *p, int64_t s) {
  return s / WN_TILE * WN_TILE * p->a->D + s % WN_TILE;
}

static void put_row(const struct wn_attention_plan *p, float *to, const float *from) {
  memcpy(to, from, (size_t)p->a->D * sizeof *to);
  memset(to + p->a->D, 0, (size_t)(p->Dp - p->a->D) * sizeof *to);
}
static void put_column(const struct wn_attention_plan *p, float *to, const float *from, float factor) {
  for (int64_t d = 0; d < p->a->D; d++) to[d * WN_TILE] = factor * from[d];
}

/* Clears a new tile: products run over whole tiles, so unused slots must hold finite numbers. */
static void open_tile(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                      struct wn_dead_keys_slots *x) {
  const size_t rows = (size_t)(u->groups * WN_TILE * p->Dp), columns = (size_t)(u->groups * WN_TILE * p->a->D);
  const size_t row = rows * (size_t)x->tiles, column = columns * (size_t)x->tiles, g = (size_t)u->groups;
  memset(x->k + row, 0, rows * sizeof(float));
  memset(x->dk + row, 0, rows * sizeof(float));
  memset(x->dv + row, 0, rows * sizeof(float));
  memset(x->kt + column, 0, columns * sizeof(float));
  memset(x->vt + column, 0, columns * sizeof(float));
  if (x->sk) {
    memset(x->sk + row / g, 0, rows / g * sizeof(float));
    memset(x->dsk + row / g, 0, rows / g * sizeof(float));
    memset(x->skt + column / g, 0, columns / g * sizeof(float));
  }
  x->tiles++;
}

static void load(const struct wn_attention_plan *p, const struct wn_attention_unit *u, struct wn_dead_keys_slots *x,
                 int64_t s, int64_t j) {
  const struct wn_attention *a = p->a;
  const size_t bytes = (size_t)p->Dp * sizeof(float);
  if (s / WN_TILE >= x->tiles) open_tile(p, u, x);
  x->at[s] = (int32_t)j, x->slot[j] = (int32_t)s, x->dcarry[s] = 0;
  x->fresh[s / WN_TILE] |= UINT64_C(1) << s % WN_TILE;
  for (int64_t g = 0; g < u->groups; g++) {
    const float *k = wn_floats_at(a->k, a->s_k, u->b, j, u->g0 + g);
    const int64_t row = row_at(p, u, g, s);
    put_row(p, x->k + row, k);
    memset(x->dk + row, 0, bytes), memset(x->dv + row, 0, bytes);
  }
  if (!x->sk) return;
  put_row(p, x->sk + select_row(p, s), selected(p, u, j));
  memset(x->dsk + select_row(p, s), 0, bytes);
}

static void move(const struct wn_attention_plan *p, const struct wn_attention_unit *u, struct wn_dead_keys_slots *x,
                 int64_t from, int64_t to) {
  const size_t bytes = (size_t)p->Dp * sizeof(float);
  x->at[to] = x->at[from], x->slot[x->at[to]] = (int32_t)to, x->dcarry[to] = x->dcarry[from];
  x->fresh[to / WN_TILE] |= UINT64_C(1) << to % WN_TILE;
  for (int64_t g = 0; g < u->groups; g++) {
    float *rows[] = {x->k, x->dk, x->dv};
    for (int i = 0; i < 3; i++) memcpy(rows[i] + row_at(p, u, g, to), rows[i] + row_at(p, u, g, from), bytes);
  }
  if (!x->sk) return;
  memcpy(x->sk + select_row(p, to), x->sk + select_row(p, from), bytes);
  memcpy(x->dsk + select_row(p, to), x->dsk + select_row(p, from), bytes);
}

/* Packs the columns of the new slots in tile t: a few one by one, many by packing the whole tile. */
static void put_columns(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                        struct wn_dead_keys_slots *x, int64_t t, float *rows) {
  enum { FEW = 6 };
  const struct wn_attention *a = p->a;
  const int64_t D = a->D, count = wn_min_i64(WN_TILE, x->n - t * WN_TILE), first = t * WN_TILE;
  const bool few = __builtin_popcountll(x->fresh[t]) <= FEW;
  const float scale = (float)a->scale;
  for (int64_t g = 0; g < u->groups; g++) {
    float *kt = x->kt + column_at(p, u, g, first), *vt = x->vt + column_at(p, u, g, first);
    const float *k = x->k + row_at(p, u, g, first);
    for (uint64_t bits = few ? x->fresh[t] : 0; bits; bits &= bits - 1) {
      const int64_t i = __builtin_ctzll(bits);
      put_column(p, kt + i, k + i * p->Dp, scale);
      put_column(p, vt + i, wn_floats_at(a->v, a->s_v, u->b, x->at[first + i], u->g0 + g), 1.0f);
    }
    if (few) continue;
    p->ops->pack_transposed(kt, k, p->Dp, count, D, scale);
    wn_dead_keys_gather(p, u, true, g, x->at + first, count, rows);
    p->ops->pack_transposed(vt, rows, D, count, D, 1.0f);
  }
  if (x->sk)
    p->ops->pack_transposed(x->skt + select_column(p, first), x->sk + select_row(p, first), p->Dp, count, D, scale);
  x->fresh[t] = 0;
}

/* Empties slot s: adds its gradients to the key's column block, in which it is number `j`. */
static void empty(const struct wn_attention_plan *p, const struct wn_attention_unit *u, struct wn_dead_keys_slots *x,
                  int64_t s, int64_t j, const struct wn_dead_keys_home *home) {
  const int64_t Dp = p->Dp;
  home->dcarry[j] = x->dcarry[s];
  for (int64_t g = 0; g < u->groups; g++)
    for (int64_t d = 0; d < Dp; d++) {
      home->dk[(g * WN_TILE + j) * Dp + d] += x->dk[row_at(p, u, g, s) + d];
      home->dv[(g * WN_TILE + j) * Dp + d] += x->dv[row_at(p, u, g, s) + d];
    }
  for (int64_t d = 0; x->sk && d < Dp; d++) home->dsk[j * Dp + d] += x->dsk[select_row(p, s) + d];
  x->slot[x->at[s]] = -1;
}

void wn_dead_keys_enter(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                        const struct wn_dead_keys_history *history, int64_t block, const struct wn_dead_keys_home *home,
                        float *rows, struct wn_dead_keys_slots *slots) {
  const int64_t from = history->from[block], count = history->from[block + 1] - from;
  int64_t holes[WN_TILE], n = 0;
  for (int64_t s = 0; s < slots->n; s++) {
    const int64_t j = slots->at[s] - block * WN_TILE;
    if (j < 0) continue;
    empty(p, u, slots, s, j, home);
    holes[n++] = s;
  }
  for (int64_t i = 0; i < count; i++) {
    const int64_t j = history->at[from + i];
    if (slots->slot[j] < 0) load(p, u, slots, n > 0 ? holes[--n] : slots->n++, j);
    slots->carry[slots->slot[j]] = history->carry[from + i];
  }
  while (n > 0) { /* the highest hole first, so that the last slot is always in use */
    const int64_t hole = holes[--n], last = --slots->n;
    if (hole == last) continue;
    slots->carry[hole] = slots->carry[last];
    move(p, u, slots, last, hole);
  }
  for (int64_t t = 0; t * WN_TILE < slots->n; t++)
    if (slots->fresh[t]) put_columns(p, u, slots, t, rows);
  for (int64_t s = slots->n; s % WN_TILE != 0; s++) slots->carry[s] = INFINITY, slots->dcarry[s] = 0;
}
