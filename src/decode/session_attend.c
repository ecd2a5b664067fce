/* A session's attention over caches that hold everything, what a layer can see, or what a policy keeps.
 *
 * Under a budget (docs/pruning.md) one token's step is: a full cache evicts, the token enters and attends to what is
 * held, and the policy updates its notes. A piece of a prompt runs its projections as a block. Its attention runs token
 * by token, or as blocks if the policy's evictions can be computed in advance (session_prefill.c): N K H D operations
 * in all, and memory for K tokens per layer. A trimmed cache takes a piece as one block: a stage, which the layers
 * share, gets the cache's tokens and then the piece; the attention's own mask leaves out what is too far away; the last
 * K tokens are copied back to the cache. */
#include <stdatomic.h>
#include <string.h>

#include "attention/derive.h"
#include "base/parallel.h"
#include "decode/session_ahead.h"
#include "decode/session_once.h"

enum { BLOCK_FROM = 8 }; /* rows; fewer rows are as fast one by one */

/* The operation on the piece's own arrays, without the outputs that only backward needs. */
static void attend_operation(const struct wn_run *run, const struct wn_session *s, int64_t l,
                             const struct wn_layer_acts *a, struct wn_attention *op, struct wn_kv_rows *rows) {
  struct wn_attention all;
  wn_layer_attention(run, l, a, &all);
  *op = wn_attention_forward_only(&all);
  memset(&op->threshold, 0, sizeof op->threshold); /* the session sets its own */
  op->threshold.on = s->attention.threshold.enabled;
  op->threshold.tau = s->attention.threshold.tau;
  op->rounds = s->rounds;
  *rows = wn_kv_rows_of(op);
}

/* Marks which keys of a call on this cache, whose last row is token `last`, are control tokens. Parts of a layer may
 * run in parallel, so each has its own memory for them. */
static wn_status attend_mark_control(const struct wn_run *run, struct wn_session *s, const struct wn_kv_cache *cache,
                                     int64_t last, struct wn_attention *op) {
  if (!s->control || !op->threshold.on) return WN_OK;
  const int64_t first = s->B * s->parts[cache - s->caches].kv0 * (s->capacity + s->piece);
  op->threshold.control = s->control_keys_shown + first;
  if (op->slots.at && !run->measuring) WN_TRY(wn_kv_cache_positions(s->ctx, cache));
  for (int64_t b = 0; b < s->B && !run->measuring; b++)
    for (int64_t g = 0; g < (op->slots.at ? wn_slot_groups(op) : 1); g++) {
      const int32_t *at = op->slots.at ? cache->at + wn_slot_row(op, b, g) : NULL;
      const int64_t place = first + (wn_control_keys(op, b, g) - op->threshold.control);
      uint8_t *row = s->control_keys + place;
      for (int64_t j = 0; j < op->Tk; j++) row[j] = s->control[b * s->capacity + (at ? at[j] : last - op->Tk + 1 + j)];
      WN_TRY(wn_session_show(s->model, s->control_keys_shown + place, row, (size_t)op->Tk));
    }
  return WN_OK;
}

static wn_status attend_whole(struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                              struct wn_attention *op, const struct wn_kv_rows *rows) {
  const int64_t T = run->T;
  if (!run->measuring) WN_TRY(wn_kv_cache_append(&run->exec, cache, rows, 0, T, NULL));
  wn_kv_cache_bind(cache, T, op);
  WN_TRY(attend_mark_control(run, s, cache, s->position + T - 1, op));
  const int64_t P = T > 1 && op->slots.at ? wn_slot_groups(op) : 1; /* several rows of groups with keys of their own */
  for (int64_t g = 0; g < P; g++) {
    const struct wn_attention one = P > 1 ? wn_attention_of_heads(op, run->exec.dtype, g, 1) : *op;
    WN_TRY(wn_session_attention_forward(run, s, cache - s->caches, &one));
  }
  if (!run->measuring) wn_kv_cache_advance(cache, T);
  return WN_OK;
}

