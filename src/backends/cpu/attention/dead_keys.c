/* Dead-key skipping: the bounds, and forward's list. Cost: a few operations per head for each key and row block; D once
 * for each row and head; copying listed keys and values whenever the list is made anew. */
#include "backends/cpu/attention/dead_keys.h"
#include <string.h>

bool wn_dead_keys_final(const struct wn_attention *a) {
  for (int64_t g = 0; g < wn_selection_groups(a); g++)
    if (!(wn_strength(a, g) >= 0)) return false;
  return true;
}

/* --- bounds --- */

void wn_dead_keys_bound_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t heads, int64_t groups,
                            struct wn_dead_keys_bound *bound) {
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(bound->k, "k", true, WN_DIMS(groups, p->blocks, WN_TILE)),
      WN_ARRAY_FOR(bound->q, "q", true, WN_DIMS(heads, p->blocks)),
      WN_ARRAY_FOR(bound->low, "low", true, WN_DIMS(heads, p->blocks)),
      WN_ARRAY_FOR(bound->wide, "wide", true, WN_DIMS(WN_TILE, p->a->D)),
  };
  WN_ARRAYS_LAY(l, rows);
}

/* `rows` rows, from row j on, of head g's keys or values; *stride: their stride. */
static const float *dead_keys_rows_of(const struct wn_attention_plan *p, const struct wn_attention_unit *u, bool values,
                                      int64_t g, int64_t j, int64_t rows, float *wide, int64_t *stride) {
  const struct wn_attention *a = p->a;
  const void *x = values ? a->v : a->k;
  const struct wn_stride s = values ? a->s_v : a->s_k;
  *stride = s.t;
  if (!a->k_type) return wn_floats_at(x, s, u->b, j, u->g0 + g);
  wn_widen(p, values ? a->v_type : a->k_type, x, s, u->b, j, u->g0 + g, rows, wide);
  *stride = a->D;
  return wide;
}

/* F of key j before the first query. */
static float before(const struct wn_attention *a, const struct wn_attention_unit *u, int64_t j) {
  if (!a->sel.f_in) return 0;
  return ((const float *)a->sel.f_in)[(u->b * wn_selection_groups(a) + u->choice) * wn_selection_stride(a) + j];
}

/* Bounds for one head in one row block, from the block's own rows only. */
static void bound_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const float *lse,
                       const struct wn_attention_rows *r, int64_t h, float *wide, float *most, float *least) {
  const struct wn_attention *a = p->a;
  const float *q = wn_floats_at(a->q, a->s_q, u->b, r->r0, u->h0 + h);
  float norm[WN_TILE], own[WN_TILE];
  int64_t stride;
  *most = 0, *least = INFINITY;
  p->ops->row_dot(norm, q, a->s_q.t, q, a->s_q.t, r->rows, a->D);
  if (!lse) {
    const float *k = dead_keys_rows_of(p, u, false, h / p->group, r->p0, r->rows, wide, &stride);
    p->ops->row_dot(own, q, a->s_q.t, k, stride, r->rows, a->D);
  }
  bool known = true;
  for (int64_t i = 0; i < r->rows; i++) {
    const float n = (float)a->scale * sqrtf(norm[i]);
    const float low =
        lse ? lse[(u->b * a->H + u->h0 + h) * a->Tq + r->r0 + i] : (float)a->scale * own[i] - before(a, u, r->p0 + i);
    known = known && isfinite(n) && isfinite(low);
    if (n > *most) *most = n;
    if (low < *least) *least = low;
  }
  if (!known) *most = INFINITY, *least = -INFINITY;
}

void wn_dead_keys_bound_fill(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const float *lse,
                             int64_t first, const struct wn_dead_keys_bound *bound) {
  const struct wn_attention *a = p->a;
  int64_t stride;
  for (int64_t g = 0; g < u->groups; g++)
    for (int64_t j = 0; j < a->Tk; j += WN_TILE) {
      const int64_t rows = wn_min_i64(WN_TILE, a->Tk - j);
      const float *k = dead_keys_rows_of(p, u, false, g, j, rows, bound->wide, &stride);
      float *to = bound->k + g * p->blocks * WN_TILE + j;
      p->ops->row_dot(to, k, stride, k, stride, rows, a->D);
      for (int64_t i = 0; i < rows; i++) to[i] = sqrtf(to[i]);
    }
  for (int64_t h = 0; h < u->heads; h++) {
    float *q = bound->q + h * p->blocks, *low = bound->low + h * p->blocks, most = 0, least = INFINITY;
    for (int64_t block = p->blocks - 1; block >= first; block--) {
      struct wn_attention_rows r;
      float here, lowest;
      wn_attention_rows_init(p, u->b, block, &r);
      bound_rows(p, u, lse, &r, h, bound->wide, &here, &lowest);
      q[block] = most = fmaxf(most, here);
      low[block] = least = fminf(least, lowest);
    }
  }
}

