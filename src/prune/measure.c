/* The loss of a model on the rows of a token file, with or without budgets: one plain evaluation. */
#include "base/misuse.h"
#include "dist/dist.h"
#include "prune/evaluator.h"

enum { BATCH = 8 };

/* What one measurement gives; each may be NULL. */
struct measured {
  double *loss;
  uint64_t *counted;
  wn_eval_rows *rows;
};

static wn_status measure_rows(wn_context *ctx, struct wn_prune_evaluator *e, const struct wn_prune_set *set,
                              wn_eval_rows *out) {
  double *loss;
  *out = (wn_eval_rows){.count = set->all_rows, .unit = set->unit};
  WN_TRY(WN_ALLOC(ctx, "rows", set->all_rows, &out->sums));
  wn_status status = WN_ALLOC(ctx, "rows", set->all_rows, &loss);
  if (status == WN_OK) status = e->rows(e, loss);
  for (int64_t i = 0; i < set->all_rows && status == WN_OK; i++)
    out->sums[i] = (wn_row_sums){.loss = loss[i], .tokens = set->row_tokens[i]};
  if (status != WN_OK) wn_eval_rows_clear(out);
  wn_free(loss);
  return status;
}

static wn_status measure(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context, int64_t batch,
                         const wn_budgets *budgets, const struct measured *out) {
  const int64_t T = context ? context : model->config.context;
  struct wn_prune_set set;
  struct wn_prune_evaluator *e;
  double loss;
  if (T > model->config.context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "context %lld is longer than %lld, the model's", (long long)T,
                   (long long)model->config.context);
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  if (budgets && budgets->heads > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets of single key-value heads: a search uses one per layer");
  if (!batch) batch = BATCH;
  WN_TRY(wn_dist_alike(ctx));
  WN_TRY(wn_prune_set_load(ctx, "data", data, T, model->config.vocab_size, false, &set));
  wn_prune_set_share(ctx, &set, batch);
  wn_status status = wn_prune_plain_create(ctx, model, &set, batch, budgets, &e);
  if (status == WN_OK) {
    status = e->begin(e, budgets ? budgets->tokens : NULL, out->loss ? out->loss : &loss);
    if (status == WN_OK && out->rows) status = measure_rows(ctx, e, &set, out->rows);
    e->destroy(e);
  }
  if (out->counted) *out->counted = set.counted;
  wn_prune_set_clear(&set);
  return status;
}

wn_status wn_prune_measure(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context, int64_t batch,
                           const wn_budgets *budgets, double *loss, uint64_t *counted) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(data), WN_POINTER(loss));
  return measure(ctx, model, data, context, batch, budgets, &(struct measured){.loss = loss, .counted = counted});
}

wn_status wn_prune_measure_rows(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context,
                                int64_t batch, const wn_budgets *budgets, wn_eval_rows *rows) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(data), WN_POINTER(rows));
  return measure(ctx, model, data, context, batch, budgets, &(struct measured){.rows = rows});
}