/* Streaming with cache positions: rotates the n-th oldest key held to position n, and the query in the same way. */
static wn_status attend_rotate_by_cache_position(struct wn_run *run, struct wn_session *s,
                                                 const struct wn_kv_cache *cache, struct wn_attention *op) {
  const wn_model_config *c = &s->model->config;
  const struct wn_kv_shape *shape = &cache->shape;
  const int64_t K = shape->capacity, D = shape->D, Hkv = shape->Hkv, n = cache->count + 1;
  const int64_t evicted = cache->seen + 1 - n, sinks = wn_policy_sinks(&s->budgets, K);
  const struct wn_gather keys = {.B = shape->B,
                                 .H = Hkv,
                                 .T = n,
                                 .D = D,
                                 .x = cache->k,
                                 .s_x = {Hkv * K * D, D, K * D},
                                 .y = s->rotated,
                                 .s_y = {n * Hkv * D, Hkv * D, D}};
  if (!run->measuring) WN_TRY(wn_kv_cache_positions(s->ctx, cache));
  for (int64_t b = 0; b < shape->B && !run->measuring; b++) {
    const int32_t *at = cache->at + b * K; /* the sinks come first; the others are consecutive */
    for (int64_t j = 0; j < n; j++) s->cache_positions[b * n + j] = (int32_t)(at[j] < sinks ? at[j] : at[j] - evicted);
  }
  if (!run->measuring) {
    const size_t bytes = (size_t)(shape->B * n) * sizeof *s->cache_positions;
    WN_TRY(wn_session_show(s->model, s->cache_positions_shown, s->cache_positions, bytes));
    WN_TRY(wn_op_gather_forward(&run->exec, &keys));
  }
  op->k = s->rotated;
  op->s_k = (struct wn_stride){n * Hkv * D, Hkv * D, D};
  op->slots.at = s->cache_positions_shown;
  op->slots.groups = 1;
  op->slots.stride = n;
  if (c->position != WN_POS_ROPE) return WN_OK;
  struct wn_rope rope = wn_run_rotation(run, s->parts[cache - s->caches].layer);
  rope.rows = shape->B * n, rope.heads = Hkv;
  rope.x = s->rotated, rope.ldx = Hkv * D;
  rope.positions = s->cache_positions_shown;
  WN_TRY(wn_run_rope_forward(run, &rope));
  for (int64_t b = 0; b < shape->B; b++) {
    rope.rows = 1;
    rope.heads = c->heads;
    rope.x = wn_element(op->q, b * op->s_q.b, shape->dtype);
    rope.ldx = c->heads * D;
    rope.positions = s->cache_positions_shown + b * n + n - 1;
    WN_TRY(wn_run_rope_forward(run, &rope));
  }
  return WN_OK;
}

/* Row t of the piece enters the cache, in which a full one has made room for it; *row: its call. Copies may be left for
 * later, and the call must then follow them. */
static wn_status attend_enter(struct wn_run *run, struct wn_session *s, int64_t part, const struct wn_attention *op,
                              const struct wn_kv_rows *rows, int64_t t, struct wn_kv_later *later,
                              struct wn_attention *row) {
  struct wn_kv_cache *cache = &s->caches[part];
  const int64_t l = s->parts[part].layer, head = s->B * s->parts[part].kv0; /* parts may run in parallel */
  const bool policy =
      s->parts[part].kind == WN_LAYER_BUDGET && (run->measuring || cache->notes || wn_session_evicts(s));
  void *room = s->policy_room ? s->policy_room + head * s->policy_room_of_group : NULL;
  if (!run->measuring) {
    const bool full = cache->count == cache->shape.capacity;
    if (full && policy) WN_TRY(wn_kv_cache_evict(&run->exec, cache, &s->budgets, l, room));
    if (full && !policy) WN_TRY(wn_kv_cache_evict_oldest(&run->exec, cache));
    WN_TRY(wn_kv_cache_append(&run->exec, cache, rows, t, 1, later));
  }
  *row = wn_attention_of_rows(op, run->exec.dtype, t, 1);
  wn_kv_cache_bind(cache, 1, row);
  WN_TRY(attend_mark_control(run, s, cache, s->position + t, row));
  if (policy) row->slots.sums = wn_element(s->sums, head * s->largest, run->exec.dtype);
  return wn_session_by_cache_position(s, l) ? attend_rotate_by_cache_position(run, s, cache, row) : WN_OK;
}

