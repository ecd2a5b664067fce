/* Relative positions (Shaw et al. 2018) on tiles: logits += scale * q . p[i - j], and the gradients of q and p.
 *
 * Distances are constant along a tile's diagonals. For a few rows at a time, R = q P^T is computed for all distances
 * that occur in them. P's rows are packed from the farthest to the nearest, so the part of R for row i is in the order
 * of the row's columns, shifted left by one relative to row i - 1 (the relative shift of Dai et al. 2019, appendix B,
 * tile by tile). Backward shifts the other way: dq += dR P, dp += dR^T q. With 16 rows and 64 columns R has 80 columns:
 * 2.5 D operations per pair and head forward, 7.5 D backward, compared with attention's own 4 D and 10 D. dp is summed
 * in parts, each by one thread in a fixed order; then the parts are added in order. */
#include <string.h>
#include "backends/cpu/attention/slots.h"
#include "backends/cpu/attention/products.h"
#include "backends/cpu/attention/terms.h"

/* Or as many as threads, if that is more: up to 16 threads the sums are bitwise the same. */
enum { PARTS = 16 };

/* Distance of the packed rows' first column. Row groups begin at multiples of WN_SKEW_ROWS, and so do the columns they
 * use. */
static int64_t relative_farthest(const struct wn_attention *a) {
  return (a->Tk - 1) | (WN_SKEW_ROWS - 1);
}

/* Number of columns: down to the distance of a tile's last column from the first row of its group. */
static int64_t columns(const struct wn_attention *a) {
  return relative_farthest(a) + 1 + WN_TILE;
}

/* Floats per dimension: an odd number of cache lines, so that dimensions spread over the cache's sets. */
int64_t wn_terms_relative_stride(const struct wn_attention_plan *p) {
  return (columns(p->a) / 16 | 1) * 16;
}

int64_t wn_terms_parts(const struct wn_attention_plan *p) {
  if (!p->own) return p->chunks;
  const int64_t parts = wn_max_i64(PARTS, p->threads);
  const bool sums = (p->a->relative.P > 0 && p->a->relative.dp) || p->a->sinks.n > 0;
  return sums ? wn_min_i64(parts, p->units) : p->units;
}

void wn_terms_relative_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward,
                           struct wn_terms_scratch *s) {
  const struct wn_attention *a = p->a;
  const bool on = a->relative.P > 0, back = on && backward, sums = back && a->relative.dp;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->distances, "distances", on, WN_DIMS(a->D, wn_terms_relative_stride(p))),
      WN_ARRAY_FOR(s->distance_rows, "rows of distances", back, WN_DIMS(columns(a), p->Dp)),
      WN_ARRAY_FOR(s->distance_sums, "sums of distances", sums, WN_DIMS(wn_terms_parts(p), columns(a), p->Dp)),
  };
  WN_ARRAYS_LAY(l, rows);
}

static void relative_pack(void *plan, int64_t from, int64_t to) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const struct wn_terms_scratch *s = &p->terms;
  for (int64_t at = from; at < to; at += WN_SKEW_ROWS) {
    const int64_t x = relative_farthest(a) - at;
    p->ops->pack_distances(s->distances + at, wn_terms_relative_stride(p), a->relative.p, a->relative.P, x, a->D,
                           (float)a->scale);
    for (int64_t i = 0; s->distance_rows && i < WN_SKEW_ROWS; i++) {
      float *row = s->distance_rows + (at + i) * p->Dp;
      memset(row, 0, (size_t)p->Dp * sizeof *row);
      if (x - i >= 0 && x - i < a->relative.P)
        memcpy(row, (const float *)a->relative.p + (x - i) * a->D, (size_t)a->D * sizeof *row);
    }
  }
}
void wn_terms_relative_pack(const struct wn_attention_plan *p) {
  if (p->a->relative.P > 0) wn_parallel_blocks(p->exec->threads, columns(p->a), WN_SKEW_ROWS, relative_pack, p);
}

/* Rows of a strip that use the same columns. */
struct group {
  int64_t row, rows; /* counted from the strip's first row */
  int64_t first;     /* row's position, counted from the group's base */
  int64_t column;    /* index in the packed distances */
  int64_t next;      /* the row after the group */
};
static struct group group_at(const struct wn_terms_strip *s, int64_t row) {
  const int64_t position = s->r + row + s->a->Tk - s->a->Tq, base = position / WN_SKEW_ROWS * WN_SKEW_ROWS;
  struct group g = {.row = row, .first = position - base};
  g.next = wn_min_i64(row + WN_SKEW_ROWS - g.first, s->rows);
  g.rows = g.next - row;
  g.column = relative_farthest(s->a) - (base + WN_SKEW_ROWS - 1 - s->j0);
  return g;
}

