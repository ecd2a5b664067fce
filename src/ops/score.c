/* Score maps on one logit, and the gradients of biases' parameters from sums by distance. */
#include "ops/ops.h"
#include "ops/terms.h"

void wn_score_biases(const struct wn_attention *a, bool wide, int64_t h, int64_t first, const int32_t *x, int64_t n,
                     double *sums) {
  const struct wn_score_at at = {.head = wn_model_head(a, h), .x = first, .open = a->open, .wide = wide};
  for (int64_t i = 0; i < a->maps; i++)
    if (a->map[i].kind->values) a->map[i].kind->values(&a->map[i], at, x, n, sums);
}

double wn_score_logit(const struct wn_attention *a, bool wide, int64_t h, int64_t x, double logit) {
  const struct wn_score_map *curve = wn_score_curve(a);
  wn_score_biases(a, wide, h, x, NULL, 1, &logit);
  if (curve) curve->kind->forward_double(curve, &logit, 1);
  return logit;
}

double wn_score_slope(const struct wn_attention *a, double y) {
  const struct wn_score_map *curve = wn_score_curve(a);
  double slope = 1;
  if (curve) curve->kind->backward_double(curve, &y, &slope, 1);
  return slope;
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
