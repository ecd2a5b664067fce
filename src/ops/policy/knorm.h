/* Norms of keys: Devoto, Zhao, Scardapane, Minervini 2024, "A Simple and Effective L2 Norm-Based Strategy for KV Cache
 * Compression", arXiv 2406.11430. Keys of a small norm get much attention, so the token whose key has the largest is
 * evicted:
 *
 *   score[j] = sum over the group's heads of |k[j]|
 *
 * Rotation does not change a norm. In a model with QK-norm the norms differ little, without trained weights of these
 * norms hardly by more than rounding, so a norm has 16 bits here. Cost of an eviction: K D
 * operations a head. */
#ifndef WN_OPS_POLICY_KNORM_H
#define WN_OPS_POLICY_KNORM_H

#include "ops/policy/policy.h"

WN_POLICY_STAGE void knorm_stage(const struct wn_policy_held *h, int64_t head, int stage, struct wn_policy_thread me,
                                 double *scores, double *room) {
  (void)stage, (void)room;
  WN_POLICY_TOKENS(h, me, j) scores[j] += wn_policy_rounded(wn_policy_norm(h, &h->k, head, j));
}

#endif
