/* One decoder layer, forward and backward. layer.h has the equations of the layer, ops/ops.h those of the operations.
 *
 * Cost per token: 2 (C (H + 2 Hkv) D + H D C + 3 C F) flops forward for the projections (with swiglu), twice that
 * backward, plus the attention. q, k and v are never transposed: the attention reads them with strides where the fused
 * projection (or the QK-norm) left them. */
#include "model/layer.h"

#include <string.h>

#include "attention/registry.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "ops/attention.h"

/* ---- arrays ---- */

static int64_t qkv_width(const wn_model_config *c) {
  return (c->heads + 2 * c->kv_heads) * c->head_size;
}
static enum wn_act_kind act_kind(const wn_model_config *c) {
  static const enum wn_act_kind kinds[] = {
      [WN_FFN_SWIGLU] = WN_ACT_SWIGLU,     [WN_FFN_GELU] = WN_ACT_GELU,   [WN_FFN_RELU] = WN_ACT_RELU,
      [WN_FFN_GELU_ERF] = WN_ACT_GELU_ERF, [WN_FFN_GEGLU] = WN_ACT_GEGLU, [WN_FFN_RELU2] = WN_ACT_RELU2};
  return kinds[c->ffn];
}
static bool layer_has_mem(const wn_model_config *c) {
  return c->attention.selective.enabled && c->attention.selective.mem.enabled;
}

/* Lays out the mechanisms' inputs, by slot, or arrays of their hidden layers; with recurrence, inputs with an entry per
 * key are in its rooms. */
static void inputs_lay(const wn_model_config *c, int64_t M, wn_dtype dtype, bool recurrent, bool hidden,
                       struct wn_arrays *arrays, void *out[WN_MECHANISM_INPUTS_MAX]) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(c, in);
  memset(out, 0, WN_MECHANISM_INPUTS_MAX * sizeof *out);
  for (int i = 0; i < n; i++) {
    const int64_t width = hidden ? in[i].hidden : in[i].width;
    const struct wn_array row[] = {WN_ARRAY_SIZED(out[in[i].slot], wn_dtype_size(dtype), in[i].array->name,
                                                  width > 0 && !(recurrent && in[i].how->of_keys), WN_DIMS(M, width))};
    WN_ARRAYS_LAY(arrays, row);
  }
}