/* For keys in slots, in any order: each row uses its own distances. Distances beyond the table belong to keys that no
 * rule shows. */
static void relative_slots(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                           float *tile) {
  const struct wn_attention *a = p->a;
  _Alignas(64) float R[WN_TILE];
  int32_t x[WN_TILE];
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t columns = wn_min_i64(s->width, a->Tk - a->Tq + s->r + i + 1 - s->j0);
    if (columns <= 0) continue;
    wn_slots_distances(a, s->b, s->h / (a->H / a->Hkv), s->r + i, s->j0, columns, x);
    for (int64_t j = 0; j < columns; j++) x[j] = x[j] < a->relative.P ? x[j] : (int32_t)a->relative.P - 1;
    p->ops->gather_logits(R, q + i * p->Dp, a->relative.p, x, a->D, columns, a->D, (float)a->scale);
    for (int64_t j = 0; j < columns; j++) tile[i * WN_TILE + j] += R[j];
  }
}

void wn_terms_relative_row(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                           float *tile) {
  const struct wn_attention *a = p->a;
  const int64_t at = s->r + a->Tk - a->Tq - s->j0, last = wn_min_i64(at, s->width - 1), x = at - last;
  const int64_t count = wn_min_i64(last + 1, a->relative.P - x); /* number of keys, from the last one backwards */
  _Alignas(64) float R[WN_TILE];
  if (a->slots.at) {
    relative_slots(p, s, q, tile);
    return;
  }
  if (count <= 0) return;
  p->ops->decode_logits(R, q, (const float *)a->relative.p + x * a->D, a->D, count, a->D, (float)a->scale);
  for (int64_t t = 0; t < count; t++) tile[last - t] += R[t];
}

void wn_terms_relative(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q, float *tile) {
  _Alignas(64) float R[WN_SKEW_ROWS * WN_SKEW_WIDTH];
  if (p->a->slots.at) {
    relative_slots(p, s, q, tile);
    return;
  }
  for (struct group g = group_at(s, 0); g.row < s->rows; g = group_at(s, g.next)) {
    wn_skew_logits(p, g.rows, s->width, wn_terms_relative_stride(p), p->terms.distances + g.column, q + g.row * p->Dp,
                   R);
    p->ops->skew_add(tile + g.row * WN_TILE, R, g.rows, s->width, g.first);
  }
}

void wn_terms_relative_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G,
                                const float *q, float *dq, float *dp) {
  _Alignas(64) float dR[WN_SKEW_ROWS * WN_SKEW_WIDTH];
  for (struct group g = group_at(s, 0); g.row < s->rows; g = group_at(s, g.next)) {
    p->ops->skew(dR, G + g.row * WN_TILE, g.rows, s->width, g.first);
    wn_skew_values(p, g.rows, s->width, p->terms.distance_rows + g.column * p->Dp, dR, dq + g.row * p->Dp);
    if (dp) wn_skew_columns(p, g.rows, s->width, q + g.row * p->Dp, dR, dp + g.column * p->Dp);
  }
}

float *wn_terms_relative_part(const struct wn_attention_plan *p, int64_t n) {
  return p->terms.distance_sums ? p->terms.distance_sums + n * columns(p->a) * p->Dp : NULL;
}

void wn_terms_relative_part_clear(const struct wn_attention_plan *p, float *dp) {
  if (dp) memset(dp, 0, (size_t)(columns(p->a) * p->Dp) * sizeof *dp);
}

/* Adds the parts to dp, in order. */
static void relative_add(void *plan, int64_t x) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_terms_parts(p), step = columns(a) * p->Dp;
  float *from = p->terms.distance_sums + (relative_farthest(a) - x) * p->Dp, *to = (float *)a->relative.dp + x * a->D;
  p->ops->unpack(from, p->Dp, from, p->Dp, parts, step, 1, a->D, NULL, (float)a->scale);
  for (int64_t d = 0; d < a->D; d++) to[d] += from[d];
}
void wn_terms_relative_end(const struct wn_attention_plan *p) {
  if (!p->terms.distance_sums) return;
  wn_parallel_for(p->exec->threads, wn_min_i64(p->a->relative.P, p->a->Tk), relative_add, p);
}
