/* Evictions: for each sequence and group the choice of ops/evict.c, and the moves. One thread does it: a cache has few
 * arrays, and a step moves one slot of each. */
#include "ops/evict.h"

#include <string.h>

#include "backends/ref/ref.h"

static int64_t evict_choose(const struct wn_exec *exec, const struct wn_evict *a, int64_t row) {
  const int64_t each = a->rule.by == WN_EVICT_VOTES ? a->rule.votes : 1;
  const int32_t *at = a->at + row * a->capacity;
  int32_t *order = NULL;
  if (a->rule.by == WN_EVICT_GIVEN) return a->index[row];
  if (a->rule.by == WN_EVICT_VOTES) {
    order = (int32_t *)a->room;
    for (int64_t j = 0; j < a->N; j++) order[j] = (int32_t)j;
    wn_evict_sort(a->N, order, at);
  }
  struct wn_policy_held held;
  wn_evict_held_of(a, row, exec->dtype, &held);
  held.rule = &a->rule;
  held.order = order;
  held.values = wn_element(a->values, row * each * a->capacity, exec->dtype);
  if (a->rule.by == WN_EVICT_KIND) held.room = (double *)a->room + row * wn_policy_room(a->rule.kind, a->N, a->D);
  return wn_evict_choose(&held);
}

wn_status wn_ref_evict_forward(const struct wn_exec *exec, const struct wn_evict *a) {
  const int64_t last = a->N - 1;
  for (int64_t row = 0; row < a->B * a->P; row++) {
    const int64_t slot = evict_choose(exec, a, row);
    for (int i = 0; i < a->count && slot != last; i++) {
      const struct wn_evict_slots *x = &a->slots[i];
      for (int64_t r = row * x->rows; r < (row + 1) * x->rows; r++) {
        char *base = (char *)x->data + (size_t)(r * a->capacity) * x->bytes;
        memcpy(base + (size_t)slot * x->bytes, base + (size_t)last * x->bytes, x->bytes);
      }
    }
    a->at[row * a->capacity + slot] = a->at[row * a->capacity + last];
    a->at[row * a->capacity + last] = (int32_t)a->row;
  }
  return WN_OK;
}
