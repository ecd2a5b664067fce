/* The most recent tokens stay: of scores that are all alike the oldest token's goes. */
#include "kv/policy.h"

const struct wn_policy_row wn_policy_window = {
    .info = {.name = "window", .summary = "the most recent stay"},
    .by_position = true,
};
