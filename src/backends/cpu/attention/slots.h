/* Compact caches in the fused attention: keys are in slots, in any order, each with its position. Whatever depends on a
 * key's distance reads the positions key by key; nothing else does. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SLOTS_H
#define WN_BACKENDS_CPU_ATTENTION_SLOTS_H

#include "backends/cpu/attention/terms.h"

/* x[columns]: the distances of keys j0..j0+columns-1 from row r of key-value head g. */
void wn_slots_distances(const struct wn_attention *a, int64_t b, int64_t g, int64_t r, int64_t j0, int64_t columns,
                        int32_t *x);
/* Bits of the columns from j0 on that the keep rules show to row r. */
uint64_t wn_slots_seen(const struct wn_attention *a, int64_t b, int64_t g, int64_t r, int64_t j0);
/* Bits of the columns from j0 on that hold position 0. */
uint64_t wn_slots_first(const struct wn_attention *a, int64_t b, int64_t g, int64_t j0);

#endif
