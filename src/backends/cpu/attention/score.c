/* Score maps on tiles. The biases of each head are laid out by distance: entry u of [H][width] is for distance `first -
 * u`. Key j of the row at position i then needs entry first - i + j, so a row of a strip reads up to 64 consecutive
 * entries. Gradients are summed by distance in the same way; at the end the maps reduce them to their parameters. A
 * single row, and keys in slots, ask the maps key by key. Keyed maps take a row of a strip at a time. */
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

static int64_t bias_floats(const struct wn_attention_plan *p, bool backward) {
  if (!has_biases(p->a) || (p->a->Tq == 1 && !backward)) return 0;
  const int64_t all = p->a->H * width_of(p->a);
  return all + (backward && wn_score_learns(p->a) ? all * parts_of(p) + 2 * width_of(p->a) : 0);
}

/* A set of a sequence's sums for the keys' numbers, [maps,H/Hkv,Hkv,Tk], and how many there are. */
static int64_t keys_set(const struct wn_attention *a) {
  return a->maps * a->H * a->Tk;
}
static int64_t keys_floats(const struct wn_attention_plan *p, bool backward) {
  if (!backward || wn_score_keyed(p->a) == 0) return 0;
  return (p->own ? 1 : p->chunks) * p->a->B * keys_set(p->a) * 2; /* doubles */
}

int64_t wn_score_floats(const struct wn_attention_plan *p, bool backward) {
  return bias_floats(p, backward) + keys_floats(p, backward);
}

void wn_score_begin(struct wn_attention_plan *p, float *at, bool backward) {
  const struct wn_attention *a = p->a;
  p->bias = p->dbias = NULL;
  p->dkeys = NULL;
  if (keys_floats(p, backward) > 0) {
    p->dkeys = (double *)(void *)(at + bias_floats(p, backward));
    memset(p->dkeys, 0, (size_t)keys_floats(p, backward) * sizeof *at);
  }
  if (bias_floats(p, backward) == 0 || a->slots.at) return;
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

/* What keyed map t needs of a strip: the keys' numbers, and for its row i the distances and the row's own number. */
struct keyed_strip {
  const struct wn_terms_strip *s;
  int64_t n, kv_head;
  const float *numbers; /* that the head reads, t->s_key.t apart */
  int64_t step;
  float key[WN_TILE];
  int32_t x[WN_TILE];
};

static void keyed_begin(const struct wn_terms_strip *s, const struct wn_score_map *t, struct keyed_strip *out) {
  const struct wn_attention *a = s->a;
  out->s = s, out->n = wn_min_i64(s->width, a->Tk - s->j0), out->kv_head = s->h / (a->H / a->Hkv);
  out->numbers = (const float *)t->key + wn_score_number(t, s->b, s->h, a->H / a->Hkv), out->step = t->s_key.t;
  for (int64_t j = 0; j < out->n; j++) out->key[j] = out->numbers[(s->j0 + j) * out->step];
}

static struct wn_score_keys keyed_row(struct keyed_strip *k, int64_t i) {
  const struct wn_attention *a = k->s->a;
  const int64_t own = a->Tk - a->Tq + k->s->r + i;
  if (a->slots.at) wn_slots_distances(a, k->s->b, k->kv_head, k->s->r + i, k->s->j0, k->n, k->x);
  return (struct wn_score_keys){.n = k->n,
                                .first = own - k->s->j0,
                                .x = a->slots.at ? k->x : NULL,
                                .row = (double)k->numbers[own * k->step],
                                .key = k->key};
}

static void keyed_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile) {
  for (const struct wn_score_map *t = p->a->map; t < p->a->map + p->a->maps; t++) {
    struct keyed_strip k;
    if (!t->kind->keyed_double) continue;
    keyed_begin(s, t, &k);
    for (int64_t i = 0; i < s->rows; i++) {
      const struct wn_score_keys keys = keyed_row(&k, i);
      t->kind->keyed_float[p->exec->ctx->isa](t, &keys, tile + i * WN_TILE);
    }
  }
}

void wn_score_keys_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y, float *G,
                            double *part) {
  const struct wn_attention *a = p->a;
  for (int64_t m = a->maps - 1; m >= 0; m--) { /* only the last may depend on y */
    const struct wn_score_map *t = &a->map[m];
    struct keyed_strip k;
    float dkey[WN_TILE] = {0};
    if (!t->kind->keyed_double) continue;
    keyed_begin(s, t, &k);
    double *to = part + (m * a->H + wn_score_gate(t, s->h, a->H / a->Hkv) * a->Hkv + k.kv_head) * a->Tk;
    for (int64_t i = 0; i < s->rows; i++) {
      double drow = 0;
      struct wn_score_keys keys = keyed_row(&k, i);
      keys.dkey = dkey, keys.drow = &drow;
      t->kind->keyed_back_float[p->exec->ctx->isa](t, &keys, y ? y + i * WN_TILE : G + i * WN_TILE, G + i * WN_TILE);
      to[a->Tk - a->Tq + s->r + i] += drow;
    }
    for (int64_t j = 0; j < k.n; j++) to[s->j0 + j] += (double)dkey[j];
  }
}

double *wn_score_keys_part(const struct wn_attention_plan *p, int64_t n, int64_t b) {
  return p->dkeys ? p->dkeys + ((p->own ? 0 : n) * p->a->B + b) * keys_set(p->a) : NULL;
}

/* Stores the gradients of the keys' numbers: the sum of the sets, in order. */
static void keyed_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  const int64_t sets = p->own ? 1 : p->chunks, all = a->B * keys_set(a);
  for (int64_t m = 0; m < a->maps; m++) {
    const struct wn_score_map *t = &a->map[m];
    if (!t->kind->keyed_double || !t->dkey) continue;
    for (int64_t n = 0; n < a->B * t->gates * a->Hkv; n++) {
      const int64_t b = n / (t->gates * a->Hkv), r = n / a->Hkv % t->gates;
      for (int64_t j = a->dk_from; j < a->Tk; j++) {
        const double *from = p->dkeys + b * keys_set(a) + (m * a->H + r * a->Hkv + n % a->Hkv) * a->Tk + j;
        double sum = 0;
        for (int64_t set = 0; set < sets; set++) sum += from[set * all];
        wn_floats_out(t->dkey, t->s_key, b, j, n % a->Hkv)[r * t->s_gate] = (float)sum;
      }
    }
  }
}

void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile) {
  const struct wn_score_map *curve = wn_score_curve(p->a);
  for (int64_t i = 0; i < s->rows; i++) {
    float *row = tile + i * WN_TILE;
    const float *from = p->bias ? p->bias + entry(s) - i : NULL;
    for (int64_t j = 0; from && j < s->width; j++) row[j] += from[j];
    if (!from && has_biases(p->a)) score_add_row(s, i, row);
  }
  if (wn_score_keyed(p->a) > 0) keyed_tile(p, s, tile);
  for (int64_t i = 0; curve && i < s->rows; i++)
    curve->kind->forward_float[p->exec->ctx->isa](curve, tile + i * WN_TILE, wn_min_i64(s->width, p->a->Tk - s->j0));
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
  if (p->dkeys) keyed_end(p);
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
