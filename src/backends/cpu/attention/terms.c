/* Terms other than selection. Keep rules (window; strided, Child et al. 2019; square root) are bits for each row of a
 * tile; they cost a few operations per row and tile, not per head. Spans, relative positions and dropout change the
 * tile of one head. Learned sinks come before the keys. Exclusive self attention (Zhai) is applied to finished rows. */
#include "backends/cpu/attention/score.h"
#include <math.h>
#include "backends/cpu/attention/slots.h"

/* The bit of distance x; `at` is the column of the row's own key. */
static uint64_t distance_bit(int64_t at, int64_t x) {
  const int64_t j = at - x;
  return x >= 0 && j >= 0 && j < WN_TILE ? UINT64_C(1) << j : 0;
}

/* The bits of distances low..high. */
static uint64_t distance_bits(int64_t at, int64_t low, int64_t high) {
  const int64_t first = wn_max_i64(at - high, 0), last = wn_min_i64(at - low, WN_TILE - 1);
  if (first > last) return 0;
  return (~UINT64_C(0) >> (63 - last)) & (~UINT64_C(0) << first);
}

uint64_t wn_terms_seen(const struct wn_attention *a, int64_t position, int64_t j0) {
  const int64_t at = position - j0, low = wn_max_i64(at - (WN_TILE - 1), 0), high = at;
  uint64_t seen = ~UINT64_C(0);
  if (high < 0) return 0;
  if (a->window > 0) seen &= distance_bits(at, 0, a->window - 1);
  if (a->span.on && a->span.exclude_self) seen &= ~distance_bit(at, 0);
  if (a->strided > 0 && seen) {
    uint64_t bits = distance_bits(at, 0, a->strided - 1);
    for (int64_t x = wn_div_up(low, a->strided) * a->strided; x <= high; x += a->strided) bits |= distance_bit(at, x);
    seen &= bits;
  }
  if (a->root.on && seen) {
    const int64_t shift = a->root.buffer - 1;
    uint64_t bits = a->root.buffer > 0 ? distance_bits(at, 0, a->root.buffer - 1) : 0;
    const int64_t from = wn_max_i64(low - shift, 0);
    for (int64_t m = square_root_near(from, a->root.density);; m++) {
      const int64_t x = square_root_distance(m, a->root.density) + shift;
      if (x > high) break;
      if (x >= a->root.buffer) bits |= distance_bit(at, x);
    }
    seen &= bits;
  }
  return seen;
}

bool wn_terms_all(const struct wn_attention *a, int64_t near, int64_t far) {
  if (a->window > 0 && far >= a->window) return false;
  if (a->strided > 0 && far >= a->strided) return false;
  if (a->root.on && far >= a->root.buffer) return false;
  return !(a->span.on && a->span.exclude_self && near <= 0);
}

bool wn_terms_single(const struct wn_attention *a, int64_t b, int64_t g, int64_t position) {
  if (a->sinks.n > 0 || (a->span.on && a->span.exclude_self)) return false;
  const int64_t first = a->doc_start ? a->doc_start[b * a->Tk + position] : 0;
  if (a->window == 1 || position == first) return true;
  if (!a->slots.evicted_at) return false;
  const int32_t *evicted_at = a->slots.evicted_at + wn_slot_row(a, b, g);
  for (int64_t j = position - 1; j >= first; j--)
    if (evicted_at[j] > wn_slot_position(a, b, g, position)) return false;
  return true;
}

/* --- eviction --- */

enum wn_terms_evicted wn_terms_evicted(const struct wn_attention *a, int64_t b, int64_t g, int64_t position,
                                       int64_t rows, int64_t j0, uint64_t *left) {
  if (!a->slots.evicted_at) return WN_EVICTED_NONE;
  const int32_t *evicted_at = a->slots.evicted_at + wn_slot_row(a, b, g) + j0;
  const int64_t columns = wn_min_i64(WN_TILE, a->Tk - j0);
  uint64_t from[WN_TILE] = {0}, held = ~UINT64_C(0) >> (WN_TILE - columns);
  int32_t first = INT32_MAX;
  for (int64_t j = 0; j < columns; j++) first = evicted_at[j] < first ? evicted_at[j] : first;
  if (first >= position + rows) return WN_EVICTED_NONE;
  for (int64_t j = 0; j < columns; j++) /* gives the first row that does not see column j */
    if (evicted_at[j] < position + rows) from[wn_max_i64(evicted_at[j] - position, 0)] |= UINT64_C(1) << j;
  for (int64_t i = 0; i < rows; i++) left[i] = held &= ~from[i];
  return left[0] ? WN_EVICTED_SOME : WN_EVICTED_ALL;
}

