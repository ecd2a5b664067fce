/* A piece of a prompt under the policy streaming with cache_positions, where tokens are rotated by their cache
 * positions (Xiao et al. 2023, section 3.2), in blocks of rows. The cache holds keys before rotation.
 *
 * Under a budget of K the row at position i >= K sees s sinks at cache positions 0..s-1 and the last K-s tokens at
 * s..K-1, itself at the last one. Rotated logits depend only on distances. Between the row and its recent tokens these
 * are the distances in the text; between the row and sink j the distance is K-1-j in every row. So a block is two
 * attention calls, combined by their sums of exponentials:
 *
 *   recent   q and k rotated by positions in the text (counted from the oldest key), a window of K-s: y1, lse1
 *   sinks    q rotated to K-1, sink j to j; every row sees every sink:                                 y2, lse2
 *   y = (exp(lse1) y1 + exp(lse2) y2) / (exp(lse1) + exp(lse2))
 *
 * Rows before the K-th see everything, at cache positions equal to those of the text: one causal call. R rows take R (K
 * + R) H D operations in the attention. Computed one by one (session_attend.c) they take R K H D, and rotate R K Hkv D
 * numbers in addition. With terms that depend on more than a key's logit (those without WN_TRAIT_LOGIT) rows are
 * computed one by one. */
#include <math.h>
#include <string.h>

#include "attention/derive.h"
#include "attention/registry.h"
#include "decode/session.h"
#include "ops/terms.h"

/* Rotates x [rows,heads,D] in place; ldx: stride between rows. */
static wn_status positions_rotate(struct wn_run *run, int64_t l, void *x, int64_t rows, int64_t heads, int64_t ldx,
                                  const int32_t *positions) {
  struct wn_rope a = wn_run_rotation(run, l);
  if (rows == 0) return WN_OK;
  a.rows = rows, a.heads = heads;
  a.x = x, a.ldx = ldx;
  a.positions = positions;
  return wn_run_rope_forward(run, &a);
}

/* Rotates keys j0..j0+n-1 of the stage, in each sequence and head. */
static wn_status positions_rotate_keys(struct wn_run *run, struct wn_session *s, int64_t l, int64_t j0, int64_t n,
                                       const int32_t *positions) {
  const struct wn_kv_cache *stage = &s->room->stage.cache;
  const struct wn_kv_shape *shape = &stage->shape;
  for (int64_t i = 0; i < shape->B * shape->Hkv; i++)
    WN_TRY(positions_rotate(run, l, wn_element(stage->k, (i * shape->capacity + j0) * shape->D, shape->dtype), n, 1,
                            shape->D, positions));
  return WN_OK;
}

static wn_status positions_rotate_queries(struct wn_run *run, int64_t l, const struct wn_attention *op,
                                          const int32_t *positions) {
  for (int64_t b = 0; b < op->B; b++)
    WN_TRY(positions_rotate(run, l, wn_element(op->q, b * op->s_q.b, run->exec.dtype), op->Tq, op->H, op->s_q.t,
                            positions));
  return WN_OK;
}

/* Copies the unrotated queries into a contiguous array. */
static void positions_copy_queries(const struct wn_attention *op, wn_dtype dtype, void *out) {
  const size_t bytes = (size_t)op->D * wn_dtype_size(dtype);
  for (int64_t b = 0; b < op->B; b++)
    for (int64_t t = 0; t < op->Tq; t++)
      for (int64_t h = 0; h < op->H; h++)
        memcpy(wn_element(out, ((b * op->Tq + t) * op->H + h) * op->D, dtype),
               wn_element(op->q, b * op->s_q.b + t * op->s_q.t + h * op->s_q.h, dtype), bytes);
}

/* Sets keys j0..j0+n-1 of the stage as the operation's keys. */
static void positions_bind(const struct wn_kv_cache *stage, int64_t j0, int64_t n, struct wn_attention *op) {
  const struct wn_kv_shape *shape = &stage->shape;
  op->Tk = n;
  op->k = wn_element(stage->k, j0 * shape->D, shape->dtype);
  op->v = wn_element(stage->v, j0 * shape->D, shape->dtype);
  op->s_k = op->s_v = (struct wn_stride){shape->Hkv * shape->capacity * shape->D, shape->D, shape->capacity * shape->D};
  op->slots.at = op->slots.evicted_at = NULL;
}

