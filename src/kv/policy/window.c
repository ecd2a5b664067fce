/* Keeps the most recent tokens: all scores are equal, so the oldest token is evicted. */
#include "kv/policy.h"

const struct wn_policy_row wn_policy_window = {
    .info = {.name = "window", .summary = "keeps the most recent tokens"},
    .by_position = true,
};
