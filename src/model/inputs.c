/* The arrays of role INPUT that attention mechanisms read. The mechanism's struct (attention/registry.h) says how the
 * model computes such an array from x, the input of the layer's attention:
 *   y[t] = transform(x[t] w^T + b), or with a hidden layer transform(silu(x[t] v^T + a) w^T + b)
 * one row per token. Cost: 2 C width operations per token and input, twice that backward. One input may read keys
 * instead, each head its own by a network of its own (registry.h), 4 D hidden operations a token. */
#include <string.h>

#include "attention/registry.h"
#include "model/layer.h"
#include "model/workspace.h"
#include "ops/attention.h"

int wn_layer_inputs(const wn_model_config *c, struct wn_attention_input *out) {
  const struct wn_attention_dims dims = {.B = 1, .T = 1, .H = c->heads, .Hkv = c->kv_heads, .D = c->head_size};
  return wn_attention_inputs(&c->attention, &dims, out);
}

const char *wn_model_gates_with(const wn_model_config *c, enum wn_gates_have what) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(c, in);
  for (int i = 0; i < n; i++) {
    double coefficient = 0, unused;
    bool noise = false;
    if (in[i].how->kept_loss) in[i].how->kept_loss(&c->attention, &coefficient, &unused);
    if (in[i].how->relaxed) in[i].how->relaxed(&c->attention, &unused, &noise);
    const bool has[] = {coefficient > 0, noise, in[i].hidden > 0};
    if (has[what]) return in[i].how->array;
  }
  return NULL;
}

bool wn_layer_reads_keys(const wn_model_config *c) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(c, in);
  for (int i = 0; i < n; i++)
    if (in[i].from_keys) return true;
  return false;
}

/* For several groups K is that of one. */
struct wn_linear wn_input_projection(const struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                     int64_t rows) {
  const struct wn_layer_params *p = &run->model->layers[l];
  return wn_run_projection(run, rows, in->hidden > 0 ? in->hidden / in->groups : run->model->config.width, in->width,
                           p->input_weight[in->slot], p->input_bias[in->slot]);
}

static struct wn_sigmoid input_sigmoid(const struct wn_run *run, const struct wn_attention_input *in,
                                       enum wn_sigmoid_kind kind, int64_t B, int64_t T, void *y, void *d_y) {
  const double floor = in->how->floor ? in->how->floor(&run->model->config.attention) : 0;
  return (struct wn_sigmoid){
      .kind = kind, .floor = floor, .n = B * T * in->width, .T = T, .W = in->width, .x = y, .dx = d_y};
}
static enum wn_sigmoid_kind input_kind(const struct wn_attention_input *in) {
  return in->how->transform == WN_INPUT_SIGMOID ? WN_SIGMOID : WN_SIGMOID_LOG;
}

/* y /= temperature, of `rows` rows. */
static wn_status input_cool(struct wn_run *run, const struct wn_attention_input *in, int64_t rows, void *y) {
  double temperature = 1;
  bool noise;
  if (in->how->relaxed) in->how->relaxed(&run->model->config.attention, &temperature, &noise);
  return temperature == 1
             ? WN_OK
             : wn_run_scale_forward(run, &(struct wn_scale){.n = rows * in->width, .factor = 1 / temperature, .x = y});
}

static wn_status input_noise(struct wn_run *run, int64_t l, const struct wn_attention_input *in, void *y) {
  const wn_model_config *c = &run->model->config;
  double temperature;
  bool noise = false;
  if (in->how->relaxed) in->how->relaxed(&c->attention, &temperature, &noise);
  if (!noise || !run->training) return WN_OK;
  return wn_run_noise_forward(run, &(struct wn_noise){.n = run->B * run->T * in->width,
                                                      .seed = run->seed,
                                                      .stream = run->stream + wn_decoder_streams(c) - 1 - (uint64_t)l,
                                                      .x = y});
}