/* After the row's attention: it counts from now on. */
static wn_status attend_leave(struct wn_run *run, struct wn_session *s, int64_t part, const struct wn_attention *row) {
  struct wn_kv_cache *cache = &s->caches[part];
  if (row->slots.sums) WN_TRY(wn_kv_cache_follow(&run->exec, cache, &s->budgets, row->slots.sums));
  wn_kv_cache_advance(cache, 1);
  return WN_OK;
}

static wn_status attend_rows(struct wn_run *run, struct wn_session *s, int64_t part, const struct wn_attention *op,
                             const struct wn_kv_rows *rows) {
  for (int64_t t = 0; t < run->T; t++) {
    struct wn_attention row;
    WN_TRY(attend_enter(run, s, part, op, rows, t, NULL, &row));
    WN_TRY(wn_session_attention_forward(run, s, part, &row));
    if (run->measuring) return WN_OK;
    WN_TRY(attend_leave(run, s, part, &row));
  }
  return WN_OK;
}

/* A piece after the tokens of a trimmed cache, all in order. Positions are not needed: a wrong "first token" would
 * matter only to protect_first, and no row sees it. */
static wn_status attend_staged(struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                               struct wn_attention *op, const struct wn_kv_rows *rows) {
  struct wn_kv_cache *stage = &s->room->stage.cache;
  int32_t *slots = s->room->stage.slots;
  WN_TRY(wn_session_stage(run, s, cache, rows, 0, run->T));
  wn_kv_cache_bind(stage, run->T, op);
  op->slots.at = NULL;
  WN_TRY(attend_mark_control(run, s, cache, s->position + run->T - 1, op));
  WN_TRY(wn_session_attention_forward(run, s, cache - s->caches, op));
  if (run->measuring) return WN_OK;
  wn_kv_cache_advance(stage, run->T);
  const int64_t K = cache->shape.capacity, n = stage->count < K ? stage->count : K;
  for (int64_t r = 0; r < s->B; r++)
    for (int64_t j = 0; j < n; j++) slots[r * n + j] = (int32_t)(stage->count - n + j);
  return wn_session_unstage(run, s, slots, n, cache);
}

/* Measures what a part needs that will be compressed: with everything in order, with what has stayed, and under "hold"
 * as a full cache. */
static wn_status attend_measure_compressed(struct wn_run *run, struct wn_session *s, int64_t part,
                                           struct wn_attention *op, const struct wn_kv_rows *rows, bool full) {
  struct wn_kv_cache *cache = &s->caches[part];
  const int64_t K = cache->shape.capacity, T = run->T;
  const bool block = T >= BLOCK_FROM && s->blocks_of_rows;
  const bool hold = s->budgets.when == WN_WHEN_HOLD;
  cache->count = full && K > T ? K - T : 0;
  for (int gaps = 0; gaps < 2; gaps++) {
    struct wn_attention now = *op;
    cache->seen = cache->count + gaps;
    if (!cache->notes) WN_TRY(attend_whole(run, s, cache, &now, rows));
    now = *op;
    if ((cache->notes || hold) && !block) WN_TRY(attend_rows(run, s, part, &now, rows));
    if ((cache->notes || hold) && block) WN_TRY(wn_session_attend_blocks(run, s, part, &now, rows));
  }
  return WN_OK;
}

