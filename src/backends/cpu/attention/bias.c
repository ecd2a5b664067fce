/* Position biases (Raffel et al. 2020, §2.1) on tiles. The biases of each head are laid out by distance: entry u of
 * [H][width] is for distance `first - u`. Key j of the row at position i then needs entry first - i + j, so a row of a
 * strip reads up to 64 consecutive entries. Gradients are summed by distance in the same way; at the end distances are
 * reduced to buckets. */
#include "backends/cpu/attention/bias.h"
#include "backends/cpu/attention/slots.h"

#include <string.h>

/* The largest distance of a row and a key. */
static int64_t first_of(const struct wn_attention *a) {
  return (a->open ? a->Tq : a->Tk) - 1;
}

/* A tile may extend beyond the last key. */
static int64_t width_of(const struct wn_attention *a) {
  return (first_of(a) + a->Tk + WN_TILE + 15) / 16 * 16;
}

static int64_t parts_of(const struct wn_attention_plan *p) {
  if (p->a->open && p->a->sel.on) return p->a->B * wn_open_parts(p);
  return p->own || p->a->open ? p->a->B : p->chunks;
}

int64_t wn_bias_floats(const struct wn_attention_plan *p, bool backward) {
  if (p->a->bias.n == 0) return 0;
  return p->a->H * width_of(p->a) * (1 + (backward ? parts_of(p) : 0));
}

void wn_bias_begin(struct wn_attention_plan *p, float *at, bool backward) {
  const struct wn_attention *a = p->a;
  p->bias = p->dbias = NULL;
  if (a->bias.n == 0) return;
  const int64_t width = width_of(a), first = first_of(a), all = a->H * width;
  const float *table = a->bias.table;
  for (int64_t u = 0; u < width; u++) {
    /* from the farthest distance on, all are in one bucket */
    const int64_t x = first - u;
    const bool same = u > 0 && (x >= a->bias.farthest || x + 1 <= -a->bias.farthest || (!a->open && x < 0));
    const float *row =
        same ? NULL : table + wn_position_bucket(x, a->bias.n, a->bias.farthest, a->open) * wn_bias_stride(a);
    for (int64_t h = 0; h < a->H; h++) at[h * width + u] = same ? at[h * width + u - 1] : row[wn_model_head(a, h)];
  }
  p->bias = at;
  if (!backward) return;
  p->dbias = at + all;
  memset(p->dbias, 0, (size_t)(all * parts_of(p)) * sizeof(float));
}

float wn_bias_of(const struct wn_attention_plan *p, int64_t h, int64_t x) {
  return p->bias[h * width_of(p->a) + first_of(p->a) - x];
}

/* The entry for row 0 and column 0 of the strip. */
static int64_t entry(const struct wn_terms_strip *s) {
  const struct wn_attention *a = s->a;
  return s->h * width_of(a) + first_of(a) - (s->r + (a->open ? 0 : a->Tk - a->Tq)) + s->j0;
}

/* For keys in slots: each key's position gives its distance, as neighbouring slots may lie far apart. */
static void add_slots(const struct wn_attention *a, const struct wn_terms_strip *s, float *tile) {
  const float *table = a->bias.table;
  int32_t x[WN_TILE];
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t columns = wn_min_i64(s->width, a->Tk - a->Tq + s->r + i + 1 - s->j0);
    if (columns <= 0) continue;
    wn_slots_distances(a, s->b, s->h / (a->H / a->Hkv), s->r + i, s->j0, columns, x);
    for (int64_t j = 0; j < columns; j++)
      tile[i * WN_TILE + j] += table[wn_position_bucket(x[j], a->bias.n, a->bias.farthest, false) * wn_bias_stride(a) +
                                     wn_model_head(a, s->h)];
  }
}

void wn_bias_add(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile) {
  if (p->a->slots.at) {
    add_slots(p->a, s, tile);
    return;
  }
  const float *from = p->bias + entry(s);
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->width; j++) tile[i * WN_TILE + j] += from[j - i];
}

float *wn_bias_part(const struct wn_attention_plan *p, int64_t n) {
  return p->dbias ? p->dbias + n * p->a->H * width_of(p->a) : NULL;
}

void wn_bias_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G, float *part) {
  (void)p;
  float *to = part + entry(s);
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->width; j++) to[j - i] += G[i * WN_TILE + j];
}

void wn_bias_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  if (!p->dbias || !a->bias.dtable) return;
  const int64_t width = width_of(a), first = first_of(a);
  for (int64_t h = 0; h < a->H; h++) {
    for (int64_t u = 0; u < first + a->Tk;) {
      const int64_t bucket = wn_position_bucket(first - u, a->bias.n, a->bias.farthest, a->open);
      double sum = 0;
      for (; u < first + a->Tk && wn_position_bucket(first - u, a->bias.n, a->bias.farthest, a->open) == bucket; u++)
        for (int64_t n = 0; n < parts_of(p); n++) sum += (double)p->dbias[(n * a->H + h) * width + u];
      float *to = (float *)a->bias.dtable + bucket * a->H + h;
      *to = (float)((double)*to + sum);
    }
  }
}
