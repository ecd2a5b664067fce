/* Spans in the model: dynamic spans from the layer's input, and the loss that keeps spans short.
 *   z[t,h] = sigmoid(v[h] . x[t] + b[h]),  x the attention's input            (Sukhbaatar et al. 2019, section 2.3)
 *   span loss = lambda/H * sum over layers and heads of limit * z             (the same, equation 7)
 * where z is a token's own, its mean over tokens. Cost: 2 H C operations a token.
 *
 * And how far back a layer looks, for whoever keeps tokens for it: the key at distance x has a weight while
 * x < ramp + limit * z, so that the widest head bounds the layer ("memory trimmed by the widest head", section 2). */
#include <math.h>

#include "model/layer.h"
#include "ops/attention.h"

const void *wn_layer_spans(const struct wn_model *model, int64_t l) {
  for (int i = 0; i < WN_MECHANISM_PARAMETERS_MAX; i++) {
    bool present;
    const int row = model->layers[l].mechanism[i];
    if (row < 0) continue;
    const struct wn_mechanism_array *array =
        wn_mechanism_parameter(WN_ARRAY_PARAMETER, i, &model->config.attention, &present);
    if (array->op == offsetof(struct wn_attention, span.z))
      return wn_at(model->params, (int64_t)model->table.rows[row].offset, model->dtype);
  }
  return NULL;
}

int64_t wn_layer_reach(const struct wn_model *model, int64_t l) {
  const wn_model_config *c = &model->config;
  struct wn_attention terms = {.H = c->heads, .Hkv = c->kv_heads};
  wn_attention_terms(&c->attention, l, c->head_size, &terms);
  int64_t reach = terms.window > 0 ? terms.window - 1 : INT64_MAX;
  if (!terms.span.on) return reach;
  double widest = terms.span.dynamic ? 1 : 0;
  const void *z = wn_layer_spans(model, l);
  for (int64_t h = 0; z && h < c->heads; h++) {
    const double ratio = model->dtype == WN_F64 ? ((const double *)z)[h] : (double)((const float *)z)[h];
    if (!(ratio <= widest)) widest = ratio;
  }
  const double span = ceil(terms.span.ramp + terms.span.limit * widest); /* not a number: no bound */
  return span < (double)reach ? (int64_t)span : reach;
}

int64_t wn_layer_memory(const struct wn_model *model, int64_t l, int64_t memory, bool learning) {
  const wn_span_config *span = &model->config.attention.span;
  const int64_t grain = WN_MEMORY_GRAIN, reach = wn_layer_reach(model, l);
  if (reach >= memory) return memory;
  const int64_t spare = learning && span->enabled && !span->dynamic ? grain : 0;
  const int64_t keep = (reach + grain - 1) / grain * grain + spare;
  return keep < memory ? keep : memory;
}

bool wn_span_is_dynamic(const wn_model_config *c) {
  return c->attention.span.enabled && c->attention.span.dynamic;
}

static struct wn_linear span_projection(const struct wn_run *run, int64_t l) {
  const struct wn_layer_params *p = &run->model->layers[l];
  const wn_model_config *c = &run->model->config;
  return wn_run_projection(run, run->B * run->T, c->width, c->heads, p->span_weight, p->span_bias);
}

wn_status wn_span_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a) {
  if (!wn_span_is_dynamic(&run->model->config)) return WN_OK;
  const struct wn_linear linear = span_projection(run, l);
  WN_TRY(wn_run_project(run, linear, a->n1, a->z));
  if (run->measuring) return WN_OK;
  float *z32 = a->z;
  double *z64 = a->z;
  for (int64_t i = 0; i < linear.M * linear.N; i++) {
    if (run->exec.dtype == WN_F64)
      z64[i] = 1 / (1 + exp(-z64[i]));
    else
      z32[i] = (float)(1 / (1 + exp(-(double)z32[i])));
  }
  return WN_OK;
}

wn_status wn_span_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a, void *d_z, void *d_x) {
  if (!wn_span_is_dynamic(&run->model->config)) return WN_OK;
  const struct wn_linear linear = span_projection(run, l);
  for (int64_t i = 0; i < linear.M * linear.N && !run->measuring; i++) {
    if (run->exec.dtype == WN_F64)
      ((double *)d_z)[i] *= ((double *)a->z)[i] * (1 - ((double *)a->z)[i]);
    else
      ((float *)d_z)[i] *= ((float *)a->z)[i] * (1 - ((float *)a->z)[i]);
  }
  return wn_run_project_back(run, linear, a->n1, d_z, d_x, true);
}

double wn_span_sum(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  const wn_model_config *c = &run->model->config;
  if (!c->attention.span.enabled) return 0;
  struct wn_attention attention;
  wn_layer_attention(run, l, a, &attention);
  const int64_t rows = c->attention.span.dynamic ? run->B * run->T : 1;
  double sum = 0;
  for (int64_t i = 0; i < rows * c->heads; i++)
    sum += run->exec.dtype == WN_F64 ? ((const double *)attention.span.z)[i]
                                     : (double)((const float *)attention.span.z)[i];
  return sum / (double)rows;
}

void wn_span_loss_backward(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a, void *d_z) {
  const wn_model_config *c = &run->model->config;
  if (!c->attention.span.enabled || run->measuring) return;
  struct wn_attention attention;
  wn_layer_attention(run, l, a, &attention);
  const int64_t rows = c->attention.span.dynamic ? run->B * run->T : 1;
  void *to = c->attention.span.dynamic ? d_z : attention.span.dz;
  if (!to) return; /* held fixed */
  const double each = run->span_coef / (double)rows;
  for (int64_t i = 0; i < rows * c->heads; i++) {
    if (run->exec.dtype == WN_F64)
      ((double *)to)[i] += each;
    else
      ((float *)to)[i] = (float)((double)((float *)to)[i] + each);
  }
}
