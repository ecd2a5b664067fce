/* The reference evaluator: a whole forward pass of every batch, whatever has changed. */
#include <math.h>
#include <string.h>

#include "prune/evaluator.h"

struct plain {
  struct wn_prune_evaluator base;
  wn_context *ctx;
  struct wn_model *model;
  const struct wn_prune_set *set;
  int64_t batch;
  bool budgeted;
  wn_budgets budgets; /* tokens: the accepted ones */
  wn_workspace *ws;
  wn_row_sums *rows, *trial; /* [held rows] under the accepted budgets; of a part */
};

struct plain_run {
  struct plain *p;
  bool budgeted;
  wn_row_sums *rows; /* NULL: not wanted */
};

static wn_status plain_run_batch(void *user, int64_t row0, int64_t B, double *sum) {
  const struct plain_run *run = user;
  const struct plain *p = run->p;
  const int64_t T = p->set->T;
  const struct wn_batch batch = {
      .B = B, .T = T, .tokens = p->set->tokens + row0 * T, .targets = p->set->targets + row0 * T};
  const struct wn_step step = {
      .loss_scale = 1, .budgets = run->budgeted ? &p->budgets : NULL, .rows = run->rows ? run->rows + row0 : NULL};
  if (run->rows) memset(run->rows + row0, 0, (size_t)B * sizeof *run->rows);
  struct wn_step_result result;
  WN_TRY(wn_model_step(p->model, p->ws, &batch, &step, &result));
  *sum = result.loss_sum;
  return WN_OK;
}

static wn_status plain_run_set(struct plain *p, bool budgeted, bool accepted, double *loss) {
  struct plain_run run = {p, budgeted, accepted ? p->rows : NULL};
  WN_TRY(wn_prune_set_mean(p->ctx, p->set, p->batch, plain_run_batch, &run, loss));
  return isfinite(*loss) ? WN_OK : wn_fail(p->ctx, WN_ERR_DIVERGED, "the loss under budgets is %g", wn_told(*loss));
}

static wn_status plain_begin(struct wn_prune_evaluator *e, const int64_t *tokens, double *loss) {
  struct plain *p = (struct plain *)e;
  for (int64_t l = 0; p->budgeted && l < p->budgets.layers; l++) p->budgets.tokens[l] = tokens ? tokens[l] : p->set->T;
  return plain_run_set(p, p->budgeted && tokens, true, loss);
}

static wn_status plain_evaluate(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct plain *p = (struct plain *)e;
  const int64_t was = p->budgets.tokens[layer];
  p->budgets.tokens[layer] = to;
  const wn_status status = plain_run_set(p, true, false, loss);
  p->budgets.tokens[layer] = was;
  return status;
}

static wn_status plain_accept(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct plain *p = (struct plain *)e;
  p->budgets.tokens[layer] = to;
  return plain_run_set(p, true, true, loss);
}

static wn_status plain_rows(struct wn_prune_evaluator *e, double *loss) {
  const struct plain *p = (const struct plain *)e;
  return wn_prune_set_gather(p->ctx, p->set, p->batch, NULL, &p->rows->loss, sizeof *p->rows / sizeof(double), loss);
}

static wn_status plain_part(struct wn_prune_evaluator *e, int64_t layer, int64_t to, const struct wn_prune_part *part,
                            double *loss) {
  struct plain *p = (struct plain *)e;
  const int64_t was = p->budgets.tokens[layer];
  double sum;
  p->budgets.tokens[layer] = to;
  struct plain_run run = {p, true, p->trial};
  const wn_status status = wn_prune_set_run(p->ctx, p->set, p->batch, part, plain_run_batch, &run, &sum);
  p->budgets.tokens[layer] = was;
  WN_TRY(status);
  return wn_prune_set_gather(p->ctx, p->set, p->batch, part, &p->trial->loss, sizeof *p->trial / sizeof(double), loss);
}

static void plain_destroy(struct wn_prune_evaluator *e) {
  struct plain *p = (struct plain *)e;
  wn_workspace_destroy(p->ws);
  wn_free(p->budgets.tokens);
  wn_free(p->rows);
  wn_free(p);
}

wn_status wn_prune_plain_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                                const wn_budgets *budgets, struct wn_prune_evaluator **out) {
  const int64_t L = model->config.layers;
  *out = NULL;
  struct plain *p;
  WN_TRY(WN_ALLOC(ctx, "evaluator", 1, &p));
  p->base = (struct wn_prune_evaluator){.name = "plain",
                                        .begin = plain_begin,
                                        .evaluate = plain_evaluate,
                                        .accept = plain_accept,
                                        .rows = plain_rows,
                                        .part = plain_part,
                                        .destroy = plain_destroy};
  p->ctx = ctx;
  p->model = model;
  p->set = set;
  p->batch = batch < set->all_rows ? batch : set->all_rows;
  wn_status status;
  WN_TRY_GOTO(WN_ALLOC(ctx, "rows", 2 * set->rows, &p->rows), fail);
  p->trial = p->rows + set->rows;
  if (budgets) {
    p->budgeted = true;
    p->budgets = *budgets;
    p->budgets.layers = L;
    p->budgets.heads = 0;
    p->budgets.tokens = p->budgets.head_tokens = NULL;
    WN_TRY_GOTO(WN_ALLOC(ctx, "budgets", L, &p->budgets.tokens), fail);
    for (int64_t l = 0; l < L; l++) p->budgets.tokens[l] = set->T;
  }
  const struct wn_workspace_options options = {.activation_dtype = WN_F32, .budgets = budgets ? &p->budgets : NULL};
  WN_TRY_GOTO(wn_workspace_create(ctx, model, p->batch, set->T, &options, &p->ws), fail);
  p->base.bytes = wn_workspace_bytes(p->ws);
  *out = &p->base;
  return WN_OK;
fail:
  plain_destroy(&p->base);
  return status;
}
