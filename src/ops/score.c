/* Score maps on one logit, and the gradients of biases' parameters from sums by distance. */
#include "ops/ops.h"
#include "ops/terms.h"

void wn_score_biases(const struct wn_attention *a, bool wide, int64_t h, int64_t first, const int32_t *x, int64_t n,
                     double *sums) {
  const struct wn_score_at at = {.head = wn_model_head(a, h), .x = first, .open = a->open, .wide = wide};
  for (int64_t i = 0; i < a->maps; i++)
    if (a->map[i].kind->values) a->map[i].kind->values(&a->map[i], at, x, n, sums);
}

/* The keys of one pair: the numbers of the row's own key and of the key. */
static struct wn_score_keys score_pair(const struct wn_attention *a, const struct wn_score_map *t, bool wide,
                                       struct wn_score_place at, double *key) {
  const int64_t first = wn_score_number(t, at.b, at.h, a->H / a->Hkv);
  const wn_dtype type = wide ? WN_F64 : WN_F32;
  *key = wn_number(t->key, first + at.j * t->s_key.t, type);
  return (struct wn_score_keys){
      .n = 1, .first = at.x, .row = wn_number(t->key, first + at.own * t->s_key.t, type), .key = key};
}

double wn_score_logit(const struct wn_attention *a, bool wide, struct wn_score_place at, double logit) {
  const struct wn_score_map *curve = wn_score_curve(a);
  wn_score_biases(a, wide, at.h, at.x, NULL, 1, &logit);
  for (const struct wn_score_map *t = a->map; t < a->map + a->maps; t++) {
    double key;
    if (!t->kind->keyed_double) continue;
    const struct wn_score_keys keys = score_pair(a, t, wide, at, &key);
    t->kind->keyed_double(t, &keys, &logit);
  }
  if (curve) curve->kind->forward_double(curve, &logit, 1);
  return logit;
}

struct wn_score_back wn_score_logit_back(const struct wn_attention *a, bool wide, struct wn_score_place at, double y,
                                         double G) {
  const struct wn_score_map *curve = wn_score_curve(a);
  struct wn_score_back to = {.G = G};
  if (curve) curve->kind->backward_double(curve, &y, &to.G, 1);
  for (int64_t i = a->maps - 1; i >= 0; i--) { /* only the last may depend on y */
    const struct wn_score_map *t = &a->map[i];
    double key;
    if (!t->kind->keyed_double) continue;
    struct wn_score_keys keys = score_pair(a, t, wide, at, &key);
    keys.dkey = &to.key[i], keys.drow = &to.row[i];
    t->kind->keyed_back_double(t, &keys, &y, &to.G);
  }
  return to;
}

void wn_score_gradient(const struct wn_attention *a, bool wide, int64_t h, const void *sums, wn_dtype type) {
  const struct wn_interval all = wn_score_distances(a);
  struct wn_score_at at = {.head = wn_model_head(a, h), .open = a->open, .wide = wide};
  for (const struct wn_score_map *t = a->map; t < a->map + a->maps; t++)
    for (int64_t k = 0; t->dtheta && k < t->n; k++) {
      const struct wn_interval reach = t->kind->reach(t, a->open, k);
      const int64_t last = reach.last < all.last ? reach.last : all.last, i = k * t->stride + at.head;
      double sum = 0;
      for (at.x = reach.first > all.first ? reach.first : all.first; at.x <= last; at.x++)
        sum += wn_number(sums, at.x - all.first, type) * t->kind->slope(t, at, k);
      if (wide)
        ((double *)t->dtheta)[i] += sum;
      else
        ((float *)t->dtheta)[i] = (float)((double)((float *)t->dtheta)[i] + sum);
    }
}
