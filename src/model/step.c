/* One pass over a batch: embedding, layers, final norm, output projection with the loss, and the backward of all.
 *
 *   loss = loss_scale * sum of cross-entropies + mem_scale * L_mem + span_scale * span loss
 *   L_mem = eps * mean over documents, layers and selections of max_i M / n, over the document's n tokens
 *   gate loss = sum over mechanisms of loss * mean over layers of what their gates keep; scaled by span_scale too
 *   balance loss = experts.balance * mean over layers of the experts' load (ops.h); scaled by span_scale too
 *   span loss = lambda/H * sum over layers and heads of limit * z (with dynamic spans z's mean over tokens)
 *
 * The output projection, the loss and their gradients run in chunks of rows, so that logits [M,V] never exist. The
 * gradient of the final norm's output is therefore complete before the layers' backward begins. With recomputation a
 * layer keeps only its input, and backward runs its forward again, with the same bits: one third more work in the
 * projections. With bf16 storage forward has the same bits; backward reads rounded activations (except q, k and v) and
 * computes the outputs of norms and activation function again. That takes two fifths of the memory. */
#include "model/workspace.h"

#include <string.h>

#include "attention/registry.h"

static void *step_row(const struct wn_run *run, void *base, int64_t row) {
  return wn_element(base, row * run->model->config.width, run->exec.dtype);
}

/* The output projection for `rows` rows. */
static struct wn_linear step_output(const struct wn_run *run, int64_t rows) {
  const wn_model_config *c = &run->model->config;
  return wn_run_projection(run, rows, c->width, c->vocab_size, run->model->outer.output, -1);
}

wn_status wn_run_output(struct wn_run *run, const void *x, int64_t rows, void *logits) {
  const wn_model_config *c = &run->model->config;
  WN_TRY(wn_run_project(run, step_output(run, rows), x, logits));
  if (c->logit_divisor > 0)
    WN_TRY(wn_run_scale_forward(
        run, &(struct wn_scale){.n = rows * c->vocab_size, .factor = 1 / c->logit_divisor, .x = logits}));
  if (c->logit_softcap <= 0) return WN_OK;
  return wn_run_softcap_forward(run,
                                &(struct wn_softcap){.n = rows * c->vocab_size, .cap = c->logit_softcap, .x = logits});
}

/* Adds the losses of a chunk of positions, which are still in the workspace, to the sums of their rows. */
static wn_status step_add_rows(const struct wn_run *run, const struct wn_workspace *ws, const int32_t *targets,
                               int64_t first, int64_t positions, wn_row_sums *rows) {
  const struct wn_memory *memory = wn_run_memory(run);
  const size_t n = (size_t)positions;
  void *loss, *hit;
  WN_TRY(wn_memory_open(run->exec.ctx, memory, "losses", ws->loss, n * sizeof *ws->loss, &loss));
  wn_status status = wn_memory_open(run->exec.ctx, memory, "hits", ws->hit, n, &hit);
  for (int64_t m = 0; m < positions && status == WN_OK; m++) {
    if (targets[first + m] < 0) continue;
    wn_row_sums *row = &rows[(first + m) / run->T];
    row->loss += ((const double *)loss)[m];
    row->tokens++;
    row->hits += ((const uint8_t *)hit)[m];
  }
  if (status == WN_OK) status = wn_memory_close(run->exec.ctx, memory, ws->hit, n, hit, false);
  const wn_status closed = wn_memory_close(run->exec.ctx, memory, ws->loss, n * sizeof *ws->loss, loss, false);
  return status != WN_OK ? status : closed;
}

/* The loss of rows [first, first+rows), and the gradient of the final norm's output there. */
static wn_status step_chunk_loss(struct wn_run *run, struct wn_workspace *ws, const int32_t *targets, int64_t first,
                                 int64_t rows, const struct wn_step *step, uint64_t *all) {
  const wn_model_config *c = &run->model->config;
  const int64_t C = c->width, V = c->vocab_size;
  void *x = step_row(run, ws->n_out, first), *dx = step_row(run, ws->temp.d_n, first);
  int64_t counted = 0;
  for (int64_t m = 0; !run->measuring && m < rows; m++) counted += targets[first + m] >= 0;
  if (!counted && !run->measuring) { /* no row counts: skip the product */
    for (int64_t m = 0; m < rows; m++)
      if (targets[first + m] < -1)
        return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "step: targets[%lld] is %d, expected -1 to %lld",
                       (long long)(first + m), targets[first + m], (long long)V - 1);
    return run->grads ? wn_run_zero(run, dx, rows * C) : WN_OK;
  }
  WN_TRY(wn_run_output(run, x, rows, ws->logits));
  const struct wn_cross_entropy loss = {.M = rows,
                                        .V = V,
                                        .logits = ws->logits,
                                        .ld = V,
                                        .targets = run->targets + first,
                                        .scale = step->loss_scale / (c->logit_divisor > 0 ? c->logit_divisor : 1),
                                        .cap = c->logit_softcap,
                                        .dlogits = run->grads ? ws->logits : NULL,
                                        .loss = ws->loss,
                                        .hit = ws->hit};
  const struct wn_loss_sums sums = {.M = rows,
                                    .loss = ws->loss,
                                    .hit = ws->hit,
                                    .targets = run->targets + first,
                                    .sums = wn_workspace_sum(ws, WN_SUM_LOSS, 0)};
  WN_TRY(wn_run_cross_entropy_forward(run, &loss));
  WN_TRY(wn_run_loss_sums_forward(run, &sums));
  if (step->rows && !run->measuring) WN_TRY(step_add_rows(run, ws, targets, first, rows, step->rows));
  *all += (uint64_t)counted;
  return run->grads ? wn_run_project_back(run, step_output(run, rows), x, ws->logits, dx, false) : WN_OK;
}