/* Combines y of the recent tokens with that of the sinks [B,T,H,D]. */
static void positions_combine(const struct wn_attention *op, const struct wn_room_stage *p, wn_dtype dtype) {
  for (int64_t b = 0; b < op->B; b++)
    for (int64_t t = 0; t < op->Tq; t++)
      for (int64_t h = 0; h < op->H; h++) {
        const int64_t row = (b * op->H + h) * op->Tq + t, at = b * op->s_y.b + t * op->s_y.t + h * op->s_y.h,
                      from = ((b * op->Tq + t) * op->H + h) * op->D;
        if (dtype == WN_F64) {
          const double part = 1 / (1 + exp(((const double *)p->lse)[row] - ((const double *)p->lse_sinks)[row]));
          double *y = (double *)op->y + at;
          const double *sinks = (const double *)p->y + from;
          for (int64_t d = 0; d < op->D; d++) y[d] += part * (sinks[d] - y[d]);
        } else {
          const float part = 1 / (1 + expf(((const float *)p->lse)[row] - ((const float *)p->lse_sinks)[row]));
          float *y = (float *)op->y + at;
          const float *sinks = (const float *)p->y + from;
          for (int64_t d = 0; d < op->D; d++) y[d] += part * (sinks[d] - y[d]);
        }
      }
}

/* Rows t0..t0+T-1 of the operation: either all of them come before the K-th of the text, or none. */
static wn_status positions_attend_block(struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                                        const struct wn_attention *op, const struct wn_kv_rows *rows, int64_t t0,
                                        int64_t T) {
  const struct wn_room_stage *p = &s->room->stage;
  struct wn_kv_cache *stage = &s->room->stage.cache;
  const int64_t l = s->parts[cache - s->caches].layer;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t K = cache->shape.capacity, n = cache->count + T, left = n < K ? n : K;
  const int64_t first = cache->seen, sinks = first < K ? 0 : wn_policy_sinks(&s->budgets, K), recent = n - sinks;
  struct wn_attention block = wn_attention_of_rows(op, dtype, t0, T);
  WN_TRY(wn_session_stage(run, s, cache, rows, t0, T));
  if (!run->measuring) { /* tokens that stay are copied back to the cache before they are rotated */
    wn_kv_cache_advance(stage, T);
    for (int64_t b = 0; b < s->B; b++)
      for (int64_t j = 0; j < left; j++) p->slots[b * left + j] = (int32_t)(j < sinks ? j : n - left + j);
    if (first < K && n > K) return wn_fail(s->ctx, WN_ERR_ARGUMENT, "session: a block across its budget");
    WN_TRY(wn_session_unstage(run, s, p->slots, left, cache));
    positions_copy_queries(&block, dtype, p->q);
    for (int64_t j = 0; j < recent; j++) p->positions[j] = (int32_t)j;
  }
  WN_TRY(positions_rotate_keys(run, s, l, sinks, recent, p->positions));
  WN_TRY(positions_rotate_queries(run, l, &block, p->positions + (run->measuring ? 0 : recent - T)));
  positions_bind(stage, sinks, recent, &block);
  if (first >= K) block.window = K - sinks;
  if (sinks > 0) block.lse = p->lse;
  WN_TRY(wn_run_attention_forward(run, &block));
  if (sinks == 0) return WN_OK;
  struct wn_attention others = block;
  others.q = p->q, others.y = p->y, others.lse = p->lse_sinks;
  others.s_q = others.s_y = (struct wn_stride){T * op->H * op->D, op->H * op->D, op->D};
  others.window = 0, others.open = true;
  for (int64_t j = 0; j < sinks && !run->measuring; j++) p->positions[j] = (int32_t)j;
  WN_TRY(positions_rotate_keys(run, s, l, 0, sinks, p->positions));
  for (int64_t t = 0; t < T && !run->measuring; t++) p->positions[t] = (int32_t)(K - 1);
  WN_TRY(positions_rotate_queries(run, l, &others, p->positions));
  positions_bind(stage, 0, sinks, &others);
  WN_TRY(wn_run_attention_forward(run, &others));
  if (!run->measuring) positions_combine(&block, p, dtype);
  return WN_OK;
}

wn_status wn_session_attend_cache_position_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                                  const struct wn_attention *op, const struct wn_kv_rows *rows) {
  struct wn_kv_cache *cache = &s->caches[part];
  const int64_t K = cache->shape.capacity;
  for (int64_t t = 0, T; t < run->T; t += T) {
    T = run->T - t < WN_SESSION_BLOCK ? run->T - t : WN_SESSION_BLOCK;
    if (cache->seen < K && T > K - cache->seen) T = K - cache->seen;
    WN_TRY(positions_attend_block(run, s, cache, op, rows, t, T));
    if (run->measuring) return WN_OK;
  }
  return WN_OK;
}
