/* A piece of a prompt under a budget, as a block: the stage holds what the cache holds and then the piece's keys; first
 * the evictions are computed (for each key, the first row that does not see it), then one attention call uses them as a
 * keep rule; where key-value heads evict on their own, one call for each. The evictions are found by the walk over
 * whole sequences (kv/walk.h).
 *
 * R rows take R (K + R) H D operations and (K + R) (2 Hkv D + R) numbers. */
#include <string.h>

#include "attention/derive.h"
#include "attention/registry.h"
#include "kv/evictions.h"
#include "kv/walk.h"
#include "decode/session.h"

bool wn_session_takes_blocks(const struct wn_session *s) {
  const bool sums = wn_policy_row(s->budgets.policy)->needs & WN_POLICY_SUMS;
  if (s->control) return false; /* only rows run one at a time know which of their keys are control tokens */
  return !s->budgets.cache_positions && !(sums && wn_attention_config_unserved(&s->attention, WN_WALK_SUMS_SERVED));
}

/* s->block.evicted_at, and the policy's notes in the stage after the last row. */
static wn_status prefill_find_evictions(struct wn_run *run, struct wn_session *s, int64_t part,
                                        const struct wn_attention *op) {
  const struct wn_kv_shape *shape = &s->caches[part].shape;
  const struct wn_evictions_piece piece = {.budgets = &s->budgets,
                                           .layer = s->parts[part].layer,
                                           .K = shape->capacity,
                                           .first_group = shape->first_group,
                                           .a = op,
                                           .notes = s->stage.notes,
                                           .evicted_at = s->block.evicted_at};
  if (!run->measuring) return wn_evictions_piece_find(&run->exec, &piece);
  const size_t need = wn_evictions_piece_scratch(&run->exec, &s->budgets, op);
  if (need > run->need) run->need = need;
  return WN_OK;
}

/* Rows t0..t0+T-1 of the operation. */
static wn_status prefill_attend_block(struct wn_run *run, struct wn_session *s, int64_t part,
                                      const struct wn_attention *op, const struct wn_kv_rows *rows, int64_t t0,
                                      int64_t T) {
  struct wn_kv_cache *cache = &s->caches[part], *stage = &s->stage;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t n = cache->count + T, K = cache->shape.capacity, left = n < K ? n : K, P = cache->shape.groups;
  struct wn_attention block = wn_attention_of_rows(op, dtype, t0, T);
  WN_TRY(wn_session_stage(run, s, cache, rows, t0, T));
  wn_kv_cache_bind(stage, T, &block);
  block.slots.at = stage->at;
  block.slots.evicted_at = s->block.evicted_at;
  WN_TRY(prefill_find_evictions(run, s, part, &block));
  for (int64_t g = 0; g < P; g++) {
    const struct wn_attention one = P > 1 ? wn_attention_of_heads(&block, dtype, g, 1) : block;
    WN_TRY(wn_session_attention_forward(run, s, part, &one));
  }
  if (run->measuring) return WN_OK;
  wn_kv_cache_advance(stage, T);
  for (int64_t row = 0; row < s->B * P; row++) {
    const int32_t *evicted_at = s->block.evicted_at + row * stage->shape.capacity;
    for (int64_t j = 0, i = 0; j < n; j++)
      if (evicted_at[j] == INT32_MAX) s->slots[row * left + i++] = (int32_t)j;
  }
  return wn_session_unstage(run, s, cache, left);
}

wn_status wn_session_attend_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                   const struct wn_attention *op, const struct wn_kv_rows *rows) {
  for (int64_t t = 0; t < run->T; t += WN_SESSION_BLOCK) {
    const int64_t T = run->T - t < WN_SESSION_BLOCK ? run->T - t : WN_SESSION_BLOCK;
    WN_TRY(prefill_attend_block(run, s, part, op, rows, t, T));
    if (run->measuring) return WN_OK;
  }
  return WN_OK;
}