static wn_status attend_part(struct wn_run *run, struct wn_session *s, int64_t part, struct wn_attention *op,
                             const struct wn_kv_rows *rows, bool full) {
  struct wn_kv_cache *cache = &s->caches[part];
  const enum wn_session_kind kind = s->parts[part].kind;
  const int64_t K = cache->shape.capacity, T = run->T;
  const bool budget = kind == WN_LAYER_BUDGET, rotates = budget && s->budgets.cache_positions;
  const bool block = T >= BLOCK_FROM && (rotates ? s->cache_position_blocks : s->blocks_of_rows);
  const bool notes = cache->notes != NULL; /* every row changes the notes */
  if (run->measuring && budget && s->budgets.when != WN_WHEN_ALWAYS)
    return attend_measure_compressed(run, s, part, op, rows, full);
  if (run->measuring) {
    cache->seen = full ? s->capacity : 0;
    cache->count = !full ? 0 : kind == WN_LAYER_WHOLE ? K - T : T == 1 || (budget && !block) ? K - 1 : K;
  }
  if (kind == WN_LAYER_WHOLE || (budget && !notes && !wn_session_evicts(s)))
    return attend_whole(run, s, cache, op, rows);
  if (budget && !block) return attend_rows(run, s, part, op, rows);
  if (rotates) return wn_session_attend_cache_position_blocks(run, s, part, op, rows);
  if ((run->measuring ? !full : cache->seen + T <= K) && !notes) return attend_whole(run, s, cache, op, rows);
  if (budget) return wn_session_attend_blocks(run, s, part, op, rows);
  if (T > 1) return attend_staged(run, s, cache, op, rows);
  return attend_rows(run, s, part, op, rows);
}

/* The attention of part i of a layer whose operation is `op`. */
static wn_status attend_heads(struct wn_run *run, struct wn_session *s, int64_t i, const struct wn_attention *op,
                              const struct wn_kv_rows *rows, bool full) {
  const struct wn_session_part *part = &s->parts[i];
  const wn_dtype dtype = run->exec.dtype;
  struct wn_attention of = wn_attention_of_heads(op, dtype, part->kv0, part->kv_heads);
  const struct wn_kv_rows fresh = wn_kv_rows_of_heads(rows, dtype, part->kv0);
  return attend_part(run, s, i, &of, &fresh, full);
}

/* What threads compute: the parts of a layer, or the rows of several tokens. */
struct attend_apart {
  struct wn_run *run; /* the rows have one each */
  struct wn_session *s;
  int64_t l, n;
  const struct wn_attention *op;
  const struct wn_kv_rows *rows;
  const struct wn_layer_acts *a;
  bool full;
  atomic_int status;
};
static void attend_apart_part(void *args, int64_t i) {
  struct attend_apart *x = args;
  struct wn_run one = *x->run;
  one.exec.scratch_bytes = one.exec.scratch_bytes / (size_t)one.exec.threads / WN_ALIGN * WN_ALIGN;
  one.exec.scratch = (char *)one.exec.scratch + (size_t)wn_hand() * one.exec.scratch_bytes;
  one.exec.threads = 1;
  const wn_status here = attend_heads(&one, x->s, x->s->first[x->l] + i, x->op, x->rows, x->full);
  if (here != WN_OK) x->status = (int)here;
}

/* For single rows: one thread per part, because the parts' operations are small. */
static wn_status attend_heads_apart(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *op,
                                    const struct wn_kv_rows *rows, bool full) {
  const int64_t first = s->first[l], end = s->first[l + 1];
  const int threads = run->exec.threads;
  if (run->measuring) {
    struct wn_run one = *run;
    one.exec.threads = 1, one.need = 0;
    for (int64_t i = first; i < end; i++) WN_TRY(attend_heads(&one, s, i, op, rows, full));
    const size_t need = (one.need + WN_ALIGN) * (size_t)threads;
    if (need > run->need) run->need = need;
    return WN_OK;
  }
  struct attend_apart x = {.run = run, .s = s, .l = l, .op = op, .rows = rows, .full = full, .status = WN_OK};
  wn_parallel_tasks(threads, end - first, attend_apart_part, &x);
  return (wn_status)x.status;
}

