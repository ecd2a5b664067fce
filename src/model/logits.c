/* Logits of whole sequences, for analysis: the forward pass in groups of sequences, all positions kept. */
#include "model/workspace.h"

#define GROUP_TOKENS 4096

static wn_status group_logits(struct wn_model *model, wn_workspace *ws, const int32_t *tokens, const int32_t *doc_start,
                              int64_t B, int64_t T, const wn_budgets *budgets, float *logits) {
  const int64_t V = model->config.vocab_size, M = B * T;
  struct wn_run run;
  struct wn_stack_sums sums;
  WN_TRY(wn_run_batch(&run, model, ws, B, T, doc_start));
  WN_TRY(wn_run_budgets(&run, ws, budgets));
  WN_TRY(wn_run_stack(&run, ws, tokens, &sums));
  if (model->dtype == WN_F32) return wn_run_output(&run, ws->n_out, M, logits);
  for (int64_t first = 0; first < M; first += ws->chunk) {
    const int64_t rows = M - first < ws->chunk ? M - first : ws->chunk;
    WN_TRY(wn_run_output(&run, wn_at(ws->n_out, first * model->config.width, model->dtype), rows, ws->logits));
    for (int64_t i = 0; i < rows * V; i++) logits[first * V + i] = (float)((const double *)ws->logits)[i];
  }
  return WN_OK;
}

wn_status wn_model_logits(wn_context *ctx, wn_model *model, const int32_t *tokens, const int32_t *doc_start, int64_t B,
                          int64_t T, float *logits) {
  return wn_model_logits_with_budgets(ctx, model, tokens, doc_start, B, T, NULL, logits);
}

wn_status wn_model_logits_with_budgets(wn_context *ctx, wn_model *model, const int32_t *tokens,
                                       const int32_t *doc_start, int64_t B, int64_t T, const wn_budgets *budgets,
                                       float *logits) {
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  if (B < 1 || T < 1 || !tokens || !logits)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "logits: B %lld, T %lld; tokens and logits must be given", (long long)B,
                   (long long)T);
  int64_t group = GROUP_TOKENS / T;
  group = group < 1 ? 1 : group > B ? B : group;
  wn_workspace *ws;
  WN_TRY(wn_workspace_create(ctx, model, group, T,
                             &(struct wn_workspace_options){.activation_dtype = WN_F32, .budgets = budgets}, &ws));
  wn_status status = WN_OK;
  for (int64_t b = 0; b < B && status == WN_OK; b += group) {
    const int64_t now = B - b < group ? B - b : group;
    status = group_logits(model, ws, tokens + b * T, doc_start ? doc_start + b * T : NULL, now, T, budgets,
                          logits + b * T * model->config.vocab_size);
  }
  wn_workspace_destroy(ws);
  return status;
}