bool wn_layer_acts_plan(const wn_model_config *c, struct wn_layer_types types, int64_t B, int64_t T, bool recurrent,
                        struct wn_layer_blocks *blocks, struct wn_layer_acts *out) {
  const int64_t M = B * T, C = c->width, D = c->head_size, H = c->heads, Hkv = c->kv_heads;
  const int64_t G = wn_attention_selections(&c->attention, c->kv_heads), S = c->encoder.context;
  const bool layer = c->norm == WN_NORM_LAYER, cross = c->encoder.layers > 0;
  const bool own = wn_norm_on_branch(c), shared = c->experts.shared_width > 0;
  const int64_t E = c->experts.count, active = c->experts.active;
  const size_t e = wn_dtype_size(types.all), en = wn_dtype_size(types.norms), ef = wn_dtype_size(types.ffn);
  const size_t er = wn_dtype_size(types.rows);
  const struct wn_array large[] = {
      WN_ARRAY_SIZED(out->x, e, "x", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->att, er, "att", true, WN_DIMS(M, H, D)),
      WN_ARRAY_SIZED(out->mid, e, "mid", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->in, ef, "in", true, WN_DIMS(M, wn_expert_rows(c), wn_ffn_in_width(c))),
      WN_ARRAY_SIZED(out->out1, e, "out1", own, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->out2, e, "out2", own, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->cmid, e, "cmid", cross, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->catt, e, "catt", cross, WN_DIMS(M, H, D)),
      WN_ARRAY_SIZED(out->shared_in, e, "shared_in", shared, WN_DIMS(M, 2 * c->experts.shared_width)),
      WN_ARRAY_SIZED(out->shared_out, e, "shared_out", shared, WN_DIMS(M, C)),
  };
  const struct wn_array derived[] = {
      WN_ARRAY_SIZED(out->n1, en, "n1", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->n2, en, "n2", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->act, ef, "act", !blocks->one_act && E == 0, WN_DIMS(M, c->ffn_width)),
      WN_ARRAY_SIZED(out->cn, e, "cn", cross, WN_DIMS(M, C)),
      /* With recurrence, keys also come from earlier blocks, and q is among the exact arrays. */
      WN_ARRAY_SIZED(out->q, er, "q", c->qk_norm && !recurrent, WN_DIMS(M, H, D)),
      WN_ARRAY_SIZED(out->k, er, "k", c->qk_norm && !recurrent, WN_DIMS(M, Hkv, D)),
  };
  const struct wn_array exact[] = {
      WN_ARRAY_SIZED(out->qkv, er, "qkv", true, WN_DIMS(M, recurrent ? H * D : qkv_width(c))),
      WN_ARRAY_SIZED(out->rstd1, e, "rstd1", true, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->mean1, e, "mean1", layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->rstd2, e, "rstd2", true, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->mean2, e, "mean2", layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->rstd_out1, e, "rstd_out1", own, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->mean_out1, e, "mean_out1", own && layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->rstd_out2, e, "rstd_out2", own, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->mean_out2, e, "mean_out2", own && layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->rstd_q, e, "rstd_q", c->qk_norm, WN_DIMS(M, H)),
      WN_ARRAY_SIZED(out->mean_q, e, "mean_q", c->qk_norm && layer, WN_DIMS(M, H)),
      WN_ARRAY_SIZED(out->rstd_k, e, "rstd_k", c->qk_norm && !recurrent, WN_DIMS(M, Hkv)),
      WN_ARRAY_SIZED(out->mean_k, e, "mean_k", c->qk_norm && layer && !recurrent, WN_DIMS(M, Hkv)),
      WN_ARRAY_SIZED(out->lse, e, "lse", true, WN_DIMS(M, H)),
      WN_ARRAY_SIZED(out->M, e, "M", layer_has_mem(c), WN_DIMS(M, G)),
      WN_ARRAY_SIZED(out->dot, e, "dot", c->attention.exclusive.enabled, WN_DIMS(M, H)),
      WN_ARRAY_SIZED(out->ungated, e, "ungated", wn_attention_has_gate(&c->attention), WN_DIMS(M, H, D)),
      WN_ARRAY_SIZED(out->cq, e, "cq", cross, WN_DIMS(M, H, D)),
      WN_ARRAY_SIZED(out->ckv, e, "ckv", cross, WN_DIMS(B, S, 2 * Hkv * D)),
      WN_ARRAY_SIZED(out->crstd, e, "crstd", cross, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->cmean, e, "cmean", cross && layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(out->clse, e, "clse", cross, WN_DIMS(M, H)),
      WN_ARRAY_FOR(out->cut, "cut", c->attention.threshold.enabled, WN_DIMS(M, H, 2)),
      WN_ARRAY_SIZED(out->prob, e, "prob", E > 0, WN_DIMS(M, E)),
      WN_ARRAY_SIZED(out->weight, e, "weight", E > 0, WN_DIMS(M, active)),
      WN_ARRAY_FOR(out->chosen, "chosen", E > 0, WN_DIMS(M, active)),
      WN_ARRAY_FOR(out->place, "place", E > 0, WN_DIMS(M, active)),
      WN_ARRAY_SIZED(out->shared_factor, e, "shared_factor", shared, WN_DIMS(M)),
  };
  const struct wn_array exact_q[] = {WN_ARRAY_SIZED(out->q, e, "q", c->qk_norm, WN_DIMS(M, H, D))};
  struct wn_arrays l = {.base = blocks->large}, d = {.base = blocks->derived}, x = {.base = blocks->exact};
  out->kv = NULL;
  out->balance = NULL;
  WN_ARRAYS_LAY(&l, large);
  WN_ARRAYS_LAY(&d, derived);
  WN_ARRAYS_LAY(&x, exact);
  if (recurrent) WN_ARRAYS_LAY(&x, exact_q);
  inputs_lay(c, M, types.all, recurrent, false, &x, out->input);
  inputs_lay(c, M, types.all, recurrent, true, &x, out->hidden);
  inputs_lay(c, M, types.all, recurrent, true, &x, out->hidden_act);
  wn_input_keys_lay(c, wn_layer_reads_keys(c), M, e, &x, out);
  if (blocks->one_act) out->act = blocks->act;
  blocks->large_bytes = l.bytes;
  blocks->derived_bytes = d.bytes;
  blocks->exact_bytes = x.bytes;
  return !l.failed && !d.failed && !x.failed;
}

void wn_layer_temp_lay(const wn_model_config *c, struct wn_layer_types types, int64_t B, int64_t T, bool recurrent,
                       bool backward, struct wn_arrays *arrays, struct wn_layer_temp *out) {
  const int64_t M = B * T, C = c->width, D = c->head_size, HD = c->heads * D;
  const size_t e = wn_dtype_size(types.all), er = wn_dtype_size(types.rows);
  const int64_t of_ffn = c->ffn_width * (int64_t)wn_dtype_size(types.ffn), of_att = HD * (int64_t)er;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(out->branch, e, "branch", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->d_res, e, "d_res", backward, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->d_n, e, "d_n", backward, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(out->d_act, 1, "d_act", backward, WN_DIMS(M, of_ffn > of_att ? of_ffn : of_att)),
      WN_ARRAY_SIZED(out->d_qkv, er, "d_qkv", backward, WN_DIMS(M, recurrent ? HD : qkv_width(c))),
      WN_ARRAY_SIZED(out->d_q, er, "d_q", backward && c->qk_norm, WN_DIMS(M, HD)),
      WN_ARRAY_SIZED(out->d_k, er, "d_k", backward && c->qk_norm && !recurrent, WN_DIMS(M, c->kv_heads, D)),
      WN_ARRAY_SIZED(out->d_ckv, e, "d_ckv", backward && c->encoder.layers > 0,
                     WN_DIMS(B, c->encoder.context, 2 * c->kv_heads * D)),
      WN_ARRAY_SIZED(out->d_key_norms, e, "d_key_norms", backward && wn_layer_reads_keys(c),
                     WN_DIMS(M, c->kv_heads, 2 * D)),
  };
  memset(out, 0, sizeof *out);
  WN_ARRAYS_LAY(arrays, rows);
  if (backward) inputs_lay(c, M, types.all, recurrent, false, arrays, out->d_input);
  if (backward) inputs_lay(c, M, types.all, recurrent, true, arrays, out->d_hidden);
}

/* ---- the layer's parts ---- */

static wn_status hidden_dropout(struct wn_run *run, int64_t l, void *x) {
  const wn_model_config *c = &run->model->config;
  if (run->dropout_hidden <= 0) return WN_OK;
  return wn_run_dropout_forward(run, &(struct wn_dropout){.type = wn_type_field(run->types.ffn),
                                                          .n = run->B * run->T * c->ffn_width,
                                                          .p = run->dropout_hidden,
                                                          .seed = run->seed,
                                                          .stream = run->stream + (uint64_t)(1 + 3 * c->layers + l),
                                                          .x = x});
}

static struct wn_norm_site norm1_of(const struct wn_run *run, const struct wn_layer_params *p,
                                    const struct wn_layer_acts *a) {
  return (struct wn_norm_site){.gain = p->norm1_gain,
                               .shift = p->norm1_shift,
                               .rstd = a->rstd1,
                               .mean = a->mean1,
                               .y_type = wn_type_field(run->types.norms)};
}
static struct wn_norm_site norm2_of(const struct wn_run *run, const struct wn_layer_params *p,
                                    const struct wn_layer_acts *a) {
  return (struct wn_norm_site){.gain = p->norm2_gain,
                               .shift = p->norm2_shift,
                               .rstd = a->rstd2,
                               .mean = a->mean2,
                               .y_type = wn_type_field(run->types.norms)};
}
/* The norm on the output of branch 1 (attention) or 2 (feed-forward). */
static struct wn_norm_site branch_norm_of(const struct wn_layer_params *p, const struct wn_layer_acts *a, int branch) {
  return branch == 1 ? (struct wn_norm_site){.gain = p->post_norm1_gain,
                                             .shift = p->post_norm1_shift,
                                             .rstd = a->rstd_out1,
                                             .mean = a->mean_out1}
                     : (struct wn_norm_site){.gain = p->post_norm2_gain,
                                             .shift = p->post_norm2_shift,
                                             .rstd = a->rstd_out2,
                                             .mean = a->mean_out2};
}

/* The projections into and out of a branch. One into a branch reads a norm's output; its input's gradient has the
 * residual stream's type. */
static struct wn_linear projection_into(struct wn_linear a, wn_dtype norms, wn_dtype to) {
  a.x_type = wn_type_field(norms), a.y_type = a.dy_type = wn_type_field(to);
  return a;
}
static struct wn_linear projection_out_of(struct wn_linear a, wn_dtype from) {
  a.x_type = a.dx_type = wn_type_field(from);
  return a;
}
static struct wn_linear projection_qkv(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return projection_into(wn_run_projection(run, run->B * run->T, c->width, qkv_width(c), p->qkv_weight, p->qkv_bias),
                         run->types.norms, run->types.rows);
}
static struct wn_linear projection_out(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return projection_out_of(
      wn_run_projection(run, run->B * run->T, c->heads * c->head_size, c->width, p->out_weight, p->out_bias),
      run->types.rows);
}
static struct wn_linear projection_ffn_in(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return projection_into(
      wn_run_projection(run, run->B * run->T, c->width, wn_ffn_in_width(c), p->in_weight, p->in_bias), run->types.norms,
      run->types.ffn);
}
static struct wn_linear projection_ffn_out(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return projection_out_of(
      wn_run_projection(run, run->B * run->T, c->ffn_width, c->width, p->ffn_out_weight, p->ffn_out_bias),
      run->types.ffn);
}
/* The QK-norm of `heads` heads that start at column `at` of qkv; y is [M, heads*D]. */
static struct wn_norm head_norm(const struct wn_run *run, const struct wn_layer_acts *a, int64_t at, int64_t heads,
                                struct wn_norm_site site, void *y) {
  const wn_model_config *c = &run->model->config;
  struct wn_norm n = wn_head_norm_args(run, run->B * run->T, heads, site);
  n.x = wn_element(a->qkv, at, run->types.rows), n.ldx = qkv_width(c);
  n.x_type = n.y_type = n.dy_type = n.dx_type = wn_type_field(run->types.rows);
  n.y = y, n.ldy = heads * c->head_size;
  return n;
}

/* The rotation of `heads` heads at x, in place. */
static struct wn_rope layer_rotation(const struct wn_run *run, int64_t l, void *x, int64_t ldx, int64_t heads) {
  struct wn_rope a = wn_run_rotation(run, l);
  a.rows = run->B * run->T, a.heads = heads, a.type = wn_type_field(run->types.rows);
  a.x = x, a.ldx = ldx;
  a.positions = run->positions;
  return a;
}

static struct wn_norm layer_query_norm(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  const struct wn_norm_site site = {
      .gain = run->model->layers[l].q_gain, .shift = -1, .rstd = a->rstd_q, .mean = a->mean_q};
  return head_norm(run, a, 0, run->model->config.heads, site, a->q);
}
static struct wn_norm layer_key_norm(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  const struct wn_norm_site site = {
      .gain = run->model->layers[l].k_gain, .shift = -1, .rstd = a->rstd_k, .mean = a->mean_k};
  return head_norm(run, a, c->heads * c->head_size, c->kv_heads, site, a->k);
}

/* Rotates q and k in place, in qkv or in arrays of their own; backward rotates their gradients the other way. */
static wn_status layer_rotate(struct wn_run *run, int64_t l, void *qkv, void *q, void *k, bool backward) {
  const wn_model_config *c = &run->model->config;
  const int64_t D = c->head_size;
  if (c->position != WN_POS_ROPE || run->unturned) return WN_OK;
  wn_status (*turn)(struct wn_run *, const struct wn_rope *) = backward ? wn_run_rope_backward : wn_run_rope_forward;
  if (!c->qk_norm) {
    struct wn_rope both = layer_rotation(run, l, qkv, qkv_width(c), c->heads + c->kv_heads);
    return turn(run, &both);
  }
  struct wn_rope rq = layer_rotation(run, l, q, c->heads * D, c->heads),
                 rk = layer_rotation(run, l, k, c->kv_heads * D, c->kv_heads);
  WN_TRY(turn(run, &rq));
  return turn(run, &rk);
}

/* ---- forward ---- */

static wn_status entry_norm(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *prev_mid,
                            const void *prev_branch) {
  const struct wn_layer_params *p = &run->model->layers[l];
  return wn_run_norm(run, run->B * run->T, norm1_of(run, p, a), prev_mid ? prev_mid : a->x, prev_branch, a->x, a->n1);
}

/* Makes q and k as the attention reads them from qkv; without QK-norm they stay in qkv. */
static wn_status finish_qk(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  if (run->model->config.qk_norm) {
    const struct wn_norm nq = layer_query_norm(run, l, a), nk = layer_key_norm(run, l, a);
    WN_TRY(wn_run_norm_forward(run, &nq));
    WN_TRY(wn_run_norm_forward(run, &nk));
  }
  if (wn_layer_reads_keys(&run->model->config)) WN_TRY(wn_input_keys_keep(run, a));
  return layer_rotate(run, l, a->qkv, a->q, a->k, false);
}

wn_status wn_layer_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *prev_mid,
                          const void *prev_branch) {
  const struct wn_layer_params *p = &run->model->layers[l];
  WN_TRY(entry_norm(run, l, a, prev_mid, prev_branch));
  WN_TRY(wn_inputs_forward(run, l, a, false));
  if (run->recurrence.rows > 0) return wn_recurrence_before(run, l, a);
  WN_TRY(wn_run_project(run, projection_qkv(run, p), a->n1, a->qkv));
  WN_TRY(finish_qk(run, l, a));
  return wn_inputs_forward(run, l, a, true);
}