wn_status wn_input_transform(struct wn_run *run, const struct wn_attention_input *in, int64_t rows, void *y) {
  const struct wn_sigmoid a = input_sigmoid(run, in, input_kind(in), 1, rows, y, NULL);
  WN_TRY(input_cool(run, in, rows, y));
  return in->how->transform == WN_INPUT_LINEAR ? WN_OK : wn_run_sigmoid_forward(run, &a);
}

wn_status wn_input_sum(struct wn_run *run, const struct wn_attention_input *in, int64_t B, int64_t T, void *y) {
  const struct wn_sigmoid a = input_sigmoid(run, in, WN_SIGMOID_SUMS, B, T, y, NULL);
  return in->how->transform == WN_INPUT_LOG_SIGMOID_SUMS ? wn_run_sigmoid_forward(run, &a) : WN_OK;
}

wn_status wn_input_transform_back(struct wn_run *run, const struct wn_attention_input *in, int64_t B, int64_t T,
                                  const void *y, void *d_y) {
  const bool sums = in->how->transform == WN_INPUT_LOG_SIGMOID_SUMS;
  const struct wn_sigmoid a =
      input_sigmoid(run, in, sums ? WN_SIGMOID_SUMS : input_kind(in), B, T, (void *)(uintptr_t)y, d_y);
  if (in->how->transform != WN_INPUT_LINEAR) WN_TRY(wn_run_sigmoid_backward(run, &a));
  return input_cool(run, in, B * T, d_y);
}

wn_status wn_inputs_sum(struct wn_run *run, const struct wn_layer_acts *a) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = run->recurrence.rows > 0 ? 0 : wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) WN_TRY(wn_input_sum(run, &in[i], run->B, run->T, a->input[in[i].slot]));
  return WN_OK;
}

/* The projection that computes an input, or its hidden layer, from the normed x that the layer keeps, or from keys; for
 * several groups K is that of one. */
static struct wn_linear input_of_layer(const struct wn_run *run, int64_t l, const struct wn_attention_input *in) {
  const struct wn_layer_params *p = &run->model->layers[l];
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T, s = in->slot, K = in->from_keys ? 2 * c->head_size : c->width;
  struct wn_linear a = in->hidden > 0 ? wn_run_projection(run, M, K, in->hidden, p->hidden_weight[s], p->hidden_bias[s])
                                      : wn_input_projection(run, l, in, M);
  if (!in->from_keys) a.x_type = wn_type_field(run->types.norms);
  return a;
}

/* Group g's part of a product of a network for each group: rows of w and b, columns of x and y. */
static struct wn_linear input_part(const struct wn_run *run, struct wn_linear a, int64_t g, int64_t groups) {
  const wn_dtype dtype = run->exec.dtype;
  if (groups == 1) return a;
  a.N /= groups;
  a.ldx = a.lddx = groups * a.K;
  a.w = wn_element(a.w, g * a.N * a.K, dtype), a.b = wn_element(a.b, g * a.N, dtype);
  a.dw = wn_element(a.dw, g * a.N * a.K, dtype), a.db = wn_element(a.db, g * a.N, dtype);
  return a;
}

static wn_status input_product(struct wn_run *run, int64_t groups, struct wn_linear a, const void *x, void *y) {
  const wn_dtype dtype = run->exec.dtype;
  for (int64_t g = 0; g < groups; g++) {
    const struct wn_linear part = input_part(run, a, g, groups);
    WN_TRY(wn_run_project(run, part, wn_element(x, g * part.K, dtype), wn_element(y, g * part.N, dtype)));
  }
  return WN_OK;
}

static wn_status input_product_back(struct wn_run *run, int64_t groups, struct wn_linear a, const void *x,
                                    const void *dy, void *dx, bool accumulate) {
  const wn_dtype dtype = run->exec.dtype;
  for (int64_t g = 0; g < groups; g++) {
    const struct wn_linear part = input_part(run, a, g, groups);
    WN_TRY(wn_run_project_back(run, part, wn_element(x, g * part.K, dtype), wn_element(dy, g * part.N, dtype),
                               wn_element(dx, g * part.K, dtype), accumulate));
  }
  return WN_OK;
}