bool wn_dead_keys_keep(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                       const struct wn_dead_keys_bound *bound, const struct wn_attention_rows *r, int64_t j, float F) {
  const struct wn_attention *a = p->a;
  if (a->doc_start && j < r->doc_min) return false;
  if (a->slots.evicted_at && !a->sel.mem && a->slots.evicted_at[wn_slot_row(a, u->b, 0) + j] <= r->p0) return false;
  if (a->sel.mem && F < (float)a->sel.mem_tau) return true;
  const float limit = p->dead_keys.limit;
  for (int64_t h = 0; h < u->heads; h++) {
    const float most = bound->q[h * p->blocks + r->block] * bound->k[h / p->group * p->blocks * WN_TILE + j];
    if (!(most - bound->low[h * p->blocks + r->block] - F < limit)) return true;
  }
  return false;
}

void wn_dead_keys_gather(const struct wn_attention_plan *p, const struct wn_attention_unit *u, bool values, int64_t g,
                         const int32_t *at, int64_t count, float *to) {
  const int64_t D = p->a->D;
  int64_t stride;
  for (int64_t n = 0; n < count; n++) {
    const float *row = dead_keys_rows_of(p, u, values, g, at[n], 1, to + n * D, &stride);
    if (row != to + n * D) memcpy(to + n * D, row, (size_t)D * sizeof *to);
  }
}

void wn_dead_keys_strip(const struct wn_attention_plan *p, const struct wn_attention_rows *r, const int32_t *at,
                        int64_t count, struct wn_attention_strip *s) {
  const struct wn_attention *a = p->a;
  const int32_t *evicted_at = a->slots.evicted_at ? a->slots.evicted_at + wn_slot_row(a, r->b, 0) : NULL;
  s->row = 0, s->rows = r->rows, s->width = wn_div_up(count, 16) * 16;
  s->seen = s->allow = s->past = NULL;
  s->empty = s->skip = false;
  int64_t first = INT64_MAX, leaves = INT64_MAX;
  for (int64_t j = 0; j < count; j++) {
    first = wn_min_i64(first, at[j]);
    if (evicted_at) leaves = wn_min_i64(leaves, evicted_at[at[j]]);
  }
  const bool documents = r->doc_max > first, leaving = leaves < r->p0 + r->rows;
  const bool protects = a->sel.protect_first && r->doc_max >= first;
  if (!documents && !leaving && !protects) return;
  const uint64_t all = ~UINT64_C(0) >> (WN_TILE - count);
  uint64_t shown = 0, some = 0;
  for (int64_t i = 0; i < r->rows; i++) {
    const int64_t position = r->p0 + i, start = a->doc_start ? a->doc_start[r->b * a->Tk + position] : 0;
    uint64_t own = all, left = all, starts = 0;
    for (int64_t j = 0; documents && j < count; j++)
      if (at[j] < start) own &= ~(UINT64_C(1) << j);
    for (int64_t j = 0; leaving && j < count; j++)
      if (evicted_at[at[j]] <= position) left &= ~(UINT64_C(1) << j);
    for (int64_t j = 0; protects && j < count; j++)
      if (at[j] == start) starts |= UINT64_C(1) << j;
    s->masks[0][i] = own & left;
    s->masks[1][i] = own & ~starts;
    s->masks[2][i] = own;
    shown |= own & left, some |= own;
  }
  s->empty = some == 0, s->skip = shown == 0;
  if (documents || leaving) s->seen = s->masks[0];
  if (documents || protects) s->allow = s->masks[1];
  if (documents) s->past = s->masks[2];
}

/* --- forward's list --- */