wn_status wn_layer_turn(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  return layer_rotate(run, l, a->qkv, a->q, a->k, false);
}

void wn_layer_acts_from(const wn_model_config *c, wn_dtype dtype, const struct wn_layer_acts *a, int64_t row,
                        struct wn_layer_acts *out) {
  const int64_t H = c->heads, Hkv = c->kv_heads, D = c->head_size;
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(c, in);
  *out = (struct wn_layer_acts){
      .att = wn_element(a->att, row * H * D, dtype),
      .q = wn_element(a->q, row * H * D, dtype),
      .k = wn_element(a->k, row * Hkv * D, dtype),
      .qkv = wn_element(a->qkv, row * qkv_width(c), dtype),
      .lse = wn_element(a->lse, row * H, dtype),
      .M = wn_element(a->M, row * wn_attention_selections(&c->attention, Hkv), dtype),
      .dot = wn_element(a->dot, row * H, dtype),
      .ungated = wn_element(a->ungated, row * H * D, dtype),
      .cut = a->cut ? a->cut + row * H * 2 : NULL,
  };
  for (int i = 0; i < n; i++) out->input[in[i].slot] = wn_element(a->input[in[i].slot], row * in[i].width, dtype);
}

/* Sets the mechanisms' parameter arrays and gradients in the operation, at the offsets that the mechanisms give. */
static void bind_parameters(const struct wn_run *run, const int *rows, enum wn_array_role role,
                            struct wn_attention *out) {
  for (int i = 0; i < WN_MECHANISM_PARAMETERS_MAX; i++) {
    bool present = false;
    if (rows[i] < 0) continue;
    const struct wn_mechanism_array *array = wn_mechanism_parameter(role, i, &run->model->config.attention, &present);
    const void *value = wn_run_param(run, rows[i]);
    void *gradient = run->grads ? wn_run_grad(run, rows[i]) : NULL;
    wn_mechanism_bind(array, value, gradient, out);
  }
}