/* L_mem's factor for one layer, selection and document. */
static double step_memory_share(const struct wn_run *run) {
  const wn_model_config *c = &run->model->config;
  const wn_selective_config *sel = &c->attention.selective;
  if (!sel->enabled || !sel->mem.enabled) return 0;
  const double each = sel->mem.eps / ((double)c->layers * (double)wn_attention_selections(&c->attention, c->kv_heads));
  if (run->measuring) return each;
  const int64_t documents = wn_documents_count(&run->rows);
  return documents > 0 ? each / (double)documents : 0;
}

/* Fills the result from the step's sums, once they have arrived on the host. */
static void step_result(const struct wn_run *run, const struct wn_workspace *ws, const double *sums, double mem_share,
                        double span_share, double balance_share, struct wn_step_result *result) {
  const wn_model_config *c = &run->model->config;
  double mem = 0, span = 0, balance = 0;
  for (int64_t l = 0; l < c->layers; l++) {
    if (wn_run_has_mem(run)) mem += sums[wn_workspace_sum_at(ws, WN_SUM_MEM, l)];
    if (c->attention.span.enabled) span += sums[wn_workspace_sum_at(ws, WN_SUM_SPAN, l)];
    if (c->experts.count > 0) balance += sums[wn_workspace_sum_at(ws, WN_SUM_BALANCE, l)];
  }
  result->loss_sum = sums[0];
  result->hits = (uint64_t)sums[1];
  result->mem_loss = mem_share * mem;
  result->span_loss = span_share * span;
  result->balance_loss = balance_share * balance;
  result->gate_loss = wn_gates_loss(run, ws, sums);
  result->span = c->attention.span.enabled ? c->attention.span.limit * span / (double)(c->layers * c->heads) : 0;
}

wn_status wn_run_step(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch,
                      const struct wn_step *step, struct wn_step_result *result) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T;
  const wn_span_config *span = &c->attention.span;
  const struct wn_memory *memory = wn_run_memory(run);
  wn_context *ctx = run->exec.ctx;
  memset(result, 0, sizeof *result);
  if (run->measuring || run->recurrence.rows > 0) run->row_count = run->rows.count = NULL; /* streams have no padding */
  const double mem_share = step_memory_share(run);
  /* The span loss's factor for one head. */
  const double span_share = span->enabled ? span->loss * span->limit / (double)c->heads : 0;
  run->mem_coef = mem_share * step->mem_scale;
  run->no_mem = !run->measuring && step->grads && step->mem_scale == 0;
  run->span_coef = span_share * step->span_scale;
  run->gate_coef = step->span_scale / (double)c->layers;
  run->gate_weight = step->gate_weight;
  run->gate_sums = run->measuring ? NULL : wn_workspace_sum(ws, WN_SUM_GATES, 0);
  const double balance_share = c->experts.balance / (double)c->layers;
  run->balance_coef = balance_share * step->span_scale;
  if (!run->measuring) WN_TRY(memory->zero(ctx, wn_workspace_sum(ws, WN_SUM_LOSS, 0), WN_SUM_LOSSES * sizeof(double)));
  WN_TRY(wn_run_stack(run, ws));
  for (int64_t first = 0; first < M; first += ws->chunk) {
    const int64_t rows = M - first < ws->chunk ? M - first : ws->chunk;
    WN_TRY(step_chunk_loss(run, ws, batch->targets, first, rows, step, &result->counted));
  }
  if (!run->measuring) WN_TRY(memory->copy_out(ctx, ws->sums_read, ws->sums, (size_t)ws->sums_count * sizeof(double)));
  const uint64_t read = memory->record(ctx); /* so that backward need not wait for the copy */
  if (run->grads) {
    WN_TRY(wn_run_backward(run, ws));
    for (int row = 0; run->begun && row < run->model->table.count; row++) WN_TRY(wn_run_grad_begin(run, row));
  }
  if (run->measuring) return WN_OK;
  WN_TRY(memory->wait(ctx, read));
  step_result(run, ws, ws->sums_read, mem_share, span_share, balance_share, result);
  return WN_OK;
}

