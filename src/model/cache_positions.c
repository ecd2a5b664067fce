/* Whole sequences under a policy whose tokens have their cache positions (streaming with cache_positions; Xiao et al.
 * 2023, section 3.2). Forward only. For the row at position i >= K of a document, the first s tokens are at cache
 * positions 0..s-1 and the last K - s at s..K-1, the row itself at the last one. Only differences of positions matter
 * to rotary embeddings, and those between the row and the recent tokens are the same in the text and in the cache:
 * their rotation by positions in the text serves. Only the s sinks are rotated again for each row, to where the row
 * sees them at their cache positions: from j to j + i - (K - 1). If a rotated query also meets vectors that are not
 * rotated (relative positions, learned sinks), all K keys and the query are rotated by their cache positions.
 *
 * A document's first K rows are one attention call; every later row is a call of its own over K contiguous keys in a
 * buffer of the document's keys. The tokens before the recent ones are evicted for good, so the sinks are written into
 * their places, directly before the recent ones. Cost of a row: O(K D H) in the attention and O(s D Hkv) outside it.
 * Memory: (T + s) (2 Hkv + H) D numbers per thread, in the backend's memory. The positions by which keys are rotated
 * are consecutive, so they are a part of the array of the document's positions. */
#include <stdatomic.h>

#include "attention/derive.h"
#include "base/parallel.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "model/layer.h"

bool wn_layer_has_cache_positions(const struct wn_run *run, int64_t l) {
  const wn_budgets *b = run->budgets;
  return b && b->cache_positions && !run->grads && (run->measuring || wn_evictions_any(b, l, run->T));
}

/* One thread's buffers, for one document. The token at position j is at row j + s. */
struct work {
  int64_t l;            /* the layer */
  int64_t room;         /* T + s */
  void *q;              /* [T,H,D] rotated by positions in the text */
  void *k, *v, *sk, *f; /* [room,Hkv,D] twice, [room,G,D], [G,room] */
  uint8_t *control;     /* [room] a threshold's control tokens */
  void *scratch;
  size_t scratch_bytes;
};

/* The attention call for rows r0..r0+Tq-1 of a document, on the n keys that start at `from` in the buffers. */
static struct wn_attention positions_call(const struct wn_attention *op, const struct work *w, wn_dtype dtype,
                                          int64_t r0, int64_t Tq, int64_t from, int64_t n) {
  const int64_t HD = op->H * op->D, KD = op->Hkv * op->D, GD = wn_selection_groups(op) * op->D;
  struct wn_attention a = wn_attention_of_tokens(op, dtype, r0, Tq);
  a.Tk = n;
  a.q = wn_element(w->q, r0 * HD, dtype), a.s_q = (struct wn_stride){0, HD, op->D};
  a.k = wn_element(w->k, from * KD, dtype), a.v = wn_element(w->v, from * KD, dtype);
  a.s_k = a.s_v = (struct wn_stride){0, KD, op->D};
  if (op->sel.bilinear) a.sel.sk = wn_element(w->sk, from * GD, dtype), a.sel.s_sk = (struct wn_stride){0, GD, op->D};
  if (op->sel.on) {
    a.sel.f_in = a.sel.f_out = wn_element(w->f, from, dtype);
    a.sel.f_stride = w->room;
  }
  a.doc_start = NULL;
  a.slots.evicted_at = NULL, a.slots.groups = 0;
  if (op->threshold.control) a.threshold.control = w->control + from;
  return a;
}

/* The largest scratch of calls on up to n keys. All sizes are asked for: a backend may need more for fewer keys. */
static size_t positions_scratch(const struct wn_run *run, const struct wn_attention *op, const struct work *w,
                                int64_t n) {
  struct wn_exec one = run->exec;
  struct work there = *w; /* only whether an array is NULL matters here */
  size_t most = 0;
  one.threads = 1;
  there.q = there.k = there.v = there.sk = there.f = &there;
  there.control = (uint8_t *)&there;
  const struct wn_attention all = wn_attention_of_sequence(op, one.dtype, 0);
  for (int64_t i = 1; i <= n; i++) {
    const struct wn_attention first = positions_call(&all, &there, one.dtype, 0, i, 0, i),
                              row = positions_call(&all, &there, one.dtype, 0, 1, 0, i);
    const size_t a = wn_op_attention_scratch(&one, &first, false), b = wn_op_attention_scratch(&one, &row, false);
    if (a > most) most = a;
    if (b > most) most = b;
  }
  return most;
}

