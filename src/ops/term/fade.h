/* Retention gates (TRIM-KV): a key's logits fade with its age, at a rate of its own, as in the authors' code before the
 * softmax:
 *   L[h,i,j] = scale * q[h,i] . k[g,j] * beta[g,j]^(i - j),   beta[g,j] = sigmoid(w[g] . x[j] + b[g])
 * The values of keys are log beta, at most 0. A faded logit is 0: the key then weighs as one that q is orthogonal to.
 * Cost: an exponential per pair; of an idle map, which leaves logits as they are, none. */
#ifndef WN_OPS_TERM_FADE_H
#define WN_OPS_TERM_FADE_H

#include "ops/score.h"

#define FADE_OF(REAL, EXP)                                                                                             \
  WN_TERM REAL fade_left_##REAL(struct wn_score_pair_##REAL at) {                                                      \
    return EXP(at.x > 0 ? at.x * at.key : 0);                                                                          \
  }                                                                                                                    \
  WN_TERM REAL fade_forward_##REAL(const struct wn_score_map *t, REAL logit, struct wn_score_pair_##REAL at) {         \
    return t->idle ? logit : logit * fade_left_##REAL(at);                                                             \
  }                                                                                                                    \
  WN_TERM struct wn_score_slope_##REAL fade_slope_##REAL(const struct wn_score_map *t, REAL y,                         \
                                                         struct wn_score_pair_##REAL at) {                             \
    const struct wn_score_slope_##REAL slope = {t->idle ? 1 : fade_left_##REAL(at), 0,                                 \
                                                t->idle    ? 0                                                         \
                                                : at.x > 0 ? at.x *y                                                   \
                                                           : 0};                                                       \
    return slope;                                                                                                      \
  }
WN_TERM float fade_exp(float x) {
  return wn_term_exp(x > -87.0f ? x : -87.0f);
}
FADE_OF(float, fade_exp)
FADE_OF(double, exp)
#undef FADE_OF

#endif
