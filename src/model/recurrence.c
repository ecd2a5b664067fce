/* Segment recurrence: a long text is read in blocks, and every layer keeps the hidden states of the tokens before the
 * block (Dai et al. 2019, section 3.2; Sukhbaatar et al. 2019 train the same way).
 *
 *   q = Wq h, k = Wk [m; h], v = Wv [m; h] h: hidden states of the block at the attention's entry; m: those of the last
 *   tokens of earlier blocks
 *
 * m is constant: no gradient reaches earlier blocks. The projections' weights get gradients from all rows, those of m
 * included, as in both papers' programs. With norms before the attention m is stored after the norm. Positions count
 * from the oldest row of m, so only relative ones work: distances, rotation, spans.
 * (Learned sinks and the vectors of relative positions are not rotated: with RoPE their terms depend on the place in
 * [m; h].)
 *
 * With selective attention a token's F includes the selections of earlier blocks: F[j] = sum over all earlier rows k of
 * the stream of S[k,j]. F enters the operation as f_in and leaves it as f_out, with the selections of the block's rows
 * added. It gets no gradient. protect_first protects the first token of the stream. L_mem's M counts the tokens that
 * are read.
 *
 * Each layer has one array [B, room + T, C]: the earlier tokens, right-aligned, then the block's rows. After the step
 * everything moves up by a block. A layer reads only the tokens that its window and its widest head's span reach.
 * Tokens beyond cost nothing: no keys, no values, no attention, no memory (recurrence_room.c). Cost: the key and value
 * projections of the tokens read and of the block, 4 (read + T) C Hkv D operations. */
#include <string.h>

#include "attention/registry.h"
#include "model/workspace.h"
#include "ops/attention.h"

static size_t recurrence_row_bytes(const struct wn_run *run) {
  return (size_t)run->model->config.width * wn_dtype_size(run->exec.dtype);
}

static const struct wn_recurrence_layer *recurrence_layer_of(const struct wn_run *run, int64_t l) {
  return &run->recurrence.layers[l];
}

/* The distance, in rows, from one sequence to the next in the arrays of states and keys. */
static int64_t recurrence_stride(const struct wn_run *run, int64_t l) {
  return recurrence_layer_of(run, l)->rows + run->recurrence.block;
}

/* Row 0 of sequence b's states in layer l, empty rows included. */
static char *recurrence_sequence(const struct wn_run *run, int64_t l, int64_t b) {
  return recurrence_layer_of(run, l)->states + (size_t)(b * recurrence_stride(run, l)) * recurrence_row_bytes(run);
}

int64_t wn_recurrence_read(const struct wn_run *run, int64_t l) {
  const struct wn_recurrence_layer *m = recurrence_layer_of(run, l);
  if (run->measuring)
    return run->recurrence.full ? m->rows : 0; /* sizes must hold for any spans, since they change from step to step */
  if (run->recurrence.whole) return m->count;
  const int64_t reach = wn_layer_reach(run->model, l); /* exact: rounding up would only add keys to compute */
  return reach < m->count ? reach : m->count;
}

static int64_t recurrence_kv_width(const wn_model_config *c) {
  return 2 * c->kv_heads * c->head_size;
}

/* A projection restricted to its outputs [from, from+N). */
static struct wn_linear recurrence_part(const struct wn_run *run, int weight, int bias, int64_t from, int64_t N,
                                        int64_t rows) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  return (struct wn_linear){.M = rows,
                            .N = N,
                            .K = c->width,
                            .ldx = c->width,
                            .w = wn_element(wn_run_param(run, weight), from * c->width, dtype),
                            .b = wn_element(wn_run_param(run, bias), from, dtype),
                            .ldy = N,
                            .lddy = N,
                            .lddx = c->width,
                            .dw = wn_element(wn_run_grad(run, weight), from * c->width, dtype),
                            .db = wn_element(wn_run_grad(run, bias), from, dtype)};
}
static struct wn_linear recurrence_queries(const struct wn_run *run, int64_t l, int64_t rows) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  return recurrence_part(run, p->qkv_weight, p->qkv_bias, 0, c->heads * c->head_size, rows);
}
static struct wn_linear recurrence_keys(const struct wn_run *run, int64_t l, int64_t rows) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  return recurrence_part(run, p->qkv_weight, p->qkv_bias, c->heads * c->head_size, recurrence_kv_width(c), rows);
}
/* The mechanisms' inputs that have an entry per key. */
static int key_inputs(const struct wn_run *run, struct wn_attention_input out[WN_MECHANISM_INPUTS_MAX]) {
  const int n = wn_layer_inputs(&run->model->config, out);
  int kept = 0;
  for (int i = 0; i < n; i++)
    if (out[i].how->of_keys) out[kept++] = out[i];
  return kept;
}

static struct wn_rope recurrence_rotation(const struct wn_run *run, int64_t l, void *x, int64_t rows, int64_t heads,
                                          int64_t ldx, int64_t first) {
  struct wn_rope a = wn_run_rotation(run, l);
  a.rows = rows, a.heads = heads;
  a.x = x, a.ldx = ldx;
  a.positions = run->recurrence.positions + first;
  return a;
}