void wn_layer_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a, struct wn_attention *out) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype rows = run->types.rows;
  const int64_t T = run->T, H = c->heads, Hkv = c->kv_heads, D = c->head_size, N = qkv_width(c);
  const struct wn_stride in_qkv = {T * N, N, D};
  memset(out, 0, sizeof *out);
  out->B = run->B;
  out->Tq = out->Tk = T;
  out->H = H;
  out->Hkv = Hkv;
  out->D = D;
  out->row_type = wn_type_field(rows);
  wn_attention_terms(&c->attention, l, D, out);
  if (out->sinks.k && run->model->zeros)
    out->sinks.k = out->sinks.v = run->model->zeros; /* sinks.k is on the host otherwise */
  bind_parameters(run, run->model->layers[l].mechanism, WN_ARRAY_PARAMETER, out);
  bind_parameters(run, run->model->layers[l].shared, WN_ARRAY_SHARED, out);
  if (c->attention.relative.enabled && out->relative.P == 0) out->relative.P = c->context + c->recurrence;
  out->span.s_z = (struct wn_stride){.h = 1};
  wn_inputs_bind(run, a, out);
  out->threshold.cut = a->cut;
  if (out->threshold.on && run->recurrence.rows == 0) out->threshold.control = run->control;
  out->exclusive.dot = a->dot;
  out->gate.ungated = a->ungated;
  out->dropout.seed = run->seed;
  out->dropout.stream = run->stream + (uint64_t)(1 + 2 * c->layers + l);
  if (!run->training) out->dropout.p = 0;
  if (run->training) wn_attention_in_training(out);
  out->q = c->qk_norm ? a->q : a->qkv;
  out->k = c->qk_norm ? a->k : wn_element(a->qkv, H * D, rows);
  out->v = wn_element(a->qkv, (H + Hkv) * D, rows);
  out->y = a->att;
  out->s_q = c->qk_norm ? (struct wn_stride){T * H * D, H * D, D} : in_qkv;
  out->s_k = c->qk_norm ? (struct wn_stride){T * Hkv * D, Hkv * D, D} : in_qkv;
  out->s_v = in_qkv;
  out->s_y = (struct wn_stride){T * H * D, H * D, D};
  out->doc_start = run->doc_start;
  out->key_count = run->key_count;
  out->lse = a->lse;
  if (run->budgets && (run->measuring || wn_evictions_any(run->budgets, l, T))) {
    const int64_t P =
        wn_policy_groups(run->budgets, Hkv, out->sel.on ? wn_attention_selections(&c->attention, Hkv) : 0);
    out->slots.groups = P;
    out->slots.evicted_at = run->evicted_at + l * run->B * P * T;
  }
  out->sel.M = run->no_mem ? NULL : a->M;
  if (run->no_mem) out->sel.mem = false;
  out->sel.dead_share = run->exec.ctx ? run->exec.ctx->dead_keys : 0;
  if (run->recurrence.rows > 0) wn_recurrence_attention(run, l, a, out);
}

