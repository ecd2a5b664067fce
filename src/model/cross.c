/* A decoder layer's attention over its encoder's states, between its own attention and its feed-forward:
 *
 *   x -> norm -> self attention -> + x = cmid -> norm -> attention over the states -> + cmid = mid -> ffn
 *
 * Queries come from the decoder's residual stream, keys and values from the encoder's states, without positions. Cost
 * of a layer: 2 M C H D + 4 B S C Hkv D operations in the projections and 4 M S H D in the attention, where S is the
 * number of encoder rows per sequence; twice that backward. Decoding computes keys and values once. */
#include "attention/registry.h"
#include "model/layer.h"
#include "ops/attention.h"

wn_status wn_layer_branch_grad(struct wn_run *run, int64_t place, struct wn_layer_temp *temp, const void **out) {
  *out = temp->d_res;
  if (run->dropout <= 0 && run->model->config.residual_scale <= 0) return WN_OK;
  *out = temp->branch;
  WN_TRY(wn_run_copy(run, temp->branch, temp->d_res, run->B * run->T * run->model->config.width));
  return wn_run_branch(run, place, temp->branch);
}

static int64_t cross_kv_width(const wn_model_config *c) {
  return 2 * c->kv_heads * c->head_size;
}

static struct wn_norm_site cross_norm(const struct wn_layer_params *p, const struct wn_layer_acts *a) {
  return (struct wn_norm_site){.gain = p->cross_gain, .shift = p->cross_shift, .rstd = a->crstd, .mean = a->cmean};
}
static struct wn_linear cross_queries(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return wn_run_projection(run, run->B * run->T, c->width, c->heads * c->head_size, p->cross_q_weight, p->cross_q_bias);
}
static struct wn_linear cross_states(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return wn_run_projection(run, run->B * run->cross.S, c->width, cross_kv_width(c), p->cross_kv_weight,
                           p->cross_kv_bias);
}
static struct wn_linear cross_out(const struct wn_run *run, const struct wn_layer_params *p) {
  const wn_model_config *c = &run->model->config;
  return wn_run_projection(run, run->B * run->T, c->heads * c->head_size, c->width, p->cross_out_weight,
                           p->cross_out_bias);
}

static void cross_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                            struct wn_attention *out) {
  const wn_model_config *c = &run->model->config;
  const int64_t T = run->T, S = run->cross.S, D = c->head_size, HD = c->heads * D, W = cross_kv_width(c);
  wn_model_config plain;
  wn_encoder_config(c, &plain);
  plain.attention.buckets.enabled = plain.attention.selective.enabled = false;
  *out = (struct wn_attention){.B = run->B, .Tq = T, .Tk = S, .H = c->heads, .Hkv = c->kv_heads, .D = D};
  wn_attention_terms(&plain.attention, l, D, out);
  const void *kv = run->cross.kv ? run->cross.kv + (size_t)l * run->cross.kv_bytes : a->ckv;
  out->key_count = run->cross.count;
  out->dropout.seed = run->seed;
  out->dropout.stream = run->stream + (uint64_t)(1 + 5 * c->layers + l);
  if (!run->training) out->dropout.p = 0;
  out->q = a->cq, out->k = kv, out->v = wn_element(kv, W / 2, run->exec.dtype), out->y = a->catt, out->lse = a->clse;
  out->s_q = out->s_y = (struct wn_stride){T * HD, HD, D};
  out->s_k = out->s_v = (struct wn_stride){S * W, W, D};
}

wn_status wn_cross_keys(struct wn_run *run, int64_t l, void *kv) {
  return wn_run_project(run, cross_states(run, &run->model->layers[l]), run->cross.states, kv);
}

wn_status wn_cross_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  if (run->cross.S == 0)
    return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "the model has an encoder, and it was given no inputs");
  WN_TRY(wn_run_norm(run, run->B * run->T, cross_norm(p, a), a->x, temp->branch, a->cmid, a->cn));
  WN_TRY(wn_run_project(run, cross_queries(run, p), a->cn, a->cq));
  if (!run->cross.kv) WN_TRY(wn_cross_keys(run, l, a->ckv));
  struct wn_attention attention;
  cross_attention(run, l, a, &attention);
  WN_TRY(wn_run_attention_forward(run, &attention));
  WN_TRY(wn_run_project(run, cross_out(run, p), a->catt, temp->branch));
  return wn_run_branch(run, 1 + 4 * c->layers + l, temp->branch);
}

wn_status wn_cross_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  return wn_run_norm(run, run->B * run->T, cross_norm(&run->model->layers[l], a), a->cmid, NULL, NULL, a->cn);
}

wn_status wn_cross_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  const void *d_branch;
  WN_TRY(wn_layer_branch_grad(run, 1 + 4 * c->layers + l, temp, &d_branch));
  WN_TRY(wn_run_project_back(run, cross_out(run, p), a->catt, d_branch, temp->d_act, false));
  struct wn_attention attention;
  cross_attention(run, l, a, &attention);
  attention.dy = temp->d_act;
  attention.dq = temp->d_qkv; /* not in use before the layer's own attention */
  attention.dk = temp->d_ckv, attention.dv = wn_element(temp->d_ckv, cross_kv_width(c) / 2, run->exec.dtype);
  WN_TRY(wn_run_attention_backward(run, &attention));
  WN_TRY(wn_run_project_back(run, cross_states(run, p), run->cross.states, temp->d_ckv, run->cross.d_states, true));
  WN_TRY(wn_run_project_back(run, cross_queries(run, p), a->cn, temp->d_qkv, temp->d_n, false));
  return wn_run_norm_grad(run, run->B * run->T, cross_norm(p, a), a->cmid, temp->d_n, temp->d_res, true);
}
