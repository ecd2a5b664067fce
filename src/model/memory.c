/* Segment recurrence: a long text goes by in blocks, and every layer keeps the hidden states of the tokens before the
 * block (Dai et al. 2019, section 3.2; Sukhbaatar et al. 2019 train the same way).
 *
 *   q = Wq h,  k = Wk [m; h],  v = Wv [m; h]         h: the block at the attention's entry, m: the last `memory` rows
 *                                                    of the same in the blocks before
 * m is constant: no gradient reaches the blocks before. The maps' weights get the gradient of all rows, those of m as
 * well, as both papers' programs have it. With norms before the attention m is kept behind the norm. Positions count
 * from the oldest row of m, so that only relative ones can be used: distances, rotation, spans. (Learned sinks are not
 * rotated: with RoPE they are met from the place in [m; h].)
 *
 * One array a layer, [B, rows + T, C]: memory, right-aligned, and behind it the block's own rows; after the step all
 * move up by a block. A layer reads no more of it than its window and its widest head's span reach, so that what is out
 * of sight costs nothing. Cost: the key and value maps run over what is read and the block, 4 (read + T) C Hkv D
 * operations. */
#include <string.h>

#include "model/workspace.h"

static size_t row_bytes(const struct wn_run *run) {
  return (size_t)run->model->config.width * wn_dtype_size(run->exec.dtype);
}

/* Row 0 of what sequence b keeps in layer l, empty rows included. */
static char *sequence_at(const struct wn_run *run, int64_t l, int64_t b) {
  const struct wn_memory *m = &run->memory;
  return m->base + (size_t)l * m->layer_bytes + (size_t)(b * (m->rows + m->block)) * row_bytes(run);
}

/* Tokens of the memory that layer l can see from the block's first row. */
static int64_t reach(const struct wn_run *run, int64_t l) {
  const int64_t n = run->memory.count, seen = run->measuring ? n : wn_layer_reach(run->model, l); /* spans change */
  return seen < n ? seen : n;
}

/* Tokens of the memory that layer l reads in this pass. */
static int64_t read_count(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct wn_attention terms;
  wn_layer_attention(run, l, a, &terms);
  return terms.Tk - run->T;
}

static int64_t kv_width(const wn_model_config *c) {
  return 2 * c->kv_heads * c->head_size;
}

/* Parameters of the fused map from row `from` of its outputs on. */
static struct wn_linear part(const struct wn_run *run, int64_t l, int64_t rows, int64_t from, int64_t N) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  const wn_dtype dtype = run->exec.dtype;
  return (struct wn_linear){.M = rows,
                            .N = N,
                            .K = c->width,
                            .ldx = c->width,
                            .w = wn_at(wn_run_param(run, p->qkv_weight), from * c->width, dtype),
                            .b = wn_at(wn_run_param(run, p->qkv_bias), from, dtype),
                            .ldy = N,
                            .lddy = N,
                            .lddx = c->width,
                            .dw = wn_at(wn_run_grad(run, p->qkv_weight), from * c->width, dtype),
                            .db = wn_at(wn_run_grad(run, p->qkv_bias), from, dtype)};
}

static struct wn_rope rotation(const struct wn_run *run, void *x, int64_t rows, int64_t heads, int64_t ldx,
                               int64_t first) {
  const wn_model_config *c = &run->model->config;
  return (struct wn_rope){.rows = rows,
                          .heads = heads,
                          .D = c->head_size,
                          .x = x,
                          .ldx = ldx,
                          .positions = run->memory.positions + first,
                          .cos_sin = run->rope,
                          .P = run->rope_rows,
                          .theta = c->rope_theta};
}

/* q and k of all sequences (gradients the other way), turned where they are. */
static wn_status rotate(struct wn_run *run, int64_t count, void *q, void *k, int64_t ldk, bool backward) {
  const wn_model_config *c = &run->model->config;
  const int64_t T = run->T, HD = c->heads * c->head_size, keys = count + T;
  if (c->position != WN_POS_ROPE) return WN_OK;
  wn_status (*turn)(struct wn_run *, const struct wn_rope *) = backward ? wn_run_rope_backward : wn_run_rope_forward;
  for (int64_t b = 0; b < run->B; b++) {
    const struct wn_rope rq = rotation(run, wn_at(q, b * T * HD, run->exec.dtype), T, c->heads, HD, count);
    const struct wn_rope rk =
        rotation(run, wn_at(k, b * (run->memory.rows + T) * ldk, run->exec.dtype), keys, c->kv_heads, ldk, 0);
    WN_TRY(turn(run, &rq));
    WN_TRY(turn(run, &rk));
  }
  return WN_OK;
}