static void positions_lay(const struct wn_run *run, const struct wn_attention *op, size_t scratch,
                          struct wn_arrays *arrays, struct work *w) {
  const int64_t T = run->T, sinks = run->budgets->sinks < T ? run->budgets->sinks : T, room = T + sinks;
  const int64_t G = wn_selection_groups(op), D = op->D;
  const size_t e = wn_dtype_size(run->exec.dtype);
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(w->q, e, "queries", true, WN_DIMS(T, op->H, D)),
      WN_ARRAY_SIZED(w->k, e, "keys", true, WN_DIMS(room, op->Hkv, D)),
      WN_ARRAY_SIZED(w->v, e, "values", true, WN_DIMS(room, op->Hkv, D)),
      WN_ARRAY_SIZED(w->sk, e, "selecting keys", op->sel.bilinear, WN_DIMS(room, G, D)),
      WN_ARRAY_SIZED(w->f, e, "selections", op->sel.on, WN_DIMS(room, G)),
      WN_ARRAY_SIZED(w->control, 1, "control tokens", op->threshold.control != NULL, WN_DIMS(room)),
      WN_ARRAY_SIZED(w->scratch, 1, "scratch", true, WN_DIMS((int64_t)scratch)),
  };
  *w = (struct work){.room = room, .scratch_bytes = scratch};
  WN_ARRAYS_LAY(arrays, rows);
}

/* Copies [rows,heads,D] into contiguous rows. */
static wn_status positions_copy(const struct wn_exec *exec, const void *from, struct wn_stride s, int64_t rows,
                                int64_t heads, int64_t D, void *to) {
  return wn_op_gather_forward(
      exec, &(struct wn_gather){
                .B = 1, .H = heads, .T = rows, .D = D, .x = from, .s_x = s, .y = to, .s_y = {0, heads * D, D}});
}

static wn_status positions_turn(const struct wn_exec *exec, const struct wn_run *run, int64_t l, int64_t rows,
                                int64_t heads, void *x, const int32_t *positions) {
  if (run->model->config.position != WN_POS_ROPE || rows == 0) return WN_OK;
  struct wn_rope a = wn_run_rotation(run, l);
  a.rows = rows, a.heads = heads;
  a.x = x, a.ldx = heads * run->model->config.head_size;
  a.positions = positions;
  return wn_op_rope_forward(exec, &a);
}

/* Where the K keys of the row at position i start in the buffers; the last is at s + i. */
static int64_t positions_first(int64_t K, int64_t s, int64_t i) {
  return i - K + s + 1;
}

/* Writes the sinks before the recent tokens of the row at position i; F moves with them. positions: the document's, 0,
 * 1, ... */
static wn_status positions_put_sinks(const struct wn_exec *exec, const struct wn_run *run,
                                     const struct wn_attention *op, const struct work *w, int64_t s, int64_t K,
                                     int64_t i, const int32_t *positions) {
  const int64_t from = positions_first(K, s, i);
  const wn_dtype dtype = exec->dtype;
  const struct wn_memory *memory = exec->backend->memory;
  const int64_t KD = op->Hkv * op->D, G = wn_selection_groups(op);
  WN_TRY(positions_copy(exec, op->k, op->s_k, s, op->Hkv, op->D, wn_element(w->k, from * KD, dtype)));
  WN_TRY(positions_copy(exec, op->v, op->s_v, s, op->Hkv, op->D, wn_element(w->v, from * KD, dtype)));
  if (op->sel.bilinear)
    WN_TRY(positions_copy(exec, op->sel.sk, op->sel.s_sk, s, G, op->D, wn_element(w->sk, from * G * op->D, dtype)));
  if (op->threshold.control) WN_TRY(memory->copy(exec->ctx, w->control + from, op->threshold.control, (size_t)s));
  for (int64_t g = 0; op->sel.on && g < G; g++) {
    /* For the row before they were one place earlier; before row K they are where the first K rows left them. */
    const int64_t was = i == K ? s : from - 1;
    WN_TRY(memory->copy(exec->ctx, wn_element(w->f, g * w->room + from, dtype),
                        wn_element(w->f, g * w->room + was, dtype), (size_t)s * wn_dtype_size(dtype)));
  }
  if (run->model->config.position != WN_POS_ROPE) return WN_OK;
  const bool anew = op->relative.P > 0 || op->sinks.n > 0;
  if (!anew)
    return positions_turn(exec, run, w->l, s, op->Hkv, wn_element(w->k, from * KD, dtype), positions + i - (K - 1));
  WN_TRY(positions_copy(exec, wn_element(op->k, (i - (K - s) + 1) * op->s_k.t, dtype), op->s_k, K - s, op->Hkv, op->D,
                        wn_element(w->k, (from + s) * KD, dtype)));
  void *q = wn_element(w->q, i * op->H * op->D, dtype);
  WN_TRY(positions_copy(exec, wn_element(op->q, i * op->s_q.t, dtype), op->s_q, 1, op->H, op->D, q));
  WN_TRY(positions_turn(exec, run, w->l, K, op->Hkv, wn_element(w->k, from * KD, dtype), positions));
  return positions_turn(exec, run, w->l, 1, op->H, q, positions + K - 1);
}

