/* A layer's attention in an evaluation (reuse.h): the new positions' queries over the held keys and values and the new
 * ones. F at the first new position is summed from the held selecting queries, and the evictions are those of the
 * current budget. */
#include <string.h>

#include "attention/derive.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "prune/reuse.h"

enum { TILE = 64 }; /* rows of the tiles in which attention computes sums */

int64_t wn_reuse_kv_width(const struct wn_reuse *r) {
  return r->model->config.kv_heads * r->model->config.head_size;
}

void wn_reuse_copy(const struct wn_reuse *r, int64_t B, struct wn_reuse_rows to, struct wn_reuse_rows from,
                   int64_t first, int64_t count) {
  const int64_t T = r->set->T, width = to.width;
  for (int64_t b = 0; b < B; b++)
    memcpy(to.x + ((to.row + b) * T + first) * width, from.x + ((from.row + b) * T + first) * width,
           (size_t)(count * width) * sizeof *to.x);
}

/* Copies the run's new positions, [B,n] with stride s and `width` values each, into `to` [B,T,width]. */
static void reuse_place_new(const struct wn_reuse *r, const struct wn_reuse_task *t, const float *from,
                            struct wn_stride s, int64_t width, float *to) {
  const int64_t T = r->set->T;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = t->first; i < T; i++)
      memcpy(to + (b * T + i) * width, from + b * s.b + (i - t->first) * s.t, (size_t)width * sizeof *to);
}

static struct wn_stride reuse_whole(const struct wn_reuse *r, int64_t width, int64_t D) {
  return (struct wn_stride){r->set->T * width, width, D};
}

/* Gathers the layer's keys, values and selecting queries for all positions in r->k ..., with the new positions of `op`.
 * For the first layer that changes all of them are held already. */
static void reuse_gather(struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l, const struct wn_attention *op,
                         struct wn_reuse_held *out) {
  const struct wn_reuse_held *h = &r->state.layers[l];
  const wn_model_config *c = &r->model->config;
  const int64_t D = c->head_size, W = wn_reuse_kv_width(r), before = t->first;
  if (!t->fresh && l == t->first_layer) {
    *out = *h;
    const int64_t at = t->row0 * r->set->T;
    out->k += at * W, out->v += at * W;
    if (h->sq) out->sq += at * r->select_width;
    if (h->sk) out->sk += at * r->select_width;
    return;
  }
  *out = (struct wn_reuse_held){.k = r->k, .v = r->v, .sq = r->sq, .sk = r->sk};
  wn_reuse_copy(r, t->B, (struct wn_reuse_rows){r->k, 0, W}, (struct wn_reuse_rows){h->k, t->row0, W}, 0, before);
  wn_reuse_copy(r, t->B, (struct wn_reuse_rows){r->v, 0, W}, (struct wn_reuse_rows){h->v, t->row0, W}, 0, before);
  reuse_place_new(r, t, op->k, op->s_k, W, r->k);
  reuse_place_new(r, t, op->v, op->s_v, W, r->v);
  if (!h->sq) return;
  wn_reuse_copy(r, t->B, (struct wn_reuse_rows){r->sq, 0, r->select_width},
                (struct wn_reuse_rows){h->sq, t->row0, r->select_width}, 0, before);
  if (h->sk) {
    wn_reuse_copy(r, t->B, (struct wn_reuse_rows){r->sk, 0, r->select_width},
                  (struct wn_reuse_rows){h->sk, t->row0, r->select_width}, 0, before);
    reuse_place_new(r, t, op->sel.sq, op->sel.s_sq, r->select_width, r->sq);
    reuse_place_new(r, t, op->sel.sk, op->sel.s_sk, r->select_width, r->sk);
    return;
  }
  const int64_t apart = c->heads / r->select_heads, T = r->set->T;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = before; i < T; i++)
      for (int64_t g = 0; g < r->select_heads; g++)
        memcpy(r->sq + ((b * T + i) * r->select_heads + g) * D,
               (const float *)op->q + b * op->s_q.b + (i - before) * op->s_q.t + (g * apart + op->sel.head) * op->s_q.h,
               (size_t)D * sizeof(float));
}

/* A call for the layer's selection only, over positions 0 .. T-1, with one head for each selection. */
static struct wn_attention reuse_selection(const struct wn_reuse *r, const struct wn_reuse_held *h,
                                           const struct wn_attention *op, int64_t T) {
  const int64_t D = op->D, G = r->select_heads;
  struct wn_attention s = wn_attention_selection_only(op, WN_F32);
  s.Tq = s.Tk = T;
  s.q = h->sq, s.s_q = reuse_whole(r, r->select_width, D);
  s.k = h->k, s.v = h->v, s.s_k = s.s_v = reuse_whole(r, wn_reuse_kv_width(r), D);
  if (G == 1 && op->Hkv > 1 && !op->sel.bilinear) /* the selecting head's own keys */
    s.k = h->k + op->sel.head / (op->H / op->Hkv) * D;
  if (op->sel.bilinear) {
    s.sel.sq = h->sq, s.sel.sk = h->sk;
    s.sel.s_sq = s.sel.s_sk = reuse_whole(r, r->select_width, D);
  }
  s.y = r->y, s.s_y = reuse_whole(r, r->select_width, D);
  return s;
}