wn_status wn_layer_activate(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  if (c->experts.count > 0) return WN_OK; /* experts keep no activations here */
  const struct wn_act act = {.kind = act_kind(c),
                             .type = wn_type_field(run->types.ffn),
                             .M = run->B * run->T,
                             .F = c->ffn_width,
                             .x = a->in,
                             .y = a->act};
  WN_TRY(wn_run_act_forward(run, &act));
  return hidden_dropout(run, l, a->act);
}

/* The output of branch 1 (attention) or 2 (feed-forward): its last projection. */
static wn_status branch_output(struct wn_run *run, int64_t l, struct wn_layer_acts *a, int branch, void *to) {
  const struct wn_layer_params *p = &run->model->layers[l];
  if (branch == 1) return wn_run_project(run, projection_out(run, p), a->att, to);
  if (run->model->config.experts.count > 0) return wn_layer_experts_forward(run, l, a, to);
  return wn_run_project(run, projection_ffn_out(run, p), a->act, to);
}

/* Computes a branch's output in temp->branch: its last projection, its norm if it has one, and dropout. */
static wn_status finish_branch(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                               int branch) {
  const struct wn_layer_params *p = &run->model->layers[l];
  if (wn_norm_on_branch(&run->model->config)) {
    void *out = branch == 1 ? a->out1 : a->out2;
    WN_TRY(branch_output(run, l, a, branch, out));
    WN_TRY(wn_run_norm(run, run->B * run->T, branch_norm_of(p, a, branch), out, NULL, NULL, temp->branch));
  } else {
    WN_TRY(branch_output(run, l, a, branch, temp->branch));
  }
  return wn_run_branch(run, branch + 2 * l, temp->branch);
}

