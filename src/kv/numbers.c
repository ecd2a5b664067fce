/* The numbers of the keys in a cache (cache.h), which keyed maps of the logits read (ops/score.h). A number that is a
 * running sum continues that over all tokens seen, in doubles, which is exact (ops.h, WN_SIGMOID_LOG): a text gives the
 * same bits however it is cut, and what is undone leaves no trace. */
#include "kv/cache.h"

struct wn_kv_rows wn_kv_rows_of(const struct wn_attention *op) {
  struct wn_kv_rows rows = {
      .k = op->k, .v = op->v, .sk = op->sel.sk, .s_k = op->s_k, .s_v = op->s_v, .s_sk = op->sel.s_sk};
  int n = 0;
  for (const struct wn_score_map *t = op->map; t < op->map + op->maps; t++)
    if (t->kind->keyed_double) rows.number[n] = t->key, rows.s_number[n++] = t->s_key;
  return rows;
}

struct wn_kv_rows wn_kv_rows_of_heads(const struct wn_kv_rows *rows, wn_dtype dtype, int64_t g0) {
  struct wn_kv_rows of = *rows;
  of.k = wn_element(rows->k, g0 * rows->s_k.h, dtype);
  of.v = wn_element(rows->v, g0 * rows->s_v.h, dtype);
  of.sk = wn_element(rows->sk, g0 * rows->s_sk.h, dtype);
  for (int i = 0; i < WN_SCORE_MAPS_MAX; i++)
    of.number[i] = wn_element(rows->number[i], g0 * rows->s_number[i].h, dtype);
  return of;
}

/* Row `row` of head `head` (of all sequences' heads) in the array of numbers. */
static int64_t numbers_at(const struct wn_kv_cache *c, int64_t head, int64_t row) {
  return (head * c->shape.width + row) * c->shape.capacity;
}

void wn_kv_numbers_put(struct wn_kv_cache *c, const struct wn_kv_rows *r, int64_t t0, int64_t T) {
  const struct wn_kv_shape *s = &c->shape;
  for (int64_t head = 0; head < s->B * s->Hkv; head++)
    for (int64_t i = 0; i < s->keyed; i++) {
      const struct wn_stride stride = r->s_number[i];
      const int64_t from = head / s->Hkv * stride.b + head % s->Hkv * stride.h, to = numbers_at(c, head, i) + c->count;
      double sum = c->total[head * s->keyed + i];
      for (int64_t t = 0; t < T; t++) {
        const double x = wn_number(r->number[i], from + (t0 + t) * stride.t, s->dtype);
        sum += x;
        wn_number_set(c->numbers, to + t, s->dtype, s->map[i].kind->sums ? sum : x);
        if (s->width > s->keyed) wn_number_set(c->numbers, to + t + s->keyed * s->capacity, s->dtype, x);
      }
    }
}

double wn_kv_numbers_of(const struct wn_kv_cache *c, int64_t head, int64_t i, int64_t first, int64_t n) {
  const int64_t at = numbers_at(c, head, c->shape.keyed + i);
  double sum = 0;
  for (int64_t j = first; c->shape.width > c->shape.keyed && j < first + n; j++)
    sum += wn_number(c->numbers, at + j, c->shape.dtype);
  return sum;
}

void wn_kv_numbers_count(struct wn_kv_cache *c, int64_t first, int64_t n, double sign) {
  const int64_t keyed = c->shape.keyed;
  for (int64_t x = 0; c->shape.width > keyed && x < c->shape.B * c->shape.Hkv * keyed; x++)
    c->total[x] += sign * wn_kv_numbers_of(c, x / keyed, x % keyed, first, n);
}

void wn_kv_numbers_held(const struct wn_kv_cache *cache, int64_t row, struct wn_policy_held *held) {
  const struct wn_kv_shape *s = &cache->shape;
  for (int64_t i = 0; i < s->keyed; i++) {
    const struct wn_policy_rows all = {
        .data = cache->numbers, .head = s->width * s->capacity, .token = 1, .type = WN_GGUF_F32};
    const int64_t first = (row * (s->Hkv / s->groups) * s->width + i) * s->capacity;
    held->number[i] = (struct wn_policy_number){&s->map[i], wn_policy_rows_from(all, s->dtype, first)};
  }
}
