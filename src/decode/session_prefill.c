/* A piece of a prompt under a budget, as a block: what the cache holds and the piece's keys stand behind each other in
 * the stage; which of them goes before which row is found first, and one attention call with that as its keep rule
 * (struct wn_attention, slots.gone) does the rest; where key-value heads evict for themselves, one for each.
 *
 *   selective  the selecting head runs first, alone, and shows F of every row: one head more
 *   h2o, tova  the weights of the rows, found in blocks (kv/weights.h): all logits and exponentials once more
 *   the rest   from positions, or the tokens' lots
 *
 * R rows take R (K + R) H D operations and (K + R) (2 Hkv D + R) numbers. */
#include <string.h>

#include "attention/derive.h"
#include "kv/weights.h"
#include "decode/session.h"

bool wn_session_takes_blocks(const struct wn_session *s) {
  const bool weights = wn_policy_row(s->budgets.policy)->weights != WN_WEIGHTS_NONE;
  if (s->control) return false; /* rows one by one know which of their keys are control tokens */
  return !s->budgets.cache_positions &&
         !(weights && wn_attention_config_unserved(&s->model->config.attention, WN_WEIGHTS_SERVED));
}

/* The selecting head alone: F of every row. */
static wn_status find_selections(struct wn_run *run, struct wn_session *s, const struct wn_attention *op) {
  struct wn_attention one = wn_attention_selection_only(op, run->exec.dtype);
  one.y = s->block.y;
  one.s_y = (struct wn_stride){op->Tq * op->D, op->D, op->D};
  one.sel.F = s->block.F;
  one.sel.f_out = NULL;
  one.sel.shift = true; /* what rows before have selected: the choice comes first */
  return wn_run_attention_forward(run, &one);
}

/* gone [older+T] of one sequence and group, `older` keys in the stage and the piece's T behind them. F: [T,older+T] or
 * NULL. */
static void find_gone(const struct wn_session *s, int64_t part, int64_t group, const int32_t *at, const void *F,
                      wn_dtype dtype, int64_t older, int64_t T, int32_t *gone) {
  const struct wn_session_block *block = &s->block;
  const struct wn_kv_shape *shape = &s->caches[part].shape;
  const int64_t n = older + T, K = shape->capacity;
  struct wn_policy_held held = {.budgets = &s->budgets,
                                .layer = s->parts[part].layer,
                                .group = shape->first_group + group,
                                .count = older,
                                .budget = K,
                                .dtype = dtype,
                                .at = block->at,
                                .F = F ? block->row : NULL};
  for (int64_t j = 0; j < n; j++) gone[j] = INT32_MAX;
  for (int64_t j = 0; j < older; j++) block->held[j] = (int32_t)j, block->at[j] = at[j];
  for (int64_t t = 0; t < T; t++) {
    held.row = at[older + t];
    if (held.count == K) {
      const float *f32 = (const float *)F + t * n;
      const double *f64 = (const double *)F + t * n;
      for (int64_t j = 0; F && j < K; j++) {
        if (dtype == WN_F64)
          ((double *)block->row)[j] = f64[block->held[j]];
        else
          ((float *)block->row)[j] = f32[block->held[j]];
      }
      const int64_t slot = wn_policy_choose(&held);
      gone[block->held[slot]] = (int32_t)held.row;
      held.count--;
      block->held[slot] = block->held[held.count];
      block->at[slot] = block->at[held.count];
    }
    block->held[held.count] = (int32_t)(older + t);
    block->at[held.count] = at[older + t];
    held.count++;
  }
}

/* gone of a policy that looks at weights, and the stage's weights behind the last row. */
static wn_status weigh(struct wn_run *run, struct wn_session *s, int64_t K, const struct wn_attention *op) {
  if (!run->measuring) return wn_weights_piece(&run->exec, &s->budgets, K, op, s->stage.weights, s->block.gone);
  const size_t need = wn_weights_piece_scratch(&run->exec, op);
  if (need > run->need) run->need = need;
  return WN_OK;
}

/* The attention of one group, whose gone is found first unless `found`. */
static wn_status attend_group(struct wn_run *run, struct wn_session *s, int64_t part, const struct wn_attention *op,
                              int64_t group, bool found) {
  const struct wn_kv_shape *stage = &s->stage.shape;
  const int64_t T = op->Tq, n = op->Tk;
  const wn_dtype dtype = run->exec.dtype;
  const bool selects = wn_policy_row(s->budgets.policy)->needs_selective;
  if (selects && !found) WN_TRY(find_selections(run, s, op));
  for (int64_t b = 0; b < s->B && !run->measuring && !found; b++) {
    const int64_t row = (b * stage->groups + group) * stage->capacity;
    find_gone(s, part, group, s->stage.at + row, selects ? wn_at(s->block.F, b * T * n, dtype) : NULL, dtype, n - T, T,
              s->block.gone + row);
  }
  return wn_run_attention_forward(run, op);
}

/* Rows t0..t0+T-1 of the operation. */
static wn_status attend_block(struct wn_run *run, struct wn_session *s, int64_t part, const struct wn_attention *op,
                              const struct wn_kv_rows *rows, int64_t t0, int64_t T) {
  struct wn_kv_cache *cache = &s->caches[part], *stage = &s->stage;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t n = cache->count + T, K = cache->shape.capacity, left = n < K ? n : K, P = cache->shape.groups;
  const bool weights = wn_policy_row(s->budgets.policy)->weights != WN_WEIGHTS_NONE;
  struct wn_attention block = wn_attention_of_rows(op, dtype, t0, T);
  wn_session_stage(run, s, cache, rows, t0, T);
  wn_kv_cache_bind(stage, T, &block);
  block.slots.at = stage->at;
  block.slots.gone = s->block.gone;
  if (weights) WN_TRY(weigh(run, s, K, &block));
  for (int64_t g = 0; g < P; g++) {
    const struct wn_attention one = P > 1 ? wn_attention_of_heads(&block, dtype, g, 1) : block;
    WN_TRY(attend_group(run, s, part, &one, g, weights));
  }
  if (run->measuring) return WN_OK;
  wn_kv_cache_advance(stage, T);
  for (int64_t row = 0; row < s->B * P; row++) {
    const int32_t *gone = s->block.gone + row * stage->shape.capacity;
    for (int64_t j = 0, i = 0; j < n; j++)
      if (gone[j] == INT32_MAX) s->slots[row * left + i++] = (int32_t)j;
  }
  wn_session_unstage(s, cache, left);
  return WN_OK;
}

wn_status wn_session_attend_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                   const struct wn_attention *op, const struct wn_kv_rows *rows) {
  for (int64_t t = 0; t < run->T; t += WN_SESSION_BLOCK) {
    const int64_t T = run->T - t < WN_SESSION_BLOCK ? run->T - t : WN_SESSION_BLOCK;
    WN_TRY(attend_block(run, s, part, op, rows, t, T));
    if (run->measuring) return WN_OK;
  }
  return WN_OK;
}