wn_status wn_layer_after(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                         bool output) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  WN_TRY(finish_branch(run, l, a, temp, 1));
  const void *base = wn_norm_is_post(c) ? a->n1 : a->x;
  if (c->encoder.layers > 0) {
    WN_TRY(wn_cross_forward(run, l, a, temp));
    base = a->cmid;
  }
  WN_TRY(wn_run_norm(run, run->B * run->T, norm2_of(run, p, a), base, temp->branch, a->mid, a->n2));
  if (c->experts.count > 0)
    return finish_branch(run, l, a, temp, 2); /* backward needs what the experts store in forward */
  WN_TRY(wn_run_project(run, projection_ffn_in(run, p), a->n2, a->in));
  WN_TRY(wn_layer_activate(run, l, a));
  /* Backward through the branch's norm needs the norm's input. */
  return output || wn_norm_on_branch(c) ? finish_branch(run, l, a, temp, 2) : WN_OK;
}

wn_status wn_layer_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                           const void *prev_mid, const void *prev_branch, bool output) {
  struct wn_attention attention;
  run->unturned = wn_layer_has_cache_positions(run, l);
  WN_TRY(wn_layer_before(run, l, a, prev_mid, prev_branch));
  WN_TRY(wn_inputs_sum(run, a));
  wn_layer_attention(run, l, a, &attention);
  if (run->unturned) {
    run->unturned = false;
    WN_TRY(wn_layer_attend_cache_positions(run, l, &attention));
    return wn_layer_after(run, l, a, temp, output);
  }
  if (attention.slots.evicted_at) WN_TRY(wn_layer_evict(run, l, &attention));
  WN_TRY(wn_layer_attend(run, l, &attention));
  return wn_layer_after(run, l, a, temp, output);
}