wn_status wn_session_attend(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                            bool full) {
  struct wn_attention op;
  struct wn_kv_rows rows;
  attend_operation(run, s, l, a, &op, &rows);
  WN_TRY(wn_session_once_see(run, s, l, &op, &rows));
  const int64_t first = s->first[l], end = s->first[l + 1];
  if (end - first == 1) return attend_part(run, s, first, &op, &rows, full);
  /* If the backend's memory is not the host's, a context's calls come one after the other. */
  const bool beside = run->T == 1 && run->exec.threads > 1 && wn_run_memory(run)->host;
  if (beside) return attend_heads_apart(run, s, l, &op, &rows, full);
  for (int64_t i = first; i < end; i++) WN_TRY(attend_heads(run, s, i, &op, &rows, full));
  return WN_OK;
}

bool wn_session_attends_together(const struct wn_session *s, int64_t l) {
  return s->B == 1 && s->first[l + 1] - s->first[l] == 1 && !s->counts && !wn_session_by_cache_position(s, l);
}

wn_status wn_session_attend_begin(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                                  struct wn_kv_later *later, struct wn_attention *row) {
  struct wn_attention op;
  struct wn_kv_rows rows;
  attend_operation(run, s, l, a, &op, &rows);
  WN_TRY(wn_session_once_see(run, s, l, &op, &rows));
  return attend_enter(run, s, s->first[l], &op, &rows, 0, later, row);
}

wn_status wn_session_attend_end(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *row) {
  return attend_leave(run, s, s->first[l], row);
}

/* One row after the other, because each changes F or evicts a token: what is changed is kept for each row. */
static wn_status attend_ahead_in_turn(struct wn_run *runs, struct wn_session *s, int64_t l,
                                      const struct wn_layer_acts *a, int64_t n, int threads) {
  for (int64_t j = 0; j < n; j++) {
    struct wn_attention op;
    struct wn_kv_rows rows;
    runs[j].exec.threads = threads;
    attend_operation(&runs[j], s, l, &a[j], &op, &rows);
    wn_session_ahead_before(s, l, j);
    WN_TRY(attend_rows(&runs[j], s, s->first[l], &op, &rows));
    WN_TRY(wn_session_ahead_after(s, l, j));
  }
  return WN_OK;
}

static void attend_ahead_row(void *args, int64_t j) {
  struct attend_apart *x = args;
  struct wn_session *s = x->s;
  struct wn_run *run = &x->run[j];
  struct wn_attention op;
  struct wn_kv_rows rows;
  run->exec.threads = 1;
  run->exec.scratch = (char *)s->ahead->scratch + (size_t)wn_hand() * s->ahead->scratch_bytes;
  attend_operation(run, s, x->l, &x->a[j], &op, &rows);
  wn_kv_cache_bind(&s->caches[s->first[x->l]], j + 1 - x->n, &op);
  const wn_status here = wn_session_attention_forward(run, s, s->first[x->l], &op);
  if (here != WN_OK) x->status = (int)here;
}

/* In a cache that evicts nothing all rows enter first. Then each row attends to the tokens up to its own: one call a
 * row, with the bits of a single token, and several rows at a time. */
wn_status wn_session_attend_ahead(struct wn_run *runs, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                                  int64_t n, int threads) {
  struct wn_kv_cache *cache = &s->caches[s->first[l]];
  const bool fits = cache->count + n <= cache->shape.capacity;
  if (cache->f || !fits) return attend_ahead_in_turn(runs, s, l, a, n, threads);
  for (int64_t j = 0; j < n; j++) wn_session_ahead_before(s, l, j);
  for (int64_t j = 0; j < n; j++) {
    struct wn_attention op;
    struct wn_kv_rows rows;
    attend_operation(&runs[j], s, l, &a[j], &op, &rows);
    WN_TRY(wn_kv_cache_append(&runs[j].exec, cache, &rows, 0, 1, NULL));
    wn_kv_cache_advance(cache, 1);
  }
  struct attend_apart x = {.run = runs, .s = s, .l = l, .n = n, .a = a, .status = WN_OK};
  wn_parallel_tasks(threads, n, attend_ahead_row, &x);
  return (wn_status)x.status;
}