/* Rotates q and k of all sequences in place; backward rotates their gradients the other way. */
static wn_status recurrence_rotate(struct wn_run *run, int64_t l, int64_t count, void *q, void *k, int64_t ldk,
                                   bool backward) {
  const wn_model_config *c = &run->model->config;
  const int64_t T = run->T, HD = c->heads * c->head_size, keys = count + T;
  if (c->position != WN_POS_ROPE) return WN_OK;
  wn_status (*turn)(struct wn_run *, const struct wn_rope *) = backward ? wn_run_rope_backward : wn_run_rope_forward;
  for (int64_t b = 0; b < run->B; b++) {
    const struct wn_rope rq =
        recurrence_rotation(run, l, wn_element(q, b * T * HD, run->exec.dtype), T, c->heads, HD, count);
    const struct wn_rope rk = recurrence_rotation(
        run, l, wn_element(k, b * recurrence_stride(run, l) * ldk, run->exec.dtype), keys, c->kv_heads, ldk, 0);
    WN_TRY(turn(run, &rq));
    WN_TRY(turn(run, &rk));
  }
  return WN_OK;
}

static struct wn_norm recurrence_query_norm(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  const struct wn_norm_site site = {
      .gain = run->model->layers[l].q_gain, .shift = -1, .rstd = a->rstd_q, .mean = a->mean_q};
  struct wn_norm n = wn_head_norm_args(run, run->B * run->T, c->heads, site);
  n.x = a->qkv, n.ldx = c->heads * c->head_size;
  n.y = a->q, n.ldy = n.ldx;
  return n;
}

/* The norm of sequence b's keys. */
static struct wn_norm recurrence_key_norm(const struct wn_run *run, int64_t l, int64_t count,
                                          const struct wn_layer_acts *a, int64_t b) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t first = b * recurrence_stride(run, l), W = c->kv_heads * c->head_size;
  const struct wn_norm_site site = {.gain = run->model->layers[l].k_gain,
                                    .shift = -1,
                                    .rstd = wn_element(a->rstd_k, first * c->kv_heads, dtype),
                                    .mean = wn_element(a->mean_k, first * c->kv_heads, dtype)};
  struct wn_norm n = wn_head_norm_args(run, count + run->T, c->kv_heads, site);
  n.x = wn_element(a->kv, first * recurrence_kv_width(c), dtype), n.ldx = recurrence_kv_width(c);
  n.y = wn_element(a->k, first * W, dtype), n.ldy = W;
  return n;
}

wn_status wn_recurrence_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t B = run->B, T = run->T, W = recurrence_kv_width(c), stride = recurrence_stride(run, l);
  const int64_t rows = recurrence_layer_of(run, l)->rows, count = wn_recurrence_read(run, l), keys = count + T;
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int inputs = key_inputs(run, in);
  struct wn_linear q = recurrence_queries(run, l, B * T);
  q.x = a->n1, q.y = a->qkv;
  WN_TRY(wn_run_linear_forward(run, &q));
  for (int64_t b = 0; b < B; b++) {
    char *kept = recurrence_sequence(run, l, b);
    WN_TRY(wn_run_copy(run, kept + (size_t)rows * recurrence_row_bytes(run), wn_element(a->n1, b * T * c->width, dtype),
                       T * c->width));
    struct wn_linear kv = recurrence_keys(run, l, keys);
    kv.x = kept + (size_t)(rows - count) * recurrence_row_bytes(run);
    kv.y = wn_element(a->kv, b * stride * W, dtype);
    WN_TRY(wn_run_linear_forward(run, &kv));
    for (int i = 0; i < inputs; i++) {
      void *y = wn_element(a->input[in[i].slot], b * stride * in[i].width, dtype);
      WN_TRY(wn_run_project(run, wn_input_projection(run, l, &in[i], keys), kv.x, y));
      WN_TRY(wn_input_transform(run, &in[i], keys, y));
      WN_TRY(wn_input_sum(run, &in[i], 1, keys, y));
    }
  }
  if (!c->qk_norm) return recurrence_rotate(run, l, count, a->qkv, a->kv, W, false);
  const struct wn_norm nq = recurrence_query_norm(run, l, a);
  WN_TRY(wn_run_norm_forward(run, &nq));
  for (int64_t b = 0; b < B; b++) {
    const struct wn_norm nk = recurrence_key_norm(run, l, count, a, b);
    WN_TRY(wn_run_norm_forward(run, &nk));
  }
  return recurrence_rotate(run, l, count, a->q, a->k, W / 2, false);
}