/* The hidden layer's activation: of networks on keys GELU, else SiLU. */
static wn_status input_activate(struct wn_run *run, const struct wn_attention_input *in, const struct wn_layer_acts *a,
                                void *d) {
  const int64_t M = run->B * run->T, s = in->slot;
  const struct wn_act gelu = {
      .kind = WN_ACT_GELU_ERF, .M = M, .F = in->hidden, .x = a->hidden[s], .y = a->hidden_act[s], .dy = d, .dx = d};
  const struct wn_silu silu = {.n = M * in->hidden, .x = a->hidden[s], .y = a->hidden_act[s], .dy = d, .dx = d};
  if (in->from_keys) return d ? wn_run_act_backward(run, &gelu) : wn_run_act_forward(run, &gelu);
  return d ? wn_run_silu_backward(run, &silu) : wn_run_silu_forward(run, &silu);
}

/* y = x w^T + b, through the hidden layer if there is one. */
static wn_status input_project(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                               const struct wn_layer_acts *a, void *y) {
  const struct wn_linear first = input_of_layer(run, l, in);
  const void *x = in->from_keys ? a->key_norms : a->n1;
  if (in->hidden == 0) return wn_run_project(run, first, x, y);
  WN_TRY(input_product(run, in->groups, first, x, a->hidden[in->slot]));
  WN_TRY(input_activate(run, in, a, NULL));
  const struct wn_linear last = wn_input_projection(run, l, in, run->B * run->T);
  return input_product(run, in->groups, last, a->hidden_act[in->slot], y);
}

/* Adds to d_x, the gradient of the normed x; from keys overwrites it, then that of the normed keys. */
static wn_status input_project_back(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                    const struct wn_layer_acts *a, const struct wn_layer_temp *temp, void *d_x) {
  const struct wn_linear first = input_of_layer(run, l, in);
  void *d = temp->d_input[in->slot], *d_hidden = temp->d_hidden[in->slot];
  if (in->hidden == 0) return wn_run_project_back(run, first, a->n1, d, d_x, true);
  const struct wn_linear last = wn_input_projection(run, l, in, run->B * run->T);
  WN_TRY(input_product_back(run, in->groups, last, a->hidden_act[in->slot], d, d_hidden, false));
  WN_TRY(input_activate(run, in, a, d_hidden));
  return input_product_back(run, in->groups, first, in->from_keys ? a->key_norms : a->n1, d_hidden, d_x,
                            !in->from_keys);
}

wn_status wn_inputs_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, bool of_keys) {
  const int64_t M = run->B * run->T;
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    if (in[i].how->of_keys != of_keys) continue;
    void *y = a->input[in[i].slot];
    if (in[i].from_keys) WN_TRY(wn_input_keys_norm(run, l, &in[i], a));
    WN_TRY(input_project(run, l, &in[i], a, y));
    WN_TRY(input_noise(run, l, &in[i], y));
    WN_TRY(wn_input_transform(run, &in[i], M, y));
  }
  return WN_OK;
}

void wn_inputs_bind(const struct wn_run *run, const struct wn_layer_acts *a, struct wn_attention *out) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    const struct wn_stride strides = {run->T * in[i].width, in[i].width, in[i].size};
    wn_mechanism_bind(in[i].array, a->input[in[i].slot], NULL, out);
    *wn_mechanism_strides(in[i].how, in[i].array, out) = strides;
  }
}

void wn_inputs_bind_gradients(const struct wn_run *run, const struct wn_layer_temp *temp, struct wn_attention *out) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) wn_mechanism_bind_gradient(in[i].array, temp->d_input[in[i].slot], out);
}

/* The loss of an input's gates: coefficient * (kept - most) where what they keep, a mean over layers, is above `most`.
 */