/* A document of `rows` tokens; op begins at its first one. */
static wn_status positions_document(const struct wn_exec *exec, const struct wn_run *run, const struct wn_attention *op,
                                    const struct work *w, int64_t K, int64_t s, int64_t rows,
                                    const int32_t *positions) {
  const wn_dtype dtype = exec->dtype;
  const struct wn_memory *memory = exec->backend->memory;
  const int64_t KD = op->Hkv * op->D, G = wn_selection_groups(op), first = rows < K ? rows : K;
  void *k = wn_element(w->k, s * KD, dtype);
  WN_TRY(positions_copy(exec, op->q, op->s_q, rows, op->H, op->D, w->q));
  WN_TRY(positions_copy(exec, op->k, op->s_k, rows, op->Hkv, op->D, k));
  WN_TRY(positions_copy(exec, op->v, op->s_v, rows, op->Hkv, op->D, wn_element(w->v, s * KD, dtype)));
  if (op->sel.bilinear)
    WN_TRY(positions_copy(exec, op->sel.sk, op->sel.s_sk, rows, G, op->D, wn_element(w->sk, s * G * op->D, dtype)));
  if (op->threshold.control) WN_TRY(memory->copy(exec->ctx, w->control + s, op->threshold.control, (size_t)rows));
  if (op->sel.on) WN_TRY(memory->zero(exec->ctx, w->f, (size_t)(G * w->room) * wn_dtype_size(dtype)));
  WN_TRY(positions_turn(exec, run, w->l, rows, op->H, w->q, positions));
  WN_TRY(positions_turn(exec, run, w->l, rows, op->Hkv, k, positions));
  const struct wn_attention head = positions_call(op, w, dtype, 0, first, s, first);
  WN_TRY(wn_op_attention_forward(exec, &head));
  for (int64_t i = K; i < rows; i++) {
    WN_TRY(positions_put_sinks(exec, run, op, w, s, K, i, positions));
    const struct wn_attention row = positions_call(op, w, dtype, i, 1, positions_first(K, s, i), K);
    WN_TRY(wn_op_attention_forward(exec, &row));
  }
  return WN_OK;
}

static wn_status positions_sequence(const struct wn_exec *exec, const struct wn_run *run, const struct wn_attention *op,
                                    const struct work *w, int64_t l, int64_t b) {
  const int64_t T = run->T, K = run->budgets->tokens[l], s = wn_policy_sinks(run->budgets, K);
  const int32_t *doc = run->rows.doc_start ? run->rows.doc_start + b * T : NULL;
  const struct wn_attention all = wn_attention_of_sequence(op, exec->dtype, b);
  for (int64_t t = 0, end; t < T; t = end) {
    for (end = t + 1; end < T && (!doc || doc[end] == doc[t]);) end++;
    const struct wn_attention one = wn_attention_of_tokens(&all, exec->dtype, t, end - t);
    WN_TRY(positions_document(exec, run, &one, w, K, s, end - t, run->positions + b * T + t));
  }
  return WN_OK;
}

/* One thread if the backend's memory is not the host's: a context's calls to it come one after the other. */
static int positions_threads(const struct wn_run *run) {
  return wn_run_memory(run)->host ? run->exec.threads : 1;
}

struct positions_run {
  const struct wn_run *run;
  const struct wn_attention *op;
  int64_t l;
  size_t scratch;
  struct wn_arrays each;
  atomic_int status;
};
static void positions_task(void *args, int64_t b) {
  struct positions_run *x = args;
  const struct wn_run *run = x->run;
  struct wn_exec one = run->exec;
  struct wn_arrays mine = wn_arrays_copy(&x->each, run->exec.scratch, wn_hand());
  struct work w;
  positions_lay(run, x->op, x->scratch, &mine, &w);
  w.l = x->l;
  one.threads = 1;
  one.scratch = w.scratch, one.scratch_bytes = w.scratch_bytes;
  const wn_status here = positions_sequence(&one, run, x->op, &w, x->l, b);
  if (here != WN_OK) x->status = (int)here;
}

wn_status wn_layer_attend_cache_positions(struct wn_run *run, int64_t l, const struct wn_attention *op) {
  struct wn_arrays without = {0};
  struct positions_run x = {.run = run, .op = op, .l = l, .status = WN_OK};
  struct work unused;
  const int64_t K = run->measuring ? run->T : run->budgets->tokens[l];
  positions_lay(run, op, 0, &without, &unused);
  x.scratch = positions_scratch(run, op, &unused, K < run->T ? K : run->T);
  positions_lay(run, op, x.scratch, &x.each, &unused);
  WN_TRY(wn_arrays_check(run->exec.ctx, &x.each, "positions in the cache"));
  const size_t need = x.each.bytes * (size_t)run->exec.threads;
  if (run->measuring) {
    if (need > run->need) run->need = need;
    return WN_OK;
  }
  if (run->exec.scratch_bytes < need)
    return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "positions in the cache: scratch of %zu bytes, expected %zu",
                   run->exec.scratch_bytes, need);
  wn_parallel_tasks(positions_threads(run), run->B, positions_task, &x);
  return (wn_status)x.status;
}
