/* A piece of a prompt under a budget, as a block: what the cache holds and the piece's keys stand behind each other in
 * the stage; which of them goes before which row is found first, and one attention call with that as its keep rule
 * (struct wn_attention, slots.gone) does the rest. For policies that need no weights of the rows. Selections are the
 * selecting head's, which runs first, alone, and shows F of every row: one head more. R rows take R (K + R) H D
 * operations and (K + R) (2 Hkv D + R) numbers. */
#include <string.h>

#include "attention/registry.h"
#include "model/session.h"

bool wn_session_takes_blocks(const struct wn_session *s) {
  const wn_model_config *c = &s->model->config;
  const struct wn_policy_row *row = wn_policy_row(s->budgets.policy);
  const int64_t G = wn_attention_selections(&c->attention, c->kv_heads);
  /* The biases' table has a column for each head. */
  const bool alone = !row->needs_selective || !c->attention.buckets.enabled || c->attention.selective.bilinear;
  return row->weights == WN_WEIGHTS_NONE && !s->budgets.cache_positions && alone &&
         wn_policy_groups(&s->budgets, c->kv_heads, G) == 1;
}

/* The selecting head alone: F of every row. */
static wn_status find_selections(struct wn_run *run, struct wn_session *s, const struct wn_attention *op) {
  const wn_dtype dtype = run->exec.dtype;
  struct wn_attention one = *op;
  const int64_t head = op->sel.head, g = head / (op->H / op->Hkv);
  one.H = one.Hkv = 1;
  one.q = wn_at(op->q, head * op->s_q.h, dtype);
  one.k = wn_at(op->k, g * op->s_k.h, dtype);
  one.v = wn_at(op->v, g * op->s_v.h, dtype);
  one.y = s->block.y;
  one.s_y = (struct wn_stride){op->Tq * op->D, op->D, op->D};
  one.sel.head = 0;
  one.sel.F = s->block.F;
  one.sel.f_out = NULL;
  one.sel.shift = true; /* what rows before have selected: the choice comes first */
  /* What shapes weights and outputs, but no selection. */
  one.window = one.strided = 0;
  one.root.on = one.span.on = one.threshold.on = one.exclusive.on = false;
  one.sinks.n = one.bias.n = 0;
  return wn_run_attention_forward(run, &one);
}

/* gone [older+T] of one sequence, `older` keys in the stage and the piece's T behind them. F: [T,older+T] or NULL. */
static void find_gone(const struct wn_session *s, int64_t l, const int32_t *at, const void *F, wn_dtype dtype,
                      int64_t older, int64_t T, int32_t *gone) {
  const struct wn_session_block *block = &s->block;
  const int64_t n = older + T, K = s->caches[l].shape.capacity;
  struct wn_policy_held held = {.budgets = &s->budgets,
                                .layer = l,
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

/* Rows t0..t0+T-1 of the operation. */
static wn_status attend_block(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *op,
                              const struct wn_kv_rows *rows, int64_t t0, int64_t T) {
  struct wn_kv_cache *cache = &s->caches[l], *stage = &s->stage;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t older = cache->count, n = older + T, K = cache->shape.capacity, left = n < K ? n : K;
  struct wn_attention block = wn_session_rows(op, t0, T, dtype);
  wn_session_stage(run, s, cache, rows, t0, T);
  wn_kv_cache_bind(stage, T, &block);
  block.slots.at = stage->at;
  const bool selects = wn_policy_row(s->budgets.policy)->needs_selective;
  if (selects) WN_TRY(find_selections(run, s, &block));
  for (int64_t b = 0; b < s->B && !run->measuring; b++)
    find_gone(s, l, stage->at + b * stage->shape.capacity, selects ? wn_at(s->block.F, b * T * n, dtype) : NULL, dtype,
              older, T, s->block.gone + b * stage->shape.capacity);
  block.slots.gone = s->block.gone;
  WN_TRY(wn_run_attention_forward(run, &block));
  if (run->measuring) return WN_OK;
  wn_kv_cache_advance(stage, T);
  for (int64_t b = 0; b < s->B; b++) {
    const int32_t *gone = s->block.gone + b * stage->shape.capacity;
    for (int64_t j = 0, i = 0; j < n; j++)
      if (gone[j] == INT32_MAX) s->slots[b * left + i++] = (int32_t)j;
  }
  wn_session_unstage(s, cache, left);
  return WN_OK;
}

wn_status wn_session_attend_blocks(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *op,
                                   const struct wn_kv_rows *rows) {
  for (int64_t t = 0; t < run->T; t += WN_SESSION_BLOCK) {
    const int64_t T = run->T - t < WN_SESSION_BLOCK ? run->T - t : WN_SESSION_BLOCK;
    WN_TRY(attend_block(run, s, l, op, rows, t, T));
    if (run->measuring) return WN_OK;
  }
  return WN_OK;
}
