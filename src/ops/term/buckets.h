/* Position biases: Raffel et al. 2020 (T5), section 2.1. One learned number per head and bucket of distances is added
 * to the logit: L[h,i,j] = scale * q[h,i] . k[g,j] + theta[bucket(i - j)][h]. Distances below half the number of
 * buckets have one bucket each; larger ones up to `farthest` share the rest on a logarithmic scale; all beyond share
 * the last. Without causality the first half of the buckets is for x >= 0 and the second for keys after the row; with
 * it, keys after the row are in bucket 0. Cost: an addition per pair. number[0]: farthest. */
#ifndef WN_OPS_TERM_BUCKETS_H
#define WN_OPS_TERM_BUCKETS_H

#include "ops/score.h"

/* The bucket of x among n. */
WN_TERM int64_t buckets_of(int64_t x, int64_t n, int64_t farthest, bool open) {
  int64_t first = 0;
  if (open) {
    n /= 2;
    if (x < 0) first = n, x = -x;
  }
  const int64_t exact = n / 2;
  if (x < exact) return first + (x > 0 ? x : 0);
  if (x >= farthest) return first + n - 1;
  /* undoes rounding just below a whole number */
  const double part = log((double)x / (double)exact) / log((double)farthest / (double)exact);
  const int64_t at = exact + (int64_t)(part * (double)(n - exact) * (1 + 1e-12) + 1e-12);
  return first + (at < n - 1 ? at : n - 1);
}

WN_TERM double buckets_head(const struct wn_score_map *t, struct wn_score_at at) {
  (void)t, (void)at;
  return 0;
}
WN_TERM double buckets_value(const struct wn_score_map *t, double of_head, struct wn_score_at at) {
  (void)of_head;
  return wn_score_theta(t, at, buckets_of(at.x, t->n, (int64_t)t->number[0], at.open));
}
WN_TERM double buckets_slope(const struct wn_score_map *t, struct wn_score_at at, int64_t k) {
  (void)t, (void)at, (void)k;
  return 1;
}

/* The smallest x >= 0 whose bucket among n is at least k. */
WN_TERM int64_t buckets_start(int64_t k, int64_t n, int64_t farthest) {
  int64_t low = 0, high = farthest;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (buckets_of(middle, n, farthest, false) >= k)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}
WN_TERM struct wn_interval buckets_reach(const struct wn_score_map *t, bool open, int64_t k) {
  const int64_t n = open ? t->n / 2 : t->n, farthest = (int64_t)t->number[0], of = k % n;
  const int64_t near = buckets_start(of, n, farthest);
  const int64_t far = of == n - 1 ? INT32_MAX : buckets_start(of + 1, n, farthest) - 1;
  struct wn_interval reach = {near, far};
  if (k >= n) reach.first = -far, reach.last = near > 0 ? -near : -1;
  return reach;
}

#endif