struct gates_loss {
  double coefficient, most;
};
static struct gates_loss gates_loss_of(const struct wn_run *run, const struct wn_attention_input *in) {
  double coefficient, keep;
  if (!in->how->kept_loss || run->recurrence.rows > 0) return (struct gates_loss){0};
  in->how->kept_loss(&run->model->config.attention, &coefficient, &keep);
  const double weight = run->measuring ? 1 : run->gate_weight;
  return keep > 0 ? (struct gates_loss){coefficient, 1 - weight * (1 - keep)}
                  : (struct gates_loss){coefficient * weight, 0};
}

static struct wn_gate_share gates_of(const struct wn_run *run, const struct wn_attention_input *in,
                                     const struct wn_layer_acts *a) {
  return (struct wn_gate_share){.B = run->B,
                                .T = run->T,
                                .heads = in->width,
                                .doc_start = run->doc_start,
                                .count = run->row_count,
                                .ages = in->how->kept_by_age,
                                .c = a->input[in->slot]};
}

wn_status wn_gates_forward(struct wn_run *run, struct wn_workspace *ws, int64_t l, const struct wn_layer_acts *a) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    if (gates_loss_of(run, &in[i]).coefficient == 0) continue;
    struct wn_gate_share gates = gates_of(run, &in[i], a);
    gates.sum = wn_workspace_sum(ws, WN_SUM_GATES + in[i].slot, l);
    WN_TRY(wn_run_gate_share_forward(run, &gates));
  }
  return WN_OK;
}

double wn_gates_loss(const struct wn_run *run, const struct wn_workspace *ws, const double *sums) {
  const int64_t layers = run->model->config.layers;
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  double loss = 0;
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    const struct gates_loss of = gates_loss_of(run, &in[i]);
    double kept = 0;
    for (int64_t l = 0; l < layers && of.coefficient > 0; l++)
      kept += sums[wn_workspace_sum_at(ws, WN_SUM_GATES + in[i].slot, l)] / (double)layers;
    if (kept > of.most) loss += of.coefficient * (kept - of.most);
  }
  return loss;
}

static wn_status gates_backward(struct wn_run *run, const struct wn_attention_input *in, const struct wn_layer_acts *a,
                                void *d_y) {
  const struct gates_loss of = gates_loss_of(run, in);
  if (of.coefficient == 0 || (run->gate_coef == 0 && !run->measuring)) return WN_OK;
  struct wn_gate_share gates = gates_of(run, in, a);
  gates.layers = run->model->config.layers;
  gates.scale = of.coefficient * run->gate_coef;
  gates.most = of.most;
  gates.sums = of.most > 0 && run->gate_sums ? run->gate_sums + in->slot * gates.layers : NULL;
  gates.dc = d_y;
  return wn_run_gate_share_backward(run, &gates);
}

/* Backward of an input to d_x, as input_project_back's. */
static wn_status input_backward(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                const struct wn_layer_acts *a, const struct wn_layer_temp *temp, void *d_x) {
  void *d_y = temp->d_input[in->slot];
  WN_TRY(gates_backward(run, in, a, d_y));
  WN_TRY(wn_input_transform_back(run, in, run->B, run->T, a->input[in->slot], d_y));
  return input_project_back(run, l, in, a, temp, d_x);
}

wn_status wn_inputs_keys_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                  const struct wn_layer_temp *temp, bool rotated) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    if (!in[i].from_keys) continue;
    if (rotated) WN_TRY(input_backward(run, l, &in[i], a, temp, temp->d_key_norms));
    WN_TRY(wn_input_keys_norm_back(run, l, &in[i], a, temp, rotated));
  }
  return WN_OK;
}

wn_status wn_inputs_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             const struct wn_layer_temp *temp, void *d_x) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&run->model->config, in);
  for (int i = 0; i < n; i++) {
    if (in[i].from_keys || (in[i].how->of_keys && run->recurrence.rows > 0)) continue;
    WN_TRY(input_backward(run, l, &in[i], a, temp, d_x));
  }
  return WN_OK;
}