void wn_recurrence_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             struct wn_attention *out) {
  const wn_model_config *c = &run->model->config;
  const struct wn_recurrence_layer *m = recurrence_layer_of(run, l);
  const wn_dtype dtype = run->exec.dtype;
  const int64_t T = run->T, D = c->head_size, HD = c->heads * D, W = recurrence_kv_width(c);
  const int64_t count = wn_recurrence_read(run, l), stride = recurrence_stride(run, l);
  const struct wn_stride in_kv = {stride * W, W, D};
  out->Tk = count + T;
  out->q = c->qk_norm ? a->q : a->qkv;
  out->k = c->qk_norm ? a->k : a->kv;
  out->v = wn_element(a->kv, W / 2, dtype);
  out->s_q = (struct wn_stride){T * HD, HD, D};
  out->s_k = c->qk_norm ? (struct wn_stride){stride * W / 2, W / 2, D} : in_kv;
  out->s_v = in_kv;
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int inputs = key_inputs(run, in);
  for (int i = 0; i < inputs; i++) {
    const struct wn_stride strides = {stride * in[i].width, in[i].width, in[i].size};
    *wn_mechanism_strides(in[i].how, in[i].array, out) = strides;
  }
  if (!out->sel.on) return;
  out->sel.f_in = wn_element(m->f, m->rows - count, dtype);
  out->sel.f_out = wn_element(m->f_out, m->rows - count, dtype);
  out->sel.f_stride = stride;
  if (count < run->recurrence.seen) out->sel.protect_first = false; /* the stream's first token is not among the keys */
}

wn_status wn_recurrence_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                                 struct wn_attention *attention) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t W = recurrence_kv_width(c), HD = c->heads * c->head_size;
  const int64_t count = attention->Tk - run->T;
  attention->dq = c->qk_norm ? temp->d_q : temp->d_qkv;
  attention->dk = c->qk_norm ? temp->d_k : temp->d_kv;
  attention->dv = wn_element(temp->d_kv, W / 2, dtype);
  WN_TRY(wn_run_attention_backward(run, attention));
  if (!c->qk_norm) return recurrence_rotate(run, l, count, temp->d_qkv, temp->d_kv, W, true);
  WN_TRY(recurrence_rotate(run, l, count, temp->d_q, temp->d_k, W / 2, true));
  struct wn_norm nq = recurrence_query_norm(run, l, a);
  nq.dy = temp->d_q, nq.lddy = HD, nq.dx = temp->d_qkv, nq.lddx = HD;
  WN_TRY(wn_run_norm_backward(run, &nq));
  for (int64_t b = 0; b < run->B; b++) {
    const int64_t first = b * recurrence_stride(run, l);
    struct wn_norm nk = recurrence_key_norm(run, l, count, a, b);
    nk.dy = wn_element(temp->d_k, first * W / 2, dtype), nk.lddy = W / 2;
    nk.dx = wn_element(temp->d_kv, first * W, dtype), nk.lddx = W;
    WN_TRY(wn_run_norm_backward(run, &nk));
  }
  return WN_OK;
}

/* Backward through a projection of sequence b's [m; h], from dy [count+T, N]. m is constant: its rows only give the
 * weights a gradient. */
static wn_status recurrence_rows_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a, int64_t b,
                                          int64_t count, struct wn_linear map, const void *dy, void *d_in) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  if (count > 0) {
    struct wn_linear old = map;
    old.M = count;
    old.x = recurrence_sequence(run, l, b) +
            (size_t)(recurrence_layer_of(run, l)->rows - count) * recurrence_row_bytes(run);
    old.dy = dy;
    WN_TRY(wn_run_linear_backward(run, &old));
  }
  map.M = run->T;
  map.x = wn_element(a->n1, b * run->T * c->width, dtype);
  map.dy = wn_element(dy, count * map.N, dtype);
  map.dx = wn_element(d_in, b * run->T * c->width, dtype);
  map.accumulate_dx = true;
  return wn_run_linear_backward(run, &map);
}

wn_status wn_recurrence_maps_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                      const struct wn_layer_temp *temp, void *d_in, bool accumulate) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t W = recurrence_kv_width(c), count = wn_recurrence_read(run, l), stride = recurrence_stride(run, l);
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int inputs = key_inputs(run, in);
  struct wn_linear q = recurrence_queries(run, l, run->B * run->T);
  q.x = a->n1, q.dy = temp->d_qkv, q.dx = d_in;
  q.accumulate_dx = accumulate;
  WN_TRY(wn_run_linear_backward(run, &q));
  for (int64_t b = 0; b < run->B; b++) {
    WN_TRY(recurrence_rows_backward(run, l, a, b, count, recurrence_keys(run, l, 0),
                                    wn_element(temp->d_kv, b * stride * W, dtype), d_in));
    for (int i = 0; i < inputs; i++) {
      const int64_t first = b * stride * in[i].width;
      void *d_y = wn_element(temp->d_input[in[i].slot], first, dtype);
      WN_TRY(
          wn_input_transform_back(run, &in[i], 1, count + run->T, wn_element(a->input[in[i].slot], first, dtype), d_y));
      WN_TRY(recurrence_rows_backward(run, l, a, b, count, wn_input_projection(run, l, &in[i], 0), d_y, d_in));
    }
  }
  return WN_OK;
}