static struct wn_norm query_norm(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  struct wn_norm n = wn_run_norm_args(run, run->B * run->T, c->heads, c->head_size, run->model->layers[l].q_gain, -1,
                                      a->rstd_q, a->mean_q);
  n.x = a->qkv, n.ldx = c->heads * c->head_size;
  n.y = a->q, n.ldy = n.ldx;
  return n;
}

/* The keys' norm of sequence b. */
static struct wn_norm key_norm(const struct wn_run *run, int64_t l, int64_t count, const struct wn_layer_acts *a,
                               int64_t b) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t first = b * (run->memory.rows + run->T), W = c->kv_heads * c->head_size;
  struct wn_norm n =
      wn_run_norm_args(run, count + run->T, c->kv_heads, c->head_size, run->model->layers[l].k_gain, -1,
                       wn_at(a->rstd_k, first * c->kv_heads, dtype), wn_at(a->mean_k, first * c->kv_heads, dtype));
  n.x = wn_at(a->kv, first * kv_width(c), dtype), n.ldx = kv_width(c);
  n.y = wn_at(a->k, first * W, dtype), n.ldy = W;
  return n;
}

wn_status wn_memory_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  const struct wn_memory *m = &run->memory;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t B = run->B, T = run->T, HD = c->heads * c->head_size, W = kv_width(c);
  const int64_t count = read_count(run, l, a), keys = count + T;
  struct wn_linear q = part(run, l, B * T, 0, HD);
  q.x = a->n1, q.y = a->qkv;
  WN_TRY(wn_run_linear_forward(run, &q));
  for (int64_t b = 0; b < B; b++) {
    char *kept = sequence_at(run, l, b);
    if (!run->measuring)
      memcpy(kept + (size_t)m->rows * row_bytes(run), (const char *)a->n1 + (size_t)(b * T) * row_bytes(run),
             (size_t)T * row_bytes(run));
    struct wn_linear kv = part(run, l, keys, HD, W);
    kv.x = kept + (size_t)(m->rows - count) * row_bytes(run);
    kv.y = wn_at(a->kv, b * (m->rows + T) * W, dtype);
    WN_TRY(wn_run_linear_forward(run, &kv));
  }
  if (!c->qk_norm) return rotate(run, count, a->qkv, a->kv, W, false);
  const struct wn_norm nq = query_norm(run, l, a);
  WN_TRY(wn_run_norm_forward(run, &nq));
  for (int64_t b = 0; b < B; b++) {
    const struct wn_norm nk = key_norm(run, l, count, a, b);
    WN_TRY(wn_run_norm_forward(run, &nk));
  }
  return rotate(run, count, a->q, a->k, W / 2, false);
}

void wn_memory_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a, struct wn_attention *out) {
  const wn_model_config *c = &run->model->config;
  const int64_t T = run->T, D = c->head_size, HD = c->heads * D, W = kv_width(c), rows = run->memory.rows + T;
  const struct wn_stride in_kv = {rows * W, W, D};
  out->Tk = reach(run, l) + T;
  out->q = c->qk_norm ? a->q : a->qkv;
  out->k = c->qk_norm ? a->k : a->kv;
  out->v = wn_at(a->kv, W / 2, run->exec.dtype);
  out->s_q = (struct wn_stride){T * HD, HD, D};
  out->s_k = c->qk_norm ? (struct wn_stride){rows * W / 2, W / 2, D} : in_kv;
  out->s_v = in_kv;
}

wn_status wn_memory_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                             struct wn_attention *attention) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t W = kv_width(c), HD = c->heads * c->head_size;
  const int64_t count = attention->Tk - run->T;
  attention->dq = c->qk_norm ? temp->d_q : temp->d_qkv;
  attention->dk = c->qk_norm ? temp->d_k : temp->d_kv;
  attention->dv = wn_at(temp->d_kv, W / 2, dtype);
  WN_TRY(wn_run_attention_backward(run, attention));
  if (!c->qk_norm) return rotate(run, count, temp->d_qkv, temp->d_kv, W, true);
  WN_TRY(rotate(run, count, temp->d_q, temp->d_k, W / 2, true));
  struct wn_norm nq = query_norm(run, l, a);
  nq.dy = temp->d_q, nq.lddy = HD, nq.dx = temp->d_qkv, nq.lddx = HD;
  WN_TRY(wn_run_norm_backward(run, &nq));
  for (int64_t b = 0; b < run->B; b++) {
    const int64_t first = b * (run->memory.rows + run->T);
    struct wn_norm nk = key_norm(run, l, count, a, b);
    nk.dy = wn_at(temp->d_k, first * W / 2, dtype), nk.lddy = W / 2;
    nk.dx = wn_at(temp->d_kv, first * W, dtype), nk.lddx = W;
    WN_TRY(wn_run_norm_backward(run, &nk));
  }
  return WN_OK;
}

