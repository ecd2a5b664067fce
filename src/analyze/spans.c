/* The spans of a model, and what they save in operations and memory (winnow/analyze.h). Static spans are parameters.
 * Dynamic spans, z = sigmoid(v.x + b) of each token, are recorded from the layers of an evaluation: a histogram of BINS
 * bins for each head, and sums for the means. Cost: an evaluation. */
#include "analyze/input.h"

#include <math.h>

#include "attention/registry.h"
#include "base/misuse.h"
#include "model/config.h"
#include "model/layer.h"
#include "train/eval.h"

#define BINS 8192

/* Statistics of one head's z over tokens. */
struct tally {
  uint64_t bins[BINS], tokens;
  double sum, keys, least, largest; /* keys: sum of the numbers of visible keys */
};

struct watch {
  const struct wn_model *model;
  wn_status status;
  struct tally *tally;   /* [L,H] */
  struct wn_batch batch; /* the current one */
};

static void span_on_batch(void *user, const struct wn_batch *batch) {
  ((struct watch *)user)->batch = *batch;
}

/* How many keys a head with ratio z in layer l sees. */
static double span_keys_of(const wn_model_config *c, int64_t l, double z) {
  const wn_span_config *s = &c->attention.span;
  double keys = fmin(s->limit * z + s->ramp, s->limit);
  if (c->attention.window > 0 && wn_layer_pattern_has(c->attention.window_layers, l))
    keys = fmin(keys, (double)c->attention.window);
  return keys;
}

static void span_count(struct tally *t, double z, double keys) {
  int64_t bin = (int64_t)(z * BINS);
  if (!(z >= 0)) bin = 0;
  if (bin >= BINS) bin = BINS - 1;
  if (t->tokens == 0 || z < t->least) t->least = z;
  if (t->tokens == 0 || z > t->largest) t->largest = z;
  t->bins[bin]++;
  t->tokens++;
  t->sum += z;
  t->keys += keys;
}

static void span_on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct watch *w = user;
  const wn_model_config *c = &w->model->config;
  void *spans;
  if (w->status != WN_OK) return;
  w->status = wn_run_open(run, a->input[wn_span_input(c)], run->B * run->T * c->heads, &spans);
  for (int64_t row = 0; w->status == WN_OK && row < run->B * run->T; row++) {
    if (row % run->T >= wn_batch_tokens(&w->batch, row / run->T)) continue; /* padding */
    for (int64_t h = 0; h < c->heads; h++) {
      const int64_t i = row * c->heads + h;
      const double z = wn_number(spans, i, run->exec.dtype);
      span_count(&w->tally[l * c->heads + h], z, span_keys_of(c, l, z));
    }
  }
  if (w->status == WN_OK) wn_run_close(run, spans);
}

/* The ratio below which a share q of the tokens lies, interpolated within its bin. */
static double span_quantile(const struct tally *t, double q) {
  const double want = q * (double)t->tokens;
  double before = 0;
  for (int i = 0; i < BINS; i++) {
    const double here = (double)t->bins[i];
    if (here > 0 && before + here >= want) {
      const double z = ((double)i + (want - before) / here) / BINS;
      return fmin(fmax(z, t->least), t->largest);
    }
    before += here;
  }
  return t->largest;
}

static wn_status span_take_static(wn_context *ctx, const struct wn_model *model, wn_span_report *r) {
  const wn_model_config *c = &model->config;
  for (int64_t l = 0; l < r->layers; l++) {
    const struct wn_memory *memory = model->backend->memory;
    const size_t bytes = (size_t)r->heads * wn_dtype_size(model->dtype);
    const void *spans = wn_layer_spans(model, l);
    void *z;
    if (!spans) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "layer %lld has no spans", (long long)l);
    WN_TRY(wn_memory_open(ctx, memory, "spans", spans, bytes, &z));
    for (int64_t h = 0; h < r->heads; h++) {
      wn_span_head *head = &r->head[l * r->heads + h];
      const double ratio = model->dtype == WN_F64 ? ((const double *)z)[h] : (double)((const float *)z)[h];
      head->span = r->limit * ratio;
      head->keys = span_keys_of(c, l, ratio);
      for (int i = 0; i < 5; i++) head->quantile[i] = head->span;
    }
    WN_TRY(wn_memory_close(ctx, memory, NULL, 0, z, false));
  }
  return WN_OK;
}