/* Copies the held selecting queries of positions from..t->first-1 into the first rows of a call that begins at
 * `from`. */
static void reuse_place_selecting(const struct wn_reuse *r, const struct wn_reuse_task *t, int64_t from,
                                  const struct wn_reuse_held *h, const struct wn_attention *a) {
  const int64_t T = r->set->T, D = a->D, G = r->select_heads;
  const bool own = a->sel.bilinear;
  const struct wn_stride s = own ? a->sel.s_sq : a->s_q;
  const int64_t first = own ? 0 : a->sel.head, apart = own ? 1 : a->H / G;
  float *to = (float *)(uintptr_t)(own ? a->sel.sq : a->q);
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = 0; i < t->first - from; i++)
      for (int64_t g = 0; g < G; g++)
        memcpy(to + b * s.b + i * s.t + (g * apart + first) * s.h, h->sq + ((b * T + from + i) * G + g) * D,
               (size_t)D * sizeof *to);
}

/* Runs the call with rows from the start of a tile on: sums over rows begin at tiles, so only then are all bits those
 * of a whole pass. Of the rows before the first changed one only the selecting queries are known and needed; their
 * output is dropped. */
static wn_status reuse_attend_from(struct wn_run *run, struct wn_reuse *r, const struct wn_reuse_task *t, int64_t from,
                                   const struct wn_attention *op, const struct wn_reuse_held *h) {
  const int64_t skip = t->first - from, n = r->set->T - t->first;
  struct wn_arrays rows = {.base = run->measuring ? NULL : r->rows};
  const struct wn_attention a = wn_attention_with_rows_before(op, WN_F32, skip, &rows);
  if (run->measuring) {
    struct wn_arrays most = {0}; /* a task that begins within the first tile computes all positions */
    wn_attention_with_rows_before(op, WN_F32, t->first, &most);
    if (most.bytes > r->rows_bytes) r->rows_bytes = most.bytes;
    return wn_run_attention_forward(run, &a);
  }
  if (r->select_heads > 0) reuse_place_selecting(r, t, from, h, &a);
  WN_TRY(wn_run_attention_forward(run, &a));
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = 0; i < n; i++)
      memcpy((float *)op->y + b * op->s_y.b + i * op->s_y.t, (const float *)a.y + b * a.s_y.b + (skip + i) * a.s_y.t,
             (size_t)(op->H * op->D) * sizeof(float));
  return WN_OK;
}

/* The attention of the new positions over all keys (reuse.h). */
wn_status wn_reuse_attend(struct wn_run *run, struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l,
                          struct wn_layer_acts *a, struct wn_reuse_held *h) {
  const int64_t T = r->set->T, D = r->model->config.head_size;
  struct wn_attention op;
  wn_layer_attention(run, l, a, &op);
  op = wn_attention_forward_only(&op);
  if (run->measuring)
    *h = (struct wn_reuse_held){.k = r->k, .v = r->v, .sq = r->sq, .sk = r->sk};
  else
    reuse_gather(r, t, l, &op, h);
  op.k = h->k, op.v = h->v;
  op.s_k = op.s_v = reuse_whole(r, wn_reuse_kv_width(r), D);
  if (h->sk) op.sel.sk = h->sk, op.sel.s_sk = reuse_whole(r, r->select_width, D);
  op.Tk = T;
  if (run->measuring || wn_evictions_any(t->budgets, l, T)) {
    struct wn_attention all = op;
    if (t->first > 0 && wn_policy_needs(t->budgets) & WN_POLICY_SELECTIONS) all = reuse_selection(r, h, &op, T);
    all.Tq =
        T; /* the queries of earlier positions are missing, but policies that allow a later start do not read them */
    if (run->measuring) {
      const size_t need = wn_evictions_scratch(&run->exec, t->budgets, &all);
      if (need > run->need) run->need = need;
    } else {
      WN_TRY(wn_evictions_find(&run->exec, t->budgets, l, &all, r->evicted_at));
    }
    op.slots.groups = wn_policy_groups(t->budgets, op.Hkv, r->select_heads);
    op.slots.evicted_at = r->evicted_at;
  }
  const int64_t from = t->first / TILE * TILE;
  if (r->select_heads > 0 && from > 0) { /* computes F at the first row */
    struct wn_attention before = reuse_selection(r, h, &op, from);
    if (!run->measuring) memset(r->f, 0, (size_t)(t->B * r->select_heads * T) * sizeof *r->f);
    before.sel.f_out = r->f;
    before.sel.f_stride = T;
    WN_TRY(wn_run_attention_forward(run, &before));
    op.sel.f_in = r->f;
    op.sel.f_stride = T;
  }
  if (from == t->first) return wn_run_attention_forward(run, &op);
  return reuse_attend_from(run, r, t, from, &op, h);
}