wn_status wn_layer_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  WN_TRY(entry_norm(run, l, a, NULL, NULL));
  /* Without QK-norm qkv is rotated already. */
  if (c->qk_norm && run->recurrence.rows == 0) WN_TRY(finish_qk(run, l, a));
  if (c->encoder.layers > 0) WN_TRY(wn_cross_rebuild(run, l, a));
  WN_TRY(wn_run_norm(run, run->B * run->T, norm2_of(run, p, a), a->mid, NULL, NULL, a->n2));
  return wn_layer_activate(run, l, a);
}

/* ---- backward ---- */

struct wn_memory_loss wn_layer_memory_loss(const struct wn_run *run, const struct wn_layer_acts *a, double *sum) {
  const wn_model_config *c = &run->model->config;
  return (struct wn_memory_loss){.B = run->B,
                                 .G = wn_attention_selections(&c->attention, c->kv_heads),
                                 .T = run->T,
                                 .doc_start = run->doc_start,
                                 .count = run->row_count,
                                 .M = a->M,
                                 .sum = sum,
                                 .scale = run->mem_coef};
}

static wn_status layer_attention_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a,
                                          struct wn_layer_temp *temp) {
  const wn_model_config *c = &run->model->config;
  const wn_dtype of_rows = run->types.rows;
  const int64_t H = c->heads, Hkv = c->kv_heads, D = c->head_size, N = qkv_width(c);
  struct wn_attention attention;
  wn_layer_attention(run, l, a, &attention);
  attention.dy = temp->d_act;
  attention.dq = c->qk_norm ? temp->d_q : temp->d_qkv;
  attention.dk = c->qk_norm ? temp->d_k : wn_element(temp->d_qkv, H * D, of_rows);
  attention.dv = wn_element(temp->d_qkv, (H + Hkv) * D, of_rows);
  wn_inputs_bind_gradients(run, temp, &attention);
  if (a->M && run->mem_coef != 0) { /* M has been summed and nothing else reads it, so its gradient takes its place */
    const struct wn_memory_loss loss = wn_layer_memory_loss(run, a, NULL);
    WN_TRY(wn_run_memory_loss_backward(run, &loss));
    attention.sel.dM = a->M;
  }
  if (run->recurrence.rows > 0) {
    WN_TRY(wn_recurrence_backward(run, l, a, temp, &attention));
    return wn_span_backward(run, l, temp);
  }
  WN_TRY(wn_run_attention_backward(run, &attention));
  WN_TRY(wn_span_backward(run, l, temp));
  WN_TRY(wn_inputs_keys_backward(run, l, a, temp, true));
  WN_TRY(layer_rotate(run, l, temp->d_qkv, temp->d_q, temp->d_k, true));
  WN_TRY(wn_inputs_keys_backward(run, l, a, temp, false));
  if (!c->qk_norm) return WN_OK;
  struct wn_norm nq = layer_query_norm(run, l, a), nk = layer_key_norm(run, l, a);
  nq.dy = temp->d_q, nq.lddy = H * D, nq.dx = temp->d_qkv, nq.lddx = N;
  nk.dy = temp->d_k, nk.lddy = Hkv * D, nk.dx = wn_element(temp->d_qkv, H * D, of_rows), nk.lddx = N;
  WN_TRY(wn_run_norm_backward(run, &nq));
  return wn_run_norm_backward(run, &nk);
}

