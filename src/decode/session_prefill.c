/* A piece of a prompt under a budget, as a block. The stage gets the cache's tokens and then the piece's keys. The
 * operation of ops/evictions.h computes for each key the first row that does not see it, and which keys are left at the
 * end. One attention call then uses the evictions as a keep rule (one call per key-value head if heads evict on their
 * own), and the keys that are left go back to the cache.
 *
 * R rows take R (K + R) H D operations and (K + R) (2 Hkv D + R) numbers. */

#include "attention/derive.h"
#include "kv/evictions.h"
#include "decode/session.h"

/* Computes evicted_at, slots_shown, and the policy's notes after the last row, in the stage. */
static wn_status prefill_find_evictions(struct wn_run *run, struct wn_session *s, int64_t part,
                                        const struct wn_attention *op) {
  const struct wn_kv_shape *shape = &s->caches[part].shape;
  /* A budget of what there is evicts nothing, and leaves out sums that expire before the last row. */
  const int64_t K = wn_session_evicts(s) ? shape->capacity : op->Tk;
  const struct wn_evictions_piece piece = {.budgets = &s->budgets,
                                           .layer = s->parts[part].layer,
                                           .K = K,
                                           .first_group = shape->first_group,
                                           .a = op,
                                           .notes = s->room->stage.cache.notes,
                                           .evicted_at = s->room->stage.evicted_at,
                                           .left = s->room->stage.slots_shown};
  if (!run->measuring) return wn_evictions_piece_find(&run->exec, &piece);
  const size_t need = wn_evictions_piece_scratch(&run->exec, &piece);
  if (need > run->need) run->need = need;
  return WN_OK;
}

/* Attention for rows t0..t0+T-1 of the operation. */
static wn_status prefill_attend_block(struct wn_run *run, struct wn_session *s, int64_t part,
                                      const struct wn_attention *op, const struct wn_kv_rows *rows, int64_t t0,
                                      int64_t T) {
  struct wn_kv_cache *cache = &s->caches[part], *stage = &s->room->stage.cache;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t n = cache->count + T, K = cache->shape.capacity, left = n < K ? n : K, P = cache->shape.groups;
  struct wn_attention block = wn_attention_of_rows(op, dtype, t0, T);
  WN_TRY(wn_session_stage(run, s, cache, rows, t0, T));
  wn_kv_cache_bind(stage, T, &block);
  block.slots.evicted_at = s->room->stage.evicted_at;
  WN_TRY(prefill_find_evictions(run, s, part, &block));
  for (int64_t g = 0; g < P; g++) {
    const struct wn_attention one = P > 1 ? wn_attention_of_heads(&block, dtype, g, 1) : block;
    WN_TRY(wn_session_attention_forward(run, s, part, &one));
  }
  if (run->measuring) return WN_OK;
  wn_kv_cache_advance(stage, T);
  return wn_session_unstage(run, s, run->exec.backend->memory->host ? s->room->stage.slots : NULL, left, cache);
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