bool wn_terms_lone(const struct wn_attention *a, int64_t b, int64_t g, int64_t position) {
  if (!a->span.on || !a->span.exclude_self) return wn_terms_single(a, b, g, position);
  if (a->sinks.n > 0) return false;
  return (a->window > 0 && a->window <= 2) || position <= (a->doc_start ? a->doc_start[b * a->Tk + position] : 0) + 1;
}

int64_t wn_terms_first_block(const struct wn_attention_plan *p, int64_t b, int64_t h0, int64_t heads, bool edges) {
  const struct wn_attention *a = p->a;
  int64_t first = a->window > 0 ? wn_max_i64(p->offset - a->window + 1, 0) : 0;
  if (a->sel.on || a->slots.at) return 0;
  if (!a->span.on) return first / WN_TILE;
  int64_t spans = INT64_MAX;
  for (int64_t h = h0; h < h0 + heads; h++)
    spans = wn_min_i64(spans, wn_terms_span_range(a, b, h, 0, a->Tq, edges).first);
  return wn_max_i64(first, spans) / WN_TILE;
}

void wn_terms_unseen(const float *m, float *factor, float *lse, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    if (m[i] != -INFINITY) continue;
    factor[i] = 0;
    if (lse) lse[i] = -INFINITY;
  }
}

/* --- exclusive: what is not in exclusive.c --- */

static double terms_product(const float *x, const float *y, int64_t D) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)y[d];
  return sum;
}

static void exclusive_gate(void *args, int64_t h) {
  const struct wn_attention *a = args;
  double sum = 0;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t r = 0; r < a->Tq; r++) {
      const float *dy = wn_floats_at(a->dy, a->s_y, b, r, h);
      const float *v = wn_floats_at(a->v, a->s_v, b, r + a->Tk - a->Tq, h / (a->H / a->Hkv));
      const double along = (double)((const float *)a->exclusive.dot)[(b * a->H + h) * a->Tq + r];
      sum += along * terms_product(dy, v, a->D) / fmax(terms_product(v, v, a->D), 1e-30);
    }
  float *gate = (float *)a->exclusive.dgate + h;
  *gate = (float)((double)*gate - sum);
}

/* --- dropout --- */

void wn_terms_dropout(const struct wn_attention_plan *p, const struct wn_terms_strip *s, uint64_t *keep) {
  const struct wn_attention *a = p->a;
  const double least = ceil(a->dropout.p * 4294967296.0);
  if (least > 4294967295.0) { /* p rounds to 1 */
    for (int64_t i = 0; i < s->rows; i++) keep[i] = 0;
    return;
  }
  p->ops->dropout(&(struct wn_tile_dropout){
      .seed = a->dropout.seed,
      .stream = a->dropout.stream,
      .first = (uint64_t)(((s->b * a->H + s->h) * a->Tq + s->r) * a->Tk + s->j0),
      .step = (uint64_t)a->Tk,
      .least = (uint32_t)least,
      .rows = s->rows,
      .keep = keep,
  });
}

void wn_terms_drop(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const uint64_t *keep,
                   float *tile) {
  p->ops->drop(tile, keep, s->rows, s->width, (float)(1 / (1 - p->a->dropout.p)));
}

/* --- a call --- */

void wn_terms_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s) {
  const struct wn_attention *a = p->a;
  const bool spans = backward && a->span.on && a->span.dz && !a->span.dynamic;
  const bool strength = backward && a->sel.on && a->sel.dstrength;
  const int64_t sums = p->own ? a->B * wn_selection_groups(a) : p->chunks * a->B;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->span_rows, "rows of spans", spans, WN_DIMS(a->B, a->H, a->Tq)),
      WN_ARRAY_FOR(s->strength, "strength", strength, WN_DIMS(sums)),
  };
  WN_ARRAYS_LAY(l, rows);
  wn_terms_relative_lay(p, l, backward, s);
  wn_sinks_lay(p, l, backward, s);
}

static void strength_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  const int64_t G = wn_selection_groups(a), n = p->own ? a->B * G : p->chunks * a->B; /* a team has one selection */
  for (int64_t g = 0; p->terms.strength && g < G; g++) {
    float *to = (float *)a->sel.dstrength + g;
    double sum = (double)*to;
    for (int64_t i = g; i < n; i += G) sum += p->terms.strength[i];
    *to = (float)sum;
  }
}

void wn_terms_backward_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  wn_terms_span_end(p);
  wn_terms_relative_end(p);
  wn_score_end(p);
  wn_sinks_end(p);
  strength_end(p);
  if (a->exclusive.on && a->exclusive.gate && a->exclusive.dgate)
    wn_parallel_for(p->exec->threads, a->H, exclusive_gate, a);
}