void wn_dead_keys_list_lay(const struct wn_attention_plan *p, struct wn_arrays *l, int64_t groups,
                           struct wn_dead_keys_list *list) {
  const int64_t D = p->a->D;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(list->at, "at", true, WN_DIMS(p->blocks, WN_TILE)),
      WN_ARRAY_FOR(list->carry, "carry", true, WN_DIMS(p->blocks, WN_TILE)),
      WN_ARRAY_FOR(list->keep, "keep", true, WN_DIMS(p->blocks, WN_TILE)),
      WN_ARRAY_FOR(list->kt, "kt", true, WN_DIMS(groups, p->blocks, D, WN_TILE)),
      WN_ARRAY_FOR(list->v, "v", true, WN_DIMS(groups, p->blocks, WN_TILE, p->Dp)),
      WN_ARRAY_FOR(list->skt, "skt", p->a->sel.bilinear, WN_DIMS(p->blocks, D, WN_TILE)),
  };
  WN_ARRAYS_LAY(l, rows);
}

void wn_dead_keys_list_begin(struct wn_dead_keys_list *list) {
  list->bounded = false;
  list->n = list->begin = 0;
}

/* Packs the list's tiles from `tile` on. */
static void dead_keys_pack(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                           const struct wn_dead_keys_bound *bound, struct wn_dead_keys_list *list, int64_t tile) {
  const struct wn_attention *a = p->a;
  const int64_t D = a->D;
  float *rows = bound->wide;
  for (; tile * WN_TILE < list->n; tile++) {
    const int32_t *at = list->at + tile * WN_TILE;
    const int64_t count = wn_min_i64(WN_TILE, list->n - tile * WN_TILE);
    for (int64_t g = 0; g < u->groups; g++) {
      wn_dead_keys_gather(p, u, false, g, at, count, rows);
      p->ops->pack_transposed(list->kt + (tile * u->groups + g) * D * WN_TILE, rows, D, count, D, (float)a->scale);
      wn_dead_keys_gather(p, u, true, g, at, count, rows);
      p->ops->pack(list->v + (tile * u->groups + g) * WN_TILE * p->Dp, WN_TILE, p->Dp, rows, D, count, D, 1.0f);
    }
    if (!list->skt) continue;
    for (int64_t n = 0; n < count; n++)
      memcpy(rows + n * D, wn_floats_at(a->sel.sk, a->sel.s_sk, u->b, at[n], u->choice), (size_t)D * sizeof *rows);
    p->ops->pack_transposed(list->skt + tile * D * WN_TILE, rows, D, count, D, (float)a->scale);
  }
}

/* Computes the bounds once F is large enough: for rows whose logits are all equal, it would kill a tile of keys, or a
 * sixteenth of all keys. */
static bool bounds(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                   const struct wn_dead_keys_bound *bound, const struct wn_attention_rows *r, const float *carry,
                   struct wn_dead_keys_list *list) {
  const int64_t least = wn_max_i64(WN_TILE, p->a->Tk / 16);
  int64_t large = 0;
  if (list->bounded) return true;
  for (int64_t j = 0; j < r->block * WN_TILE; j++) large += carry[j] > -p->dead_keys.limit;
  if (large < least) return false;
  wn_dead_keys_bound_fill(p, u, NULL, r->block, bound);
  return list->bounded = true;
}

void wn_dead_keys_list_update(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                              const struct wn_dead_keys_bound *bound, const struct wn_attention_rows *r,
                              const float *carry, struct wn_dead_keys_list *list) {
  const int64_t near = (r->block - list->begin) * WN_TILE, first = list->begin * WN_TILE;
  if (!bounds(p, u, bound, r, carry, list)) return;
  int64_t n = 0, changed = list->n;
  uint8_t *keep = list->keep; /* the listed keys, then those after the list */
  for (int64_t i = 0; i < list->n + near; i++) {
    keep[i] = i < list->n ? wn_dead_keys_keep(p, u, bound, r, list->at[i], list->carry[i])
                          : wn_dead_keys_keep(p, u, bound, r, first + i - list->n, carry[first + i - list->n]);
    n += keep[i];
    if (!keep[i]) changed = wn_min_i64(changed, i);
  }
  if (!wn_dead_keys_pays(p, r->block, wn_dead_keys_width(list->n) + near - wn_dead_keys_width(n),
                         wn_div_up(n, WN_TILE) - changed / WN_TILE))
    return;
  n = 0;
  for (int64_t i = 0; i < list->n; i++)
    if (keep[i]) list->at[n] = list->at[i], list->carry[n++] = list->carry[i];
  for (int64_t i = 0; i < near; i++)
    if (keep[list->n + i]) list->at[n] = (int32_t)(first + i), list->carry[n++] = carry[first + i];
  list->n = n, list->begin = r->block;
  for (; n % WN_TILE != 0; n++) list->carry[n] = INFINITY;
  dead_keys_pack(p, u, bound, list, changed / WN_TILE);
}