wn_status wn_memory_maps_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                  const struct wn_layer_temp *temp, void *d_in, bool accumulate) {
  const wn_model_config *c = &run->model->config;
  const struct wn_memory *m = &run->memory;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t B = run->B, T = run->T, HD = c->heads * c->head_size, W = kv_width(c);
  const int64_t count = read_count(run, l, a);
  struct wn_linear q = part(run, l, B * T, 0, HD);
  q.x = a->n1, q.dy = temp->d_qkv, q.dx = d_in;
  q.accumulate_dx = accumulate;
  WN_TRY(wn_run_linear_backward(run, &q));
  for (int64_t b = 0; b < B; b++) {
    const int64_t first = b * (m->rows + T);
    if (count > 0) { /* held constant: the weights' gradient alone */
      struct wn_linear old = part(run, l, count, HD, W);
      old.x = sequence_at(run, l, b) + (size_t)(m->rows - count) * row_bytes(run);
      old.dy = wn_at(temp->d_kv, first * W, dtype);
      WN_TRY(wn_run_linear_backward(run, &old));
    }
    struct wn_linear now = part(run, l, T, HD, W);
    now.x = wn_at(a->n1, b * T * c->width, dtype);
    now.dy = wn_at(temp->d_kv, (first + count) * W, dtype);
    now.dx = wn_at(d_in, b * T * c->width, dtype);
    now.accumulate_dx = true;
    WN_TRY(wn_run_linear_backward(run, &now));
  }
  return WN_OK;
}

void wn_memory_bind(struct wn_run *run, const struct wn_workspace *ws, int64_t set) {
  const size_t bytes = wn_memory_layer_bytes(ws->model, ws->B, ws->T, ws->options.memory);
  run->memory = (struct wn_memory){.rows = ws->options.memory,
                                   .count = ws->memory_count[set],
                                   .block = ws->T,
                                   .layer_bytes = bytes,
                                   .base = ws->memory + (size_t)(set * ws->model->config.layers) * bytes,
                                   .positions = ws->memory_positions};
  if (!ws->rope_table) return;
  run->rope = ws->rope_table;
  run->rope_rows = ws->options.memory + ws->T;
}

size_t wn_memory_layer_bytes(const struct wn_model *model, int64_t B, int64_t T, int64_t memory) {
  size_t n;
  if (!wn_mul_size((size_t)B, (size_t)(memory + T), &n) || !wn_mul_size(n, (size_t)model->config.width, &n) ||
      !wn_mul_size(n, wn_dtype_size(model->dtype), &n) || n > SIZE_MAX / 4)
    return 0;
  return (n + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

void wn_memory_advance(const struct wn_run *run, struct wn_workspace *ws, int64_t set) {
  const struct wn_memory *m = &run->memory;
  for (int64_t l = 0; l < run->model->config.layers; l++) {
    for (int64_t b = 0; b < run->B; b++) {
      char *kept = sequence_at(run, l, b);
      memmove(kept, kept + (size_t)run->T * row_bytes(run), (size_t)m->rows * row_bytes(run));
    }
  }
  const int64_t count = m->count + run->T;
  ws->memory_count[set] = count < m->rows ? count : m->rows;
}

void wn_workspace_forget(wn_workspace *ws, int64_t set) {
  if (ws->options.memory > 0) ws->memory_count[set] = 0;
}

int64_t wn_workspace_memory_count(const wn_workspace *ws, int64_t set) {
  return ws->options.memory > 0 ? ws->memory_count[set] : 0;
}

void wn_workspace_memory_set_count(wn_workspace *ws, int64_t set, int64_t count) {
  if (ws->options.memory > 0) ws->memory_count[set] = count;
}

void *wn_workspace_memory_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]) {
  const size_t bytes = wn_memory_layer_bytes(ws->model, ws->B, ws->T, ws->options.memory);
  shape[0] = ws->B, shape[1] = ws->options.memory + ws->T, shape[2] = ws->model->config.width;
  return ws->memory + (size_t)(set * ws->model->config.layers + l) * bytes;
}
