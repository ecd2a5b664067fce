/* Dynamic spans token by token (Sukhbaatar et al. 2019, figure 5), recorded from the layers of an evaluation in the
 * order of the text, and their means where words begin. Cost: an evaluation, and 4 L H bytes per token. */
#include "analyze/input.h"

#include "base/misuse.h"
#include "model/layer.h"
#include "train/eval.h"

struct tokens_watch {
  wn_context *ctx;
  const struct wn_model *model;
  wn_status status;
  struct wn_batch batch; /* the current one */
  wn_span_tokens *r;
  size_t room[2]; /* capacity of the arrays */
  int64_t first;  /* number of the batch's first token */
};

static wn_status tokens_grow(struct tokens_watch *w, int64_t more) {
  wn_span_tokens *r = w->r;
  WN_TRY(WN_GROW(w->ctx, "spans of tokens", &r->id, r->count, more, &w->room[0]));
  return wn_grow(w->ctx, "spans of tokens", &r->span, (size_t)(r->layers * r->heads) * sizeof *r->span,
                 (size_t)r->count, (size_t)more, &w->room[1]);
}

static void tokens_on_batch(void *user, const struct wn_batch *batch) {
  struct tokens_watch *w = user;
  w->batch = *batch;
  if (w->status == WN_OK) w->status = tokens_grow(w, batch->B * batch->T);
  if (w->status != WN_OK) return;
  w->first = w->r->count;
  for (int64_t b = 0; b < batch->B; b++)
    for (int64_t t = 0; t < wn_batch_tokens(batch, b); t++) w->r->id[w->r->count++] = batch->tokens[b * batch->T + t];
}

static void tokens_on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *a) {
  struct tokens_watch *w = user;
  const wn_model_config *c = &w->model->config;
  void *spans;
  int64_t at = w->first;
  if (w->status != WN_OK) return;
  w->status = wn_run_open(run, a->input[wn_span_input(c)], run->B * run->T * c->heads, &spans);
  if (w->status != WN_OK) return;
  for (int64_t b = 0; b < run->B; b++)
    for (int64_t t = 0; t < wn_batch_tokens(&w->batch, b); t++, at++)
      for (int64_t h = 0; h < c->heads; h++)
        w->r->span[(at * c->layers + l) * c->heads + h] =
            (float)(c->attention.span.limit * wn_number(spans, (b * run->T + t) * c->heads + h, run->exec.dtype));
  wn_run_close(run, spans);
}

/* Which tokens begin a word. */
static wn_status tokens_find_words(wn_context *ctx, const wn_tokenizer *tok, wn_span_tokens *r) {
  wn_text_stream *stream;
  bool after_space = true;
  WN_TRY(wn_text_stream_create(ctx, tok, &stream));
  wn_status status = WN_OK;
  for (int64_t i = 0; i < r->count && status == WN_OK; i++) {
    const char *text;
    size_t n, k = 0;
    status = wn_text_stream_push(ctx, stream, r->id[i], &text, &n);
    if (status != WN_OK || n == 0) continue;
    while (k < n && (text[k] == ' ' || (text[k] >= '\t' && text[k] <= '\r'))) k++;
    const unsigned char c = k < n ? (unsigned char)text[k] : ' ', lower = c | 0x20;
    r->start[i] = (after_space || k > 0) && (c >= 0x80 || (c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'z'));
    after_space = text[n - 1] == ' ' || (text[n - 1] >= '\t' && text[n - 1] <= '\r');
  }
  wn_text_stream_destroy(stream);
  return status;
}

static wn_status tokens_summarize(wn_context *ctx, const wn_analysis_input *input, wn_span_tokens *r) {
  const int64_t n = r->layers * r->heads;
  WN_TRY(WN_ALLOC(ctx, "spans of tokens", r->count + 1, &r->mean));
  WN_TRY(WN_ALLOC(ctx, "beginnings of words", r->count + 1, &r->start));
  if (input->tok) WN_TRY(tokens_find_words(ctx, input->tok, r));
  for (int64_t i = 0; i < r->count; i++) {
    for (int64_t k = 0; k < n; k++) r->mean[i] += (double)r->span[i * n + k] / (double)n;
    if (r->start[i])
      r->starts++, r->start_mean += r->mean[i];
    else if (i + 1 < r->count && r->start[i + 1])
      r->before++, r->before_mean += r->mean[i];
    else
      r->others++, r->other_mean += r->mean[i];
  }
  if (r->starts) r->start_mean /= (double)r->starts;
  if (r->before) r->before_mean /= (double)r->before;
  if (r->others) r->other_mean /= (double)r->others;
  return WN_OK;
}

wn_status wn_analyze_span_tokens(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                                 wn_span_tokens **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(input), WN_POINTER(out));
  const wn_model_config *c = &model->config;
  struct wn_analysis_own own;
  wn_eval_options options = {.size = sizeof options};
  wn_eval_result result;
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  if (!c->attention.span.enabled || !c->attention.span.dynamic)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the model has no dynamic spans: a token's spans are those of every other");
  if (!input->source && !(input->tok && input->text))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "spans of tokens: a text or a token file is needed");
  if (input->options) options = *input->options;
  options.batch = 1; /* several sequences would take stretches of the text in turn */
  wn_span_tokens *r;
  WN_TRY(WN_ALLOC(ctx, "spans of tokens", 1, &r));
  r->layers = c->layers, r->heads = c->heads;
  struct tokens_watch w = {.ctx = ctx, .model = model, .r = r};
  const struct wn_layer_observer observer = {.layer = tokens_on_layer, .batch = tokens_on_batch, .user = &w};
  wn_status status = input->source ? wn_eval_observed(ctx, model, input->source, &options, &observer, &result)
                                   : wn_eval_text_observed(ctx, model, input->tok, input->text, input->bytes, &options,
                                                           &observer, &result);
  if (w.status != WN_OK) status = w.status;
  if (status == WN_OK) status = tokens_summarize(ctx, input, r);
  if (status == WN_OK)
    *out = r;
  else
    wn_span_tokens_destroy(r);
  return status;
}

void wn_span_tokens_destroy(wn_span_tokens *r) {
  if (!r) return;
  wn_free(r->id), wn_free(r->mean), wn_free(r->span), wn_free(r->start);
  wn_free(r);
}
