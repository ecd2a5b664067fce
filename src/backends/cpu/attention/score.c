/* Score maps on tiles. The biases of each head are laid out by distance: entry u of [H][width] is for distance `first -
 * u`. Key j of the row at position i then needs entry first - i + j, so a row of a strip reads up to 64 consecutive
 * entries. Gradients are summed by distance in the same way; at the end the maps reduce them to their parameters. A
 * single row, and keys in slots, ask the maps key by key. */
#include "backends/cpu/attention/open_select.h"
#include "backends/cpu/attention/score.h"
#include "backends/cpu/attention/slots.h"

#include <string.h>

static int64_t first_of(const struct wn_attention *a) {
  return wn_score_distances(a).last;
}

/* A tile may extend beyond the last key. */
static int64_t width_of(const struct wn_attention *a) {
  return (first_of(a) + a->Tk + WN_TILE + 15) / 16 * 16;
}

static int64_t parts_of(const struct wn_attention_plan *p) {
  if (p->a->open && p->a->sel.on) return p->a->B * wn_open_parts(p);
  return p->own || p->a->open ? p->a->B : p->chunks;
}

static bool has_biases(const struct wn_attention *a) {
  return a->maps > 0 && a->map[0].kind->values;
}

int64_t wn_score_floats(const struct wn_attention_plan *p, bool backward) {
  if (!has_biases(p->a) || (p->a->Tq == 1 && !backward)) return 0;
  const int64_t all = p->a->H * width_of(p->a);
  return all + (backward && wn_score_learns(p->a) ? all * parts_of(p) + 2 * width_of(p->a) : 0);
}

void wn_score_begin(struct wn_attention_plan *p, float *at, bool backward) {
  const struct wn_attention *a = p->a;
  p->bias = p->dbias = NULL;
  if (wn_score_floats(p, backward) == 0 || a->slots.at) return;
  const int64_t width = width_of(a), all = a->H * width;
  for (int64_t h = 0; h < a->H; h++)
    for (int64_t u = 0; u < width; u += WN_TILE) {
      double sums[WN_TILE] = {0};
      const int64_t n = wn_min_i64(WN_TILE, width - u);
      if (a->open || u <= first_of(a))
        wn_score_biases(a, false, h, first_of(a) - u, NULL, n, sums); /* else nobody sees them */
      for (int64_t i = 0; i < n; i++) at[h * width + u + i] = (float)sums[i];
    }
  p->bias = at;
  if (!backward || !wn_score_learns(a)) return;
  p->dbias = at + all;
  memset(p->dbias, 0, (size_t)(all * parts_of(p)) * sizeof(float));
}

/* The entry for row 0 and column 0 of the strip. */
static int64_t entry(const struct wn_terms_strip *s) {
  const struct wn_attention *a = s->a;
  return s->h * width_of(a) + first_of(a) - (s->r + (a->open ? 0 : a->Tk - a->Tq)) + s->j0;
}

/* Adds the biases of head h at distances x[n], or first, first - 1, ... */
static void score_add(const struct wn_attention *a, int64_t h, int64_t first, const int32_t *x, int64_t n,
                      float *logits) {
  double sums[WN_TILE] = {0};
  wn_score_biases(a, false, h, first, x, n, sums);
  for (int64_t i = 0; i < n; i++) logits[i] += (float)sums[i];
}

/* Adds the biases of row i of a strip, without a table. */
static void score_add_row(const struct wn_terms_strip *s, int64_t i, float *logits) {
  const struct wn_attention *a = s->a;
  const int64_t own = s->r + i + (a->open ? 0 : a->Tk - a->Tq);
  const int64_t columns = wn_min_i64(s->width, (a->open ? a->Tk : own + 1) - s->j0);
  int32_t x[WN_TILE];
  if (columns <= 0) return;
  if (a->slots.at) wn_slots_distances(a, s->b, s->h / (a->H / a->Hkv), s->r + i, s->j0, columns, x);
  score_add(a, s->h, own - s->j0, a->slots.at ? x : NULL, columns, logits);
}

void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile) {
  const struct wn_score_map *curve = wn_score_curve(p->a);
  for (int64_t i = 0; i < s->rows; i++) {
    float *row = tile + i * WN_TILE;
    const float *from = p->bias ? p->bias + entry(s) - i : NULL;
    for (int64_t j = 0; from && j < s->width; j++) row[j] += from[j];
    if (!from && has_biases(p->a)) score_add_row(s, i, row);
    if (curve) curve->kind->forward_float[p->exec->ctx->isa](curve, row, wn_min_i64(s->width, p->a->Tk - s->j0));
  }
}

void wn_score_gathered(const struct wn_attention_plan *p, int64_t h, const int32_t *x, int64_t n, float *logits) {
  const struct wn_score_map *curve = wn_score_curve(p->a);
  if (has_biases(p->a)) score_add(p->a, h, 0, x, n, logits);
  if (curve) curve->kind->forward_float[p->exec->ctx->isa](curve, logits, n);
}

void wn_score_tile_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y,
                            float *G) {
  const struct wn_score_map *curve = wn_score_curve(p->a);
  const int64_t n = wn_min_i64(s->width, p->a->Tk - s->j0);
  for (int64_t i = 0; curve && i < s->rows; i++)
    curve->kind->backward_float[p->exec->ctx->isa](curve, y + i * WN_TILE, G + i * WN_TILE, n);
}

float *wn_score_part(const struct wn_attention_plan *p, int64_t n) {
  return p->dbias ? p->dbias + n * p->a->H * width_of(p->a) : NULL;
}

void wn_score_sum(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G, float *part) {
  (void)p;
  float *to = part + entry(s);
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->width; j++) to[j - i] += G[i * WN_TILE + j];
}

void wn_score_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  if (!p->dbias) return;
  const int64_t width = width_of(a), n = first_of(a) + 1 - wn_score_distances(a).first, sets = parts_of(p);
  double *sums = (double *)(void *)(p->dbias + sets * a->H * width); /* from the nearest distance on */
  for (int64_t h = 0; h < a->H; h++) {
    for (int64_t x = 0; x < n; x++) {
      sums[x] = 0;
      for (int64_t set = 0; set < sets; set++) sums[x] += (double)p->dbias[(set * a->H + h) * width + n - 1 - x];
    }
    wn_score_gradient(a, false, h, sums, WN_F64);
  }
}
