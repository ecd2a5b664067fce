/* The reference evaluator: a whole forward pass of every batch, whatever has changed. */
#include <math.h>
#include <string.h>

#include "prune/evaluator.h"

struct plain {
  struct wn_prune_evaluator base;
  wn_context *ctx;
  const struct wn_prune_set *set;
  int64_t batch;
  bool budgeted;
  wn_budgets budgets; /* tokens: the accepted ones */
  struct wn_prune_pass pass;
  wn_row_sums *rows, *trial; /* [held rows] under the accepted budgets; of a part */
};

struct plain_run {
  struct plain *p;
  bool budgeted;
  wn_row_sums *rows; /* NULL: not wanted */
};

static wn_status plain_run_batch(void *user, int64_t row0, int64_t B, double *sum) {
  const struct plain_run *run = user;
  return run->p->pass.run(run->p->pass.user, run->budgeted ? &run->p->budgets : NULL, row0, B, run->rows, sum);
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
  p->pass.destroy(p->pass.user);
  wn_free(p->budgets.tokens);
  wn_free(p->rows);
  wn_free(p);
}

wn_status wn_prune_pass_create(wn_context *ctx, const struct wn_prune_set *set, int64_t batch, int64_t layers,
                               const wn_budgets *budgets, const struct wn_prune_pass *pass,
                               struct wn_prune_evaluator **out) {
  *out = NULL;
  struct plain *p;
  wn_status status = WN_ALLOC(ctx, "evaluator", 1, &p);
  if (status != WN_OK) {
    pass->destroy(pass->user);
    return status;
  }
  p->base = (struct wn_prune_evaluator){.name = pass->name,
                                        .bytes = pass->bytes,
                                        .begin = plain_begin,
                                        .evaluate = plain_evaluate,
                                        .accept = plain_accept,
                                        .rows = plain_rows,
                                        .part = plain_part,
                                        .destroy = plain_destroy};
  p->ctx = ctx;
  p->set = set;
  p->batch = batch;
  p->pass = *pass;
  WN_TRY_GOTO(WN_ALLOC(ctx, "rows", 2 * set->rows, &p->rows), fail);
  p->trial = p->rows + set->rows;
  if (budgets) {
    p->budgeted = true;
    p->budgets = *budgets;
    p->budgets.layers = layers;
    p->budgets.heads = 0;
    p->budgets.tokens = p->budgets.head_tokens = NULL;
    WN_TRY_GOTO(WN_ALLOC(ctx, "budgets", layers, &p->budgets.tokens), fail);
    for (int64_t l = 0; l < layers; l++) p->budgets.tokens[l] = set->T;
  }
  *out = &p->base;
  return WN_OK;
fail:
  plain_destroy(&p->base);
  return status;
}

/* --- a whole forward pass --- */

struct whole {
  struct wn_model *model;
  const struct wn_prune_set *set;
  wn_workspace *ws;
};

static wn_status whole_run(void *user, const wn_budgets *budgets, int64_t row0, int64_t B, wn_row_sums *rows,
                           double *sum) {
  const struct whole *w = user;
  const int64_t T = w->set->T;
  const struct wn_batch batch = {
      .B = B, .T = T, .tokens = w->set->tokens + row0 * T, .targets = w->set->targets + row0 * T};
  const struct wn_step step = {.loss_scale = 1, .budgets = budgets, .rows = rows ? rows + row0 : NULL};
  if (rows) memset(rows + row0, 0, (size_t)B * sizeof *rows);
  struct wn_step_result result;
  WN_TRY(wn_model_step(w->model, w->ws, &batch, &step, &result));
  *sum = result.loss_sum;
  return WN_OK;
}

static void whole_destroy(void *user) {
  struct whole *w = user;
  wn_workspace_destroy(w->ws);
  wn_free(w);
}

wn_status wn_prune_plain_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                                const wn_budgets *budgets, struct wn_prune_evaluator **out) {
  const int64_t L = model->config.layers, B = batch < set->all_rows ? batch : set->all_rows;
  struct whole *w;
  *out = NULL;
  WN_TRY(WN_ALLOC(ctx, "evaluator", 1, &w));
  *w = (struct whole){.model = model, .set = set};
  const struct wn_workspace_options options = {.activation_dtype = WN_F32, .budgets = budgets};
  const wn_status status = wn_workspace_create(ctx, model, B, set->T, &options, &w->ws);
  if (status != WN_OK) {
    whole_destroy(w);
    return status;
  }
  const struct wn_prune_pass pass = {
      .name = "plain", .bytes = wn_workspace_bytes(w->ws), .user = w, .run = whole_run, .destroy = whole_destroy};
  return wn_prune_pass_create(ctx, set, B, L, budgets, &pass, out);
}
