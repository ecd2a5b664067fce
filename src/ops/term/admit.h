/* A gate on what stays: a key counts in full among the last w tokens, and beyond them with the factor of its gate.
 *   L[h,i,j] = scale * q[h,i] . k[g,j] + [i - j >= w] log s[g,j]
 * Write-gated keys and values (WG-KV, arXiv 2512.17452): s is the gate that admits a token. Dynamic memory
 * sparsification (DMS, arXiv 2506.05345): 1 - s is the decision to evict it, delayed by w. A key whose s is (nearly) 0
 * has no weight beyond the window and can leave the cache. The values of keys are log s, at most 0. Cost: a comparison
 * and an addition per pair; of an idle map, which leaves logits as they are, none. number[0]: w. */
#ifndef WN_OPS_TERM_ADMIT_H
#define WN_OPS_TERM_ADMIT_H

#include "ops/score.h"

#define ADMIT_OF(REAL)                                                                                                 \
  WN_TERM bool admit_counts_##REAL(const struct wn_score_map *t, struct wn_score_pair_##REAL at) {                     \
    return !t->idle && at.x >= (REAL)t->number[0];                                                                     \
  }                                                                                                                    \
  WN_TERM REAL admit_forward_##REAL(const struct wn_score_map *t, REAL logit, struct wn_score_pair_##REAL at) {        \
    return logit + (admit_counts_##REAL(t, at) ? at.key : 0);                                                          \
  }                                                                                                                    \
  WN_TERM struct wn_score_slope_##REAL admit_slope_##REAL(const struct wn_score_map *t, REAL y,                        \
                                                          struct wn_score_pair_##REAL at) {                            \
    (void)y;                                                                                                           \
    const struct wn_score_slope_##REAL slope = {1, 0, (REAL)(admit_counts_##REAL(t, at) ? 1 : 0)};                     \
    return slope;                                                                                                      \
  }
ADMIT_OF(float)
ADMIT_OF(double)
#undef ADMIT_OF

#endif
