/* A pass over a text or a source for analyses, and its control tokens and padding. */
#include "analyze/input.h"

#include "base/options.h"

#define PASS_TOKENS 8192 /* of a batch, if the caller does not give its size, */
#define PASS_BATCH 8     /* with at most so many sequences */

wn_status wn_analysis_read(wn_context *ctx, const wn_analysis_input **input, struct wn_analysis_own *own) {
  if (!*input) return WN_OK;
  own->input = **input;
  if (own->input.options) {
    WN_TRY(WN_OPTIONS_READ(ctx, wn_eval_options, own->input.options, &own->options));
    own->options.rows = NULL; /* an analysis may make several passes */
    own->input.options = &own->options;
  }
  *input = &own->input;
  return WN_OK;
}

wn_status wn_analysis_run(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                          const struct wn_layer_observer *observer, wn_eval_result *result) {
  wn_eval_options options = input->options ? *input->options : (wn_eval_options){0};
  const int64_t T = options.context ? options.context : model->config.context;
  if (options.batch == 0)
    options.batch = T < PASS_TOKENS / PASS_BATCH ? PASS_BATCH : T < PASS_TOKENS ? PASS_TOKENS / T : 1;
  if (input->source) return wn_eval_observed(ctx, model, input->source, &options, observer, result);
  return wn_eval_text_observed(ctx, model, input->tok, input->text, input->bytes, &options, observer, result);
}

wn_status wn_analysis_check(wn_context *ctx, const wn_model *model, const wn_analysis_input *input, const char *what) {
  if (!input || (!input->source && !(input->tok && input->text)))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: a text or a token file is needed", what);
  const int64_t memory = input->options ? input->options->recurrence : 0;
  if (memory > 0 || (memory == 0 && model->config.recurrence > 0))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: segment recurrence is not supported here; use memory -1", what);
  if (input->options && input->options->budgets && input->options->budgets->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: budgets with cache_positions are not supported here", what);
  if (input->options && input->options->batch < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: batch is %lld", what, (long long)input->options->batch);
  return WN_OK;
}

wn_status wn_analysis_batch_init(wn_context *ctx, const wn_model *model, const int32_t *ids, int count,
                                 struct wn_analysis_batch *out) {
  memset(out, 0, sizeof *out);
  for (int i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= model->config.vocab_size)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "control token %d is outside the vocabulary, 0 to %lld", ids[i],
                     (long long)model->config.vocab_size - 1);
  WN_TRY(WN_ALLOC(ctx, "control tokens", model->config.vocab_size, &out->is_control));
  for (int i = 0; i < count; i++) out->is_control[ids[i]] = 1;
  return WN_OK;
}

wn_status wn_analysis_batch_reserve(wn_context *ctx, struct wn_analysis_batch *batch, int64_t B, int64_t T) {
  wn_free(batch->control), wn_free(batch->before), wn_free(batch->end);
  batch->control = NULL, batch->before = NULL, batch->end = NULL;
  WN_TRY(WN_ALLOC(ctx, "control tokens", B * T, &batch->control));
  WN_TRY(WN_ALLOC(ctx, "control tokens", B * T, &batch->before));
  return WN_ALLOC(ctx, "rows", B, &batch->end);
}

void wn_analysis_batch_take(struct wn_analysis_batch *batch, const struct wn_batch *from) {
  const int64_t T = from->T;
  batch->B = from->B, batch->T = T, batch->doc_start = from->doc_start;
  for (int64_t b = 0; b < from->B; b++) {
    batch->end[b] = (int32_t)wn_batch_tokens(from, b);
    for (int64_t t = 0; t < T; t++) {
      const int64_t i = b * T + t;
      batch->control[i] = batch->is_control[from->tokens[i]];
      batch->before[i] = batch->control[i] + (t > wn_analysis_first(batch, b, t) ? batch->before[i - 1] : 0);
    }
  }
}

void wn_analysis_batch_clear(struct wn_analysis_batch *batch) {
  wn_free(batch->is_control), wn_free(batch->control), wn_free(batch->before), wn_free(batch->end);
  memset(batch, 0, sizeof *batch);
}
