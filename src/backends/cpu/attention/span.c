/* Adaptive and dynamic spans (Sukhbaatar et al. 2019) on tiles: a head's exponentials are multiplied by m(x) =
 * clamp((ramp + limit z - x) / ramp, 0, 1).
 *
 * For each head a row block knows the first column that some row sees, and the column from which on all rows see with m
 * = 1. Tiles before the first cost the head nothing, tiles after the second cost no more than without spans; only tiles
 * of the ramp in between use m. Which keys are seen is computed in double, as in the reference. m is counted up from
 * the farthest key seen, so that small values keep their precision. Backward adds the key at the ramp's end (edges). */
#include <math.h>
#include "backends/cpu/attention/slots.h"
#include "backends/cpu/attention/terms.h"

static double ratio(const struct wn_attention *a, int64_t b, int64_t h, int64_t r) {
  return (double)(a->span.dynamic ? *wn_floats_at(a->span.z, a->span.s_z, b, r, h)
                                  : *wn_floats_at(a->span.z, a->span.s_z, 0, 0, h));
}

/* Distances below it are seen; none, if the ratio is far below 0 or NaN. */
static double reach(const struct wn_attention *a, int64_t b, int64_t h, int64_t r) {
  return fmin(fmax(a->span.ramp + a->span.limit * ratio(a, b, h, r), 0), 1e12);
}

/* The largest distance seen. */
static int64_t span_farthest(double reach) {
  return (int64_t)ceil(reach) - 1;
}

struct wn_span_range wn_terms_span_range(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t rows,
                                         bool edges) {
  struct wn_span_range range = {INT64_MAX, 0};
  if (a->slots.at) return (struct wn_span_range){0, INT64_MAX}; /* keys are in any order */
  for (int64_t i = 0; i < rows; i++) {
    const int64_t position = r + i + a->Tk - a->Tq;
    const double c = reach(a, b, h, r + i);
    range.first = wn_min_i64(range.first, wn_max_i64(position - (edges ? (int64_t)c : span_farthest(c)), 0));
    range.full = wn_max_i64(range.full, position - (int64_t)floor(c - a->span.ramp) + edges);
    if (!a->span.dynamic && i == 0) i = wn_max_i64(rows - 2, 0); /* the others are in between */
  }
  return range;
}

int64_t wn_terms_span_reach(const struct wn_attention *a, int64_t b, int64_t h0, int64_t heads, int64_t r) {
  double widest = 0;
  for (int64_t h = h0; h < h0 + heads; h++) widest = fmax(widest, reach(a, b, h, r));
  return (int64_t)fmin(widest, (double)a->Tk) + 1; /* one more, so that rounding cannot make it one less */
}

const uint64_t *wn_terms_span(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own,
                              struct wn_tile_span *span) {
  const struct wn_attention *a = s->a;
  span->ramp = (float)a->span.ramp;
  for (int64_t i = 0; i < s->rows; i++) {
    const double c = reach(a, s->b, s->h, s->r + i);
    const int64_t first = s->r + i + a->Tk - a->Tq - s->j0 - span_farthest(c); /* a column of the tile */
    span->first[i] = (float)wn_max_i64(-first, -2 * WN_TILE);
    span->rest[i] = (float)(c - (double)span_farthest(c));
    const uint64_t reached = first <= 0 ? ~UINT64_C(0) : first < WN_TILE ? ~UINT64_C(0) << first : 0;
    own[i] = seen ? seen[i] & reached : reached;
  }
  return own;
}

static double mask(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t x) {
  return (a->span.ramp + a->span.limit * ratio(a, b, h, r) - (double)x) / a->span.ramp;
}

/* --- spans as part of the logits: for a threshold's choice, for decoding, for keys in any order --- */

const uint64_t *wn_terms_span_log(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own, float *tile) {
  const struct wn_attention *a = s->a;
  int32_t x[WN_TILE];
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t at = s->r + i + a->Tk - a->Tq - s->j0, columns = wn_min_i64(s->width, at + 1);
    if (a->slots.at) wn_slots_distances(a, s->b, s->h / (a->H / a->Hkv), s->r + i, s->j0, columns, x);
    own[i] = seen ? seen[i] : ~UINT64_C(0);
    for (int64_t j = 0; j < columns; j++) {
      const double m = mask(a, s->b, s->h, s->r + i, a->slots.at ? x[j] : at - j);
      if (m <= 0)
        own[i] &= ~(UINT64_C(1) << j);
      else if (m < 1)
        tile[i * WN_TILE + j] += (float)log(m);
      else if (!a->slots.at)
        break; /* nearer keys have m = 1 as well */
    }
  }
  return own;
}

void wn_terms_span_log_gradient(const struct wn_terms_strip *s, const float *G, float *dz) {
  const struct wn_attention *a = s->a;
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t at = s->r + i + a->Tk - a->Tq - s->j0;
    double sum = 0;
    for (int64_t j = 0; j < s->width && at - j >= 0; j++) {
      const double m = mask(a, s->b, s->h, s->r + i, at - j);
      if (m >= 1) break;
      if (m > 0) sum += (double)G[i * WN_TILE + j] / m;
    }
    dz[i] += (float)sum;
  }
}

/* --- the gradient of z --- */

void wn_terms_span_edges(const struct wn_terms_strip *s, const uint64_t *seen, int8_t *edge) {
  const struct wn_attention *a = s->a;
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t at = s->r + i + a->Tk - a->Tq - s->j0, x = wn_span_edge(a, ratio(a, s->b, s->h, s->r + i)),
                  j = at - x;
    edge[i] = (int8_t)(x >= 0 && j >= 0 && j < s->width && (!seen || seen[i] >> j & 1) ? j : -1);
  }
}

void wn_terms_span_edge_gradient(const struct wn_terms_strip *s, const int8_t *edge, const struct wn_tile_gradient *t,
                                 float *dz, float *steep) {
  const struct wn_attention *a = s->a;
  for (int64_t i = 0; i < s->rows; i++) {
    if (edge[i] < 0 || t->lse[i] == -INFINITY) continue;
    if (a->threshold.on && !(t->seen[i] >> edge[i] & 1) &&
        !wn_keeps_weightless(a, s->b, s->h / (a->H / a->Hkv), s->j0 + edge[i]))
      continue;
    const int64_t at = i * WN_TILE + edge[i];
    const double exponent = (double)t->a[at] - (double)(t->F ? t->F[at] : 0) - (double)t->lse[i];
    const double ratio = exp(fmin(exponent, WN_SPAN_EXPONENT)); /* W/m */
    dz[i] += (float)(ratio * ((double)t->g[at] - (double)t->delta[i]));
    if (steep) steep[i] += (float)ratio;
  }
}

float wn_terms_span_factor(const struct wn_attention *a) {
  return (float)(a->span.limit / a->span.ramp);
}

void wn_terms_span_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  if (!p->terms.span_rows) return;
  for (int64_t h = 0; h < a->H; h++) {
    double sum = 0;
    for (int64_t b = 0; b < a->B; b++)
      for (int64_t r = 0; r < a->Tq; r++) sum += (double)p->terms.span_rows[(b * a->H + h) * a->Tq + r];
    float *dz = wn_floats_out(a->span.dz, a->span.s_z, 0, 0, h);
    *dz = (float)((double)*dz + sum * a->span.limit / a->span.ramp);
  }
}
