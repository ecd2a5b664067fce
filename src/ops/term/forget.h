/* The forget gate of the Forgetting Transformer (FoX): Lin, Nikishin, He, Courville, ICLR 2025, section 3. Between key
 * j and row i a head forgets by the gates of the tokens after j:
 *   L[h,i,j] = scale * q[h,i] . k[g,j] + sum over l = j+1..i of log f[g,l],   f[g,l] = sigmoid(w[g] . x[l] + b[g])
 * The values of keys are the running sums c[g,j] = sum over l <= j of log f[g,l], so the term is c[g,i] - c[g,j].
 * Cost: an addition per pair. */
#ifndef WN_OPS_TERM_FORGET_H
#define WN_OPS_TERM_FORGET_H

#include "ops/score.h"

#define FORGET_OF(REAL)                                                                                                \
  WN_TERM REAL forget_forward_##REAL(const struct wn_score_map *t, REAL logit, struct wn_score_pair_##REAL at) {       \
    (void)t;                                                                                                           \
    return logit + (at.row - at.key);                                                                                  \
  }                                                                                                                    \
  WN_TERM struct wn_score_slope_##REAL forget_slope_##REAL(const struct wn_score_map *t, REAL y,                       \
                                                           struct wn_score_pair_##REAL at) {                           \
    (void)t, (void)y, (void)at;                                                                                        \
    const struct wn_score_slope_##REAL slope = {1, 1, -1};                                                             \
    return slope;                                                                                                      \
  }
FORGET_OF(float)
FORGET_OF(double)
#undef FORGET_OF

#endif
