/* The token whose key has the largest norm is evicted (ops/policy/knorm.h). */
#include "ops/policy/knorm.h"
#include "kv/policy.h"

static const struct wn_policy_kind knorm_kind = {
    .id = WN_POLICY_ID_KNORM, .stages = 1, .constant = true, .stage = knorm_stage};

const struct wn_policy_row wn_policy_knorm = {
    .info = {.name = "knorm",
             .summary = "evicts the token whose key has the largest norm (Devoto et al. 2024)",
             .per_kv_head = true},
    .needs = WN_POLICY_KEYS,
    .kind = &knorm_kind,
};
