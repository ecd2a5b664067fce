/* ALiBi, attention with linear biases: Press, Smith, Lewis 2022, arXiv 2108.12409, section 3. A head's logits fall with
 * the distance, by a slope of the head that is not learned:
 *   L[h,i,j] = scale * q[h,i] . k[g,j] - slope[h] (i - j),   slope[h] = 2^(-max_bias (h+1) / H)
 * where H is a power of two. Otherwise, as in the authors' code, let n be the next smaller power of two: the first n
 * heads have the slopes of n heads, the rest have slopes 0, 2, 4, ... of 2n heads. Cost: one operation per pair.
 * number[0]: max_bias, number[1]: H. */
#ifndef WN_OPS_TERM_ALIBI_H
#define WN_OPS_TERM_ALIBI_H

#include "ops/score.h"

WN_TERM double alibi_head(const struct wn_score_map *t, struct wn_score_at at) {
  const int64_t heads = (int64_t)t->number[1];
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  if (at.head >= n) at.head = 2 * (at.head - n), n *= 2;
  return exp2(-t->number[0] * (double)(at.head + 1) / (double)n);
}
WN_TERM double alibi_value(const struct wn_score_map *t, double slope, struct wn_score_at at) {
  (void)t;
  return -slope * (double)at.x;
}

#endif
