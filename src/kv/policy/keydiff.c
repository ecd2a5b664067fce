/* The token whose key is the most similar to the mean of the others is evicted (ops/policy/keydiff.h). */
#include "ops/policy/keydiff.h"
#include "kv/policy.h"

static const struct wn_policy_kind keydiff_kind = {
    .id = WN_POLICY_ID_KEYDIFF, .stages = 3, .per_token = 1, .per_dimension = 1, .stage = keydiff_stage};

const struct wn_policy_row wn_policy_keydiff = {
    .info = {.name = "keydiff",
             .summary = "evicts the token whose key is most like the mean of all (Park et al. 2025)",
             .per_kv_head = true},
    .needs = WN_POLICY_KEYS,
    .kind = &keydiff_kind,
};
