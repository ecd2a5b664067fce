/* KeyDiff: Park et al. 2025, "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
 * Resource-Constrained Environments", arXiv 2504.15364. Keys that differ from the others matter, so the token is
 * evicted whose key is the most similar to the mean direction of the keys held:
 *
 *   u[j] = k[j] / |k[j]|,  m = mean of u over the tokens held,  score[j] = sum over the group's heads of cos(k[j], m)
 *
 * Keys are those of the cache, which are rotated in a rotary model. A key of zeros has u = 0 and score 0. A cosine is
 * rounded (wn_policy_rounded): of two keys held both have the same, and rounding must not decide which goes. Cost of an
 * eviction: 3 K D operations a head. */
#ifndef WN_OPS_POLICY_KEYDIFF_H
#define WN_OPS_POLICY_KEYDIFF_H

#include "ops/policy/policy.h"

/* room: 1 / |k| [count], then the sum of u [D]. */
WN_POLICY_STAGE void keydiff_stage(const struct wn_policy_held *h, int64_t head, int stage, struct wn_policy_thread me,
                                   double *scores, double *room) {
  double *inverse = room, *sum = room + h->count;
  if (stage == 0) {
    WN_POLICY_TOKENS(h, me, j) {
      const double norm = wn_policy_norm(h, &h->k, head, j);
      inverse[j] = norm > 0 ? 1 / norm : 0;
    }
  } else if (stage == 1) {
    const struct wn_policy_thread one = {0, 1};
    const struct wn_policy_range part = wn_policy_part(me, h->D);
    for (int64_t d = part.first; d < part.end; d++) sum[d] = 0;
    WN_POLICY_TOKENS(h, one, j) wn_policy_add(h, &h->k, head, j, inverse[j], part, sum + part.first);
  } else {
    double square = 0;
    for (int64_t d = 0; d < h->D; d++) square += wn_policy_times(sum[d], sum[d]);
    const double scale = square > 0 ? 1 / sqrt(square) : 0;
    WN_POLICY_TOKENS(h, me, j) {
      const double product = wn_policy_times(wn_policy_dot(h, &h->k, head, j, sum), inverse[j]);
      scores[j] += wn_policy_rounded(wn_policy_times(product, scale));
    }
  }
}

#endif
