/* Positions of slots; see slots.h. */
#include "backends/cpu/attention/slots.h"

void wn_slots_distances(const struct wn_attention *a, int64_t b, int64_t g, int64_t r, int64_t j0, int64_t columns,
                        int32_t *x) {
  const int32_t *at = wn_slot_positions(a, b, g), own = at[a->Tk - a->Tq + r];
  for (int64_t j = 0; j < columns; j++) x[j] = own - at[j0 + j];
}

uint64_t wn_slots_seen(const struct wn_attention *a, int64_t b, int64_t g, int64_t r, int64_t j0) {
  const int64_t columns = wn_min_i64(WN_TILE, a->Tk - a->Tq + r + 1 - j0);
  int32_t x[WN_TILE];
  uint64_t seen = 0;
  if (columns <= 0) return 0;
  wn_slots_distances(a, b, g, r, j0, columns, x);
  if (a->strided > 0 || a->root.on) {
    for (int64_t j = 0; j < columns; j++) seen |= (uint64_t)wn_distance_seen(a, x[j]) << j;
    return seen;
  }
  const int32_t near = a->span.on && a->span.exclude_self, far = (int32_t)wn_min_i64(a->window, INT32_MAX);
  const int32_t last = far > 0 ? far - 1 : INT32_MAX;
  for (int64_t j = 0; j < columns; j++) seen |= (uint64_t)(x[j] >= near && x[j] <= last) << j;
  return seen;
}

uint64_t wn_slots_first(const struct wn_attention *a, int64_t b, int64_t g, int64_t j0) {
  const int32_t *at = wn_slot_positions(a, b, g);
  const int64_t columns = wn_min_i64(WN_TILE, a->Tk - j0);
  uint64_t first = 0;
  for (int64_t j = 0; j < columns; j++) first |= (uint64_t)(at[j0 + j] == 0) << j;
  return first;
}