static wn_status span_take_dynamic(wn_context *ctx, struct wn_model *model, const wn_analysis_input *input,
                                   wn_span_report *r) {
  struct watch w = {.model = model};
  WN_TRY(WN_ALLOC(ctx, "histograms of spans", r->layers * r->heads, &w.tally));
  const struct wn_layer_observer observer = {.layer = span_on_layer, .batch = span_on_batch, .user = &w};
  wn_eval_result result;
  wn_status status = input->source ? wn_eval_observed(ctx, model, input->source, input->options, &observer, &result)
                                   : wn_eval_text_observed(ctx, model, input->tok, input->text, input->bytes,
                                                           input->options, &observer, &result);
  if (w.status != WN_OK) status = w.status;
  for (int64_t i = 0; status == WN_OK && i < r->layers * r->heads; i++) {
    const struct tally *t = &w.tally[i];
    const double n = (double)t->tokens;
    wn_span_head *head = &r->head[i];
    head->span = r->limit * t->sum / n;
    head->keys = t->keys / n;
    head->quantile[0] = r->limit * t->least;
    for (int q = 1; q < 4; q++) head->quantile[q] = r->limit * span_quantile(t, 0.25 * q);
    head->quantile[4] = r->limit * t->largest;
    r->tokens = t->tokens;
  }
  wn_free(w.tally);
  return status;
}

static void span_summarize(const struct wn_model *model, wn_span_report *r) {
  const wn_model_config *c = &model->config;
  const double D = (double)c->head_size, C = (double)c->width, H = (double)c->heads, Hkv = (double)c->kv_heads;
  wn_span_operations *o = &r->operations;
  r->state_bytes_token = (int64_t)sizeof(float) * c->width;
  r->cache_bytes_token = (int64_t)sizeof(float) * 2 * c->kv_heads * c->head_size;
  for (int64_t l = 0; l < r->layers; l++) {
    wn_span_layer *layer = &r->layer[l];
    double most = 0;
    for (int64_t h = 0; h < r->heads; h++) {
      const wn_span_head *head = &r->head[l * r->heads + h];
      layer->span += head->span / H;
      layer->widest = fmax(layer->widest, head->quantile[4]);
      most = fmax(most, head->keys);
      o->attention += 2 * D * head->keys;
      r->keys += head->keys / (H * (double)r->layers);
    }
    o->attention_together += 2 * D * H * most;
    o->attention_full += 2 * D * H * span_keys_of(c, l, 1);
    o->maps += C * (H + 2 * Hkv) * D + H * D * C;
    o->ffn += (wn_ffn_has_gate(c) ? 3 : 2) * C * (double)(c->ffn_width * wn_expert_rows(c) + c->experts.shared_width);
    const int64_t reach = wn_layer_reach(model, l), cache = c->context + c->recurrence;
    layer->reach = reach == INT64_MAX ? -1 : reach;
    layer->recurrence_rows = wn_layer_recurrence(model, l, c->recurrence, false);
    layer->cache_tokens = reach < cache ? reach + 1 : cache;
    r->state_bytes += (double)(layer->recurrence_rows * r->state_bytes_token);
    r->state_bytes_full += (double)(c->recurrence * r->state_bytes_token);
    r->cache_bytes += (double)(layer->cache_tokens * r->cache_bytes_token);
    r->cache_bytes_full += (double)(cache * r->cache_bytes_token);
    r->span += layer->span / (double)r->layers;
    r->widest = fmax(r->widest, layer->widest);
  }
  o->total = o->maps + o->ffn + o->attention;
  o->total_together = o->maps + o->ffn + o->attention_together;
  o->total_full = o->maps + o->ffn + o->attention_full;
}

wn_status wn_analyze_spans(wn_context *ctx, wn_model *model, const wn_analysis_input *input, wn_span_report **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  const wn_model_config *c = &model->config;
  const wn_span_config *span = &c->attention.span;
  struct wn_analysis_own own;
  wn_span_report *r;
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  if (!span->enabled)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the model has no spans: model.attention.span is not enabled");
  if (span->dynamic && (!input || (!input->source && !(input->tok && input->text))))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the model's spans are dynamic, set by each token: a text is needed");
  void *memory;
  size_t heads, bytes;
  if (!wn_mul_size((size_t)(c->layers * c->heads), sizeof(wn_span_head), &heads) ||
      !wn_add_size(heads, (size_t)c->layers * sizeof(wn_span_layer) + sizeof *r, &bytes))
    return wn_fail(ctx, WN_ERR_MEMORY, "a report of %lld layers is too large", (long long)c->layers);
  WN_TRY(wn_alloc(ctx, "report of spans", bytes, &memory)); /* one block: report, layers, heads */
  r = memory;
  r->layer = (wn_span_layer *)(void *)(r + 1);
  r->head = (wn_span_head *)(void *)(r->layer + c->layers);
  r->dynamic = span->dynamic;
  r->layers = c->layers, r->heads = c->heads, r->recurrence = c->recurrence, r->context = c->context;
  r->limit = span->limit, r->ramp = span->ramp;
  const wn_status status = span->dynamic ? span_take_dynamic(ctx, model, input, r) : span_take_static(ctx, model, r);
  if (status != WN_OK) {
    wn_free(r);
    return status;
  }
  span_summarize(model, r);
  *out = r;
  return WN_OK;
}

void wn_span_report_destroy(wn_span_report *report) {
  wn_free(report);
}