bool wn_model_begins(const struct wn_model *model, int row) {
  const wn_model_config *c = &model->config;
  if (model->encoder || c->recurrence > 0) return false; /* some gradients get contributions from elsewhere */
  if (row == model->outer.output) return true;
  for (int64_t l = 0; l < c->layers; l++) {
    const struct wn_layer_params *p = &model->layers[l];
    if (row == p->qkv_weight || row == p->out_weight || row == p->in_weight || row == p->ffn_out_weight) return true;
  }
  return false;
}

/* Is the row one of the fields of a struct that has only rows (struct wn_layer_params, ...)? */
static bool step_has(const void *rows, size_t bytes, int row) {
  const int *r = rows;
  for (size_t i = 0; i < bytes / sizeof *r; i++)
    if (r[i] == row) return true;
  return false;
}

static bool step_layer_has(const struct wn_model *model, const struct wn_layer_params *p, int row) {
  const int experts = p->experts < 0 ? 0 : 2 * (int)model->config.experts.count;
  return step_has(p, sizeof *p, row) || (row >= p->experts && row < p->experts + experts);
}

int64_t wn_model_whole_after(const struct wn_model *model, int row) {
  const struct wn_outer_params *outer = &model->outer;
  const int64_t L = model->config.layers;
  const bool last =
      row == outer->norm_gain || row == outer->norm_shift || (row == outer->output && row != outer->embed);
  if (!last && step_has(outer, sizeof *outer, row)) return -1;
  if (model->encoder) { /* the encoder's backward comes after the decoder's */
    if (step_has(&model->encoder->outer, sizeof model->encoder->outer, row))
      return row == outer->output && last ? L : -1;
    for (int64_t l = 0; l < model->encoder->config.layers; l++)
      if (step_layer_has(model, &model->encoder->layers[l], row)) return -1;
  }
  for (int64_t l = 0; l < L; l++) /* the lowest layer that uses it */
    if (step_layer_has(model, &model->layers[l], row)) return l;
  return last ? L : -1;
}

wn_status wn_run_budgets(struct wn_run *run, const struct wn_workspace *ws, const wn_budgets *budgets) {
  const wn_model_config *c = &run->model->config;
  if (!budgets) return WN_OK;
  if (ws->evicting == 0) return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: budgets in a workspace made for none");
  if (budgets->layers != c->layers)
    return wn_fail(ws->ctx, WN_ERR_CONFIG, "budgets of %lld layers for a model of %lld", (long long)budgets->layers,
                   (long long)c->layers);
  if (budgets->policy != ws->budgets.policy || budgets->per_kv_head != ws->budgets.per_kv_head)
    return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: policy \"%s\" in a workspace made for \"%s\"",
                   wn_policy_name(budgets->policy), wn_policy_name(ws->budgets.policy));
  run->budgets = budgets;
  run->evicted_at = ws->evicted_at;
  return WN_OK;
}

wn_status wn_model_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch,
                        const struct wn_step *step, struct wn_step_result *result) {
  if (!batch->tokens || !batch->targets)
    return wn_fail(model->ctx, WN_ERR_ARGUMENT, "step: tokens or targets are NULL");
  if (step->grads && !ws->options.backward)
    return wn_fail(model->ctx, WN_ERR_ARGUMENT, "step: gradients asked of a workspace made for forward only");
  struct wn_run run;
  WN_TRY(wn_run_batch(&run, model, ws, batch, NULL));
  run.dropout = step->training ? model->config.dropout : 0;
  run.dropout_hidden = step->training ? model->config.dropout_hidden : 0;
  run.training = step->training;
  run.seed = step->seed;
  run.stream = step->step * wn_run_streams(&model->config);
  run.grads = step->grads;
  run.grad_at = step->grad_at;
  run.begun = step->begun;
  run.whole = step->whole;
  run.whole_user = step->whole_user;
  run.observer = step->observer;
  /* Observers use ids as indices into tables of their own. */
  if (step->observer) WN_TRY(wn_model_check_ids(model->ctx, model, "step: token", batch->tokens, batch->B * batch->T));
  if (step->observer && step->observer->batch) step->observer->batch(step->observer->user, batch);
  WN_TRY(wn_run_budgets(&run, ws, step->budgets));
  if (model->encoder) {
    WN_TRY(wn_encoder_forward(&run, ws, batch));
    WN_TRY(wn_run_step(&run, ws, batch, step, result));
    return step->grads ? wn_encoder_backward(&run, ws, batch) : WN_OK;
  }
  if (ws->options.recurrence <= 0) return wn_run_step(&run, ws, batch, step, result);
  if (batch->doc_start)
    return wn_fail(model->ctx, WN_ERR_ARGUMENT, "step: packed documents and recurrence exclude each other");
  if (step->recurrence_set < 0 || step->recurrence_set >= ws->options.recurrence_sets)
    return wn_fail(model->ctx, WN_ERR_ARGUMENT, "step: recurrence_set is %lld, the workspace has %lld",
                   (long long)step->recurrence_set, (long long)ws->options.recurrence_sets);
  wn_recurrence_bind(&run, ws, step->recurrence_set);
  WN_TRY(wn_run_step(&run, ws, batch, step, result));
  return wn_recurrence_advance(&run, ws, step->recurrence_set);
}
