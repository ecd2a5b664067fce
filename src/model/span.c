/* Spans in the model: the loss that keeps spans short,
 *   span loss = lambda/H * sum over layers and heads of limit * z             (Sukhbaatar et al. 2019, section 2.2)
 * With dynamic spans, where each token has its z (an input, inputs.c), it is the mean over the batch's tokens without
 * padding.
 *
 * Also here: how far back a layer looks, for code that keeps tokens for it. The key at distance x has a weight if x <
 * ramp + limit * z, so the widest head bounds the layer, and caches are trimmed to that bound (the memory that section
 * 3 of the paper counts). */
#include <math.h>

#include "attention/registry.h"
#include "model/layer.h"
#include "ops/attention.h"

/* The table row of layer l's static spans; -1: it has none. */
static int span_row(const struct wn_model *model, int64_t l) {
  for (int i = 0; i < WN_MECHANISM_PARAMETERS_MAX; i++) {
    bool present;
    const int row = model->layers[l].mechanism[i];
    if (row < 0) continue;
    if (wn_mechanism_parameter(WN_ARRAY_PARAMETER, i, &model->config.attention, &present)->op == WN_OP_AT(span.z))
      return row;
  }
  return -1;
}

const void *wn_layer_spans(const struct wn_model *model, int64_t l) {
  const int row = span_row(model, l);
  return row < 0 ? NULL : wn_element(model->params, (int64_t)model->table.rows[row].offset, model->dtype);
}

int64_t wn_layer_reach(const struct wn_model *model, int64_t l) {
  const wn_model_config *c = &model->config;
  struct wn_attention terms = {.H = c->heads, .Hkv = c->kv_heads};
  wn_attention_terms(&c->attention, l, c->head_size, &terms);
  int64_t reach = terms.window > 0 ? terms.window - 1 : INT64_MAX;
  if (!terms.span.on) return reach;
  double widest = terms.span.dynamic ? 1 : 0;
  const int row = span_row(model, l);
  for (int64_t h = 0; row >= 0 && h < c->heads; h++) {
    const double ratio = wn_model_value(model, row, h);
    if (!(ratio <= widest)) widest = ratio;
  }
  const double span = ceil(terms.span.ramp + terms.span.limit * widest); /* NaN: no bound */
  return span < (double)reach ? (int64_t)span : reach;
}

int64_t wn_layer_recurrence(const struct wn_model *model, int64_t l, int64_t recurrence, bool learning) {
  const wn_span_config *span = &model->config.attention.span;
  const int64_t grain = WN_RECURRENCE_GRAIN, reach = wn_layer_reach(model, l);
  if (reach >= recurrence) return recurrence;
  const int64_t spare = learning && span->enabled && !span->dynamic ? grain : 0;
  const int64_t keep = (reach + grain - 1) / grain * grain + spare;
  return keep < recurrence ? keep : recurrence;
}

int wn_span_input(const wn_model_config *c) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(c, in);
  for (int i = 0; i < n; i++)
    if (in[i].array->op == WN_OP_AT(span.z)) return in[i].slot;
  return -1;
}

static int64_t span_tokens(const struct wn_run *run) {
  int64_t n = 0;
  for (int64_t b = 0; b < run->B; b++) n += run->rows.count ? run->rows.count[b] : run->T;
  return n > 0 ? n : 1;
}

/* The spans of each token, if `input` has them, else those of the layer. */
static struct wn_span_sum span_of(const struct wn_run *run, int input) {
  const bool own = input >= 0;
  return (struct wn_span_sum){.rows = own ? run->B * run->T : 1,
                              .heads = run->model->config.heads,
                              .T = run->T,
                              .row_count = own ? run->row_count : NULL,
                              .tokens = (double)(own ? span_tokens(run) : 1),
                              .scale = run->span_coef};
}

wn_status wn_span_forward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a, double *sum) {
  const wn_model_config *c = &run->model->config;
  if (!c->attention.span.enabled) return WN_OK;
  const int input = wn_span_input(c);
  struct wn_span_sum spans = span_of(run, input);
  spans.z = input >= 0 ? a->input[input] : wn_layer_spans(run->model, l);
  spans.sum = sum;
  return wn_run_span_sum_forward(run, &spans);
}

wn_status wn_span_backward(struct wn_run *run, int64_t l, const struct wn_layer_temp *temp) {
  const wn_model_config *c = &run->model->config;
  if (!c->attention.span.enabled) return WN_OK;
  const int input = wn_span_input(c);
  struct wn_span_sum spans = span_of(run, input);
  spans.dz = input >= 0 ? temp->d_input[input] : wn_run_grad(run, span_row(run->model, l));
  return spans.dz ? wn_run_span_sum_backward(run, &spans) : WN_OK; /* without a gradient spans are fixed */
}