/* Backward through a norm over the width. A norm before the branch: the branch's gradient d_n goes through it and is
 * added to the residual stream's. A norm after the addition: the gradient of the sum goes through it; there is no
 * other. */
static wn_status through_norm(struct wn_run *run, struct wn_norm_site at, const void *x, struct wn_layer_temp *temp) {
  const bool post = wn_norm_is_post(&run->model->config);
  if (post && at.gain < 0) return WN_OK; /* the first layer's input has no norm */
  return wn_run_norm_grad(run, run->B * run->T, at, x, post ? temp->d_res : temp->d_n, temp->d_res, !post);
}

/* The gradient of a branch's last projection's output. */
static wn_status branch_output_gradient(struct wn_run *run, int64_t l, struct wn_layer_acts *a,
                                        struct wn_layer_temp *temp, int branch, const void **out) {
  const struct wn_layer_params *p = &run->model->layers[l];
  WN_TRY(wn_layer_branch_grad(run, branch + 2 * l, temp, out));
  if (!wn_norm_on_branch(&run->model->config)) return WN_OK;
  WN_TRY(wn_run_norm_grad(run, run->B * run->T, branch_norm_of(p, a, branch), branch == 1 ? a->out1 : a->out2, *out,
                          temp->branch, false));
  *out = temp->branch;
  return WN_OK;
}

/* Computes the gradient of the input of a branch's last projection in temp->d_act. */
static wn_status branch_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                                 int branch) {
  const struct wn_layer_params *p = &run->model->layers[l];
  const void *d_branch;
  WN_TRY(branch_output_gradient(run, l, a, temp, branch, &d_branch));
  if (branch == 1) return wn_run_project_back(run, projection_out(run, p), a->att, d_branch, temp->d_act, false);
  return wn_run_project_back(run, projection_ffn_out(run, p), a->act, d_branch, temp->d_act, false);
}

/* Backward through the feed-forward, to d_in. */
static wn_status ffn_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                              void *d_in) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  const bool post = wn_norm_is_post(c);
  if (c->experts.count > 0) {
    const void *d_branch;
    WN_TRY(branch_output_gradient(run, l, a, temp, 2, &d_branch));
    return wn_layer_experts_backward(run, l, a, d_branch, d_in);
  }
  WN_TRY(branch_backward(run, l, a, temp, 2));
  WN_TRY(hidden_dropout(run, l, temp->d_act));
  const struct wn_act act = {.kind = act_kind(c),
                             .type = wn_type_field(run->types.ffn),
                             .M = run->B * run->T,
                             .F = c->ffn_width,
                             .x = a->in,
                             .dy = temp->d_act,
                             .dx = a->in};
  WN_TRY(wn_run_act_backward(run, &act));
  return wn_run_project_back(run, projection_ffn_in(run, p), a->n2, a->in, d_in, post);
}

wn_status wn_layer_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  const bool post = wn_norm_is_post(c);
  void *d_in = post ? temp->d_res : temp->d_n; /* gradient of the branch's input; with norms after the addition it is
                                                  added to that of the sum */

  WN_TRY(ffn_backward(run, l, a, temp, d_in));
  WN_TRY(through_norm(run, norm2_of(run, p, a), a->mid, temp));
  if (c->encoder.layers > 0) WN_TRY(wn_cross_backward(run, l, a, temp));

  WN_TRY(branch_backward(run, l, a, temp, 1));
  WN_TRY(layer_attention_backward(run, l, a, temp));
  if (run->recurrence.rows > 0)
    WN_TRY(wn_recurrence_maps_backward(run, l, a, temp, d_in, post));
  else
    WN_TRY(wn_run_project_back(run, projection_qkv(run, p), a->n1, temp->d_qkv, d_in, post));
  WN_TRY(wn_inputs_backward(run, l, a, temp, d_in));
  return through_norm(run, norm1_of(run, p, a), a->x, temp);
}
