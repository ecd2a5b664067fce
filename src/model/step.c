/* One pass over a batch: embedding, layers, final norm, output projection with the loss, and the backward of all.
 *
 *   loss = loss_scale * sum of cross-entropies + mem_scale * L_mem + span_scale * span loss
 *   L_mem = eps * mean over documents, layers and selections of max_i M / n, over the document's n tokens
 *   balance loss = experts.balance * mean over layers of what the experts' load is (ops.h); a factor as the span loss's
 *   span loss = lambda/H * sum over layers and heads of limit * z (its mean over tokens, where spans are theirs)
 *
 * The output projection, the loss and their gradients run in chunks of rows, so that logits [M,V] never exist; the
 * gradient of the final norm's output is therefore complete before the layers' backward begins. With recomputation a
 * layer keeps its input alone and is run again, to the same bits, when its turn comes: one third more work in the
 * projections. With bf16 storage the forward pass is the same to the last bit; backward reads all but q, k and v
 * rounded, and forms what the norms and the activation function gave again: two fifths of the memory. */
#include "base/team.h"
#include "model/workspace.h"

#include <string.h>

#include "attention/memory_loss.h"
#include "attention/registry.h"
#include "tensor/bf16.h"

static void *step_row(const struct wn_run *run, void *base, int64_t row) {
  return wn_element(base, row * run->model->config.width, run->exec.dtype);
}

/* Layer l's arrays for this batch's size. */
static wn_status step_layer_acts(const struct wn_run *run, const struct wn_workspace *ws, int64_t l,
                                 struct wn_layer_acts *out) {
  const bool all = ws->keep == WN_KEEP_ALL, reduced = ws->keep == WN_KEEP_REDUCED;
  struct wn_layer_blocks blocks = ws->blocks;
  if (all) blocks.large += (size_t)l * ws->blocks.large_bytes;
  if (all) blocks.derived += (size_t)l * ws->blocks.derived_bytes;
  if (all || reduced) blocks.exact += (size_t)l * ws->blocks.exact_bytes;
  if (!wn_layer_acts_plan(&run->model->config, run->types, run->B, run->T, run->recurrence.rows > 0, &blocks, out))
    return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "step: activations do not fit in memory");
  if (run->recurrence.rows > 0) wn_recurrence_keys(ws, l, out);
  if (ws->keep == WN_KEEP_INPUT) out->x = ws->kept + (size_t)l * ws->kept_bytes;
  return WN_OK;
}

/* Layer l's large arrays to their bf16 copy, or back. Those of the last layer are never moved: nothing overwrites them
 * before its backward. */
static void step_move_reduced(const struct wn_run *run, const struct wn_workspace *ws, int64_t l, bool back) {
  if (run->measuring || ws->keep != WN_KEEP_REDUCED || l == run->model->config.layers - 1) return;
  struct wn_layer_acts a;
  struct wn_layer_blocks blocks = {0};
  wn_layer_acts_plan(&run->model->config, run->types, run->B, run->T, run->recurrence.rows > 0, &blocks, &a);
  const int64_t n = (int64_t)(blocks.large_bytes / sizeof(float));
  uint16_t *copy = (uint16_t *)(void *)(ws->kept + (size_t)l * ws->kept_bytes);
  float *values = (float *)(void *)ws->blocks.large;
  if (back)
    wn_bf16_to_f32(wn_team(run->exec.ctx, run->exec.threads), n, copy, values);
  else
    wn_bf16_from_f32(wn_team(run->exec.ctx, run->exec.threads), n, values, copy);
}

/* The token table and the positions' on the run's tokens; y, dy and the gradients are the caller's. */
static struct wn_embedding step_embedding(const struct wn_run *run, const int32_t *tokens) {
  const wn_model_config *c = &run->model->config;
  const struct wn_outer_params *outer = &run->model->outer;
  return (struct wn_embedding){.M = run->B * run->T,
                               .C = c->width,
                               .V = c->vocab_size,
                               .P = c->position == WN_POS_LEARNED ? c->context : 0,
                               .ids = tokens,
                               .positions = run->positions,
                               .tok = wn_run_param(run, outer->embed),
                               .packed = wn_run_packed(run, outer->embed),
                               .scale = c->embed_scale,
                               .pos = wn_run_param(run, outer->pos)};
}

wn_status wn_run_embed(struct wn_run *run, const int32_t *tokens, void *raw, void *rstd, void *mean, void *x) {
  const wn_model_config *c = &run->model->config;
  const struct wn_outer_params *outer = &run->model->outer;
  struct wn_embedding embedding = step_embedding(run, tokens);
  embedding.y = c->embed_norm ? raw : x;
  WN_TRY(wn_run_embedding_forward(run, &embedding));
  if (c->embed_norm)
    WN_TRY(wn_run_norm(run, embedding.M, (struct wn_norm_site){outer->embed_gain, outer->embed_shift, rstd, mean, 0},
                       raw, NULL, NULL, x));
  return wn_run_dropout(run, 0, x);
}

struct wn_norm_site wn_run_final_norm(const struct wn_run *run, void *rstd, void *mean) {
  return (struct wn_norm_site){run->model->outer.norm_gain, run->model->outer.norm_shift, rstd, mean, 0};
}

wn_status wn_run_stack(struct wn_run *run, struct wn_workspace *ws, const int32_t *tokens, struct wn_stack_sums *sums) {
  const struct wn_model *model = run->model;
  const wn_model_config *c = &model->config;
  const int64_t M = run->B * run->T;
  const bool mem = c->attention.selective.enabled && c->attention.selective.mem.enabled;
  struct wn_layer_acts a;
  const struct wn_memory_rows memory = wn_run_memory_rows(run);
  *sums = (struct wn_stack_sums){0};
  for (int64_t i = 0; ws->control && !run->measuring && i < M; i++) /* ids outside are the embedding's to refuse */
    ws->control[i] = tokens[i] >= 0 && tokens[i] < c->vocab_size ? model->control[tokens[i]] : 0;
  run->control = ws->control;
  WN_TRY(step_layer_acts(run, ws, 0, &a));
  WN_TRY(wn_run_embed(run, tokens, ws->embedded, ws->embed_rstd, ws->embed_mean, a.x));
  const void *mid = NULL, *branch = NULL;
  for (int64_t l = 0; l < c->layers; l++) {
    WN_TRY(step_layer_acts(run, ws, l, &a));
    WN_TRY(wn_layer_forward(run, l, &a, &ws->temp, mid, branch, true));
    mid = wn_layer_stream(run, &a);
    branch = ws->temp.branch;
    if (!run->measuring) sums->span += wn_span_sum(run, l, &a);
    if (!run->measuring && run->observer && run->observer->layer) run->observer->layer(run->observer->user, run, l, &a);
    if (run->grads) step_move_reduced(run, ws, l, false);
    if (c->experts.count > 0 && !run->measuring) sums->balance += *a.balance;
    if (mem && !run->measuring) sums->mem += wn_memory_loss(&memory, model->dtype, a.M);
  }
  return wn_run_norm(run, M, wn_run_final_norm(run, ws->rstd, ws->mean), mid, branch, ws->x_out, ws->n_out);
}

/* The output's projection of `rows` rows. */
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

/* The loss of rows [first, first+rows), and the gradient of the final norm's output there. */
static wn_status step_chunk_loss(struct wn_run *run, struct wn_workspace *ws, const int32_t *targets, int64_t first,
                                 int64_t rows, double scale, struct wn_step_result *result) {
  const wn_model_config *c = &run->model->config;
  const int64_t C = c->width, V = c->vocab_size;
  void *x = step_row(run, ws->n_out, first), *dx = step_row(run, ws->temp.d_n, first);
  int64_t counted = 0;
  for (int64_t m = 0; m < rows; m++) counted += targets[first + m] >= 0;
  if (!counted && !run->measuring) { /* nothing to learn here: no product */
    for (int64_t m = 0; m < rows; m++)
      if (targets[first + m] < -1)
        return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "step: targets[%lld] is %d, expected -1 to %lld",
                       (long long)(first + m), targets[first + m], (long long)V - 1);
    if (run->grads) memset(dx, 0, (size_t)(rows * C) * wn_dtype_size(run->exec.dtype));
    return WN_OK;
  }
  WN_TRY(wn_run_output(run, x, rows, ws->logits));
  const struct wn_cross_entropy loss = {.M = rows,
                                        .V = V,
                                        .logits = ws->logits,
                                        .ld = V,
                                        .targets = targets + first,
                                        .scale = c->logit_divisor > 0 ? scale / c->logit_divisor : scale,
                                        .cap = c->logit_softcap,
                                        .dlogits = run->grads ? ws->logits : NULL,
                                        .loss = ws->loss,
                                        .hit = ws->hit};
  WN_TRY(wn_run_cross_entropy_forward(run, &loss));
  if (!run->measuring) {
    for (int64_t m = 0; m < rows; m++) {
      if (targets[first + m] < 0) continue;
      result->loss_sum += ws->loss[m];
      result->hits += ws->hit[m] != 0;
    }
    result->counted += (uint64_t)counted;
  }
  return run->grads ? wn_run_project_back(run, step_output(run, rows), x, ws->logits, dx, false) : WN_OK;
}

wn_status wn_run_backward(struct wn_run *run, struct wn_workspace *ws, const int32_t *tokens) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T, L = c->layers;
  struct wn_layer_acts a;
  const struct wn_outer_params *outer = &run->model->outer;
  WN_TRY(wn_run_norm_grad(run, M, wn_run_final_norm(run, ws->rstd, ws->mean), ws->x_out, ws->temp.d_n, ws->temp.d_res,
                          false));
  for (int64_t l = L - 1; l >= 0; l--) {
    WN_TRY(step_layer_acts(run, ws, l, &a));
    /* The last layer's activations are still there. */
    if (ws->keep == WN_KEEP_INPUT && l < L - 1) WN_TRY(wn_layer_forward(run, l, &a, &ws->temp, NULL, NULL, false));
    if (ws->blocks.one_act && l < L - 1) WN_TRY(wn_layer_activate(run, l, &a));
    step_move_reduced(run, ws, l, true);
    if (ws->keep == WN_KEEP_REDUCED && l < L - 1) WN_TRY(wn_layer_rebuild(run, l, &a));
    WN_TRY(wn_layer_backward(run, l, &a, &ws->temp));
  }
  WN_TRY(wn_run_dropout(run, 0, ws->temp.d_res));
  if (c->embed_norm)
    WN_TRY(wn_run_norm_grad(
        run, M, (struct wn_norm_site){outer->embed_gain, outer->embed_shift, ws->embed_rstd, ws->embed_mean, 0},
        ws->embedded, ws->temp.d_res, ws->temp.d_res, false));
  struct wn_embedding embedding = step_embedding(run, tokens);
  embedding.dy = ws->temp.d_res;
  wn_run_grad_begin(run, outer->embed);
  embedding.dtok = wn_run_grad(run, outer->embed);
  embedding.dpos = wn_run_grad(run, outer->pos);
  return wn_run_embedding_backward(run, &embedding);
}

int64_t wn_batch_tokens(const struct wn_batch *batch, int64_t b) {
  int64_t n = batch->T;
  while (n > 0 && batch->targets[b * batch->T + n - 1] < 0) n--;
  return n;
}

int64_t wn_batch_documents(const struct wn_batch *batch) {
  int64_t documents = 0;
  for (int64_t b = 0; b < batch->B; b++) {
    const int32_t count = (int32_t)wn_batch_tokens(batch, b);
    const struct wn_memory_rows row = {
        .B = 1, .T = batch->T, .doc_start = batch->doc_start ? batch->doc_start + b * batch->T : NULL, .count = &count};
    documents += wn_memory_documents(&row);
  }
  return documents;
}

/* L_mem's factor of one layer, selection and document. */
static double step_memory_share(const struct wn_run *run) {
  const wn_model_config *c = &run->model->config;
  const wn_selective_config *sel = &c->attention.selective;
  if (!sel->enabled || !sel->mem.enabled) return 0;
  const double each = sel->mem.eps / ((double)c->layers * (double)wn_attention_selections(&c->attention, c->kv_heads));
  if (run->measuring) return each;
  const struct wn_memory_rows rows = wn_run_memory_rows(run);
  const int64_t documents = wn_memory_documents(&rows);
  return documents > 0 ? each / (double)documents : 0;
}

wn_status wn_run_step(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch,
                      const struct wn_step *step, struct wn_step_result *result) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T;
  const wn_span_config *span = &c->attention.span;
  struct wn_stack_sums sums;
  memset(result, 0, sizeof *result);
  for (int64_t b = 0; b < run->B && !run->measuring; b++) ws->row_count[b] = (int32_t)wn_batch_tokens(batch, b);
  run->row_count = run->measuring || run->recurrence.rows > 0 ? NULL : ws->row_count; /* streams have no padding */
  const double mem_share = step_memory_share(run);
  /* The span loss's factor of one head. */
  const double span_share = span->enabled ? span->loss * span->limit / (double)c->heads : 0;
  run->mem_coef = mem_share * step->mem_scale;
  run->span_coef = span_share * step->span_scale;
  const double balance_share = c->experts.balance / (double)c->layers;
  run->balance_coef = balance_share * step->span_scale;
  WN_TRY(wn_run_stack(run, ws, batch->tokens, &sums));
  result->mem_loss = mem_share * sums.mem;
  result->span_loss = span_share * sums.span;
  result->balance_loss = balance_share * sums.balance;
  result->span = span->enabled ? span->limit * sums.span / (double)(c->layers * c->heads) : 0;
  for (int64_t first = 0; first < M; first += ws->chunk) {
    const int64_t rows = M - first < ws->chunk ? M - first : ws->chunk;
    WN_TRY(step_chunk_loss(run, ws, batch->targets, first, rows, step->loss_scale, result));
  }
  if (!run->grads) return WN_OK;
  WN_TRY(wn_run_backward(run, ws, batch->tokens));
  for (int row = 0; run->begun && row < run->model->table.count; row++) wn_run_grad_begin(run, row);
  return WN_OK;
}

bool wn_model_begins(const struct wn_model *model, int row) {
  const wn_model_config *c = &model->config;
  if (model->encoder || c->recurrence > 0) return false; /* others add to some of them */
  if (row == model->outer.output) return true;
  for (int64_t l = 0; l < c->layers; l++) {
    const struct wn_layer_params *p = &model->layers[l];
    if (row == p->qkv_weight || row == p->out_weight || row == p->in_weight || row == p->ffn_out_weight) return true;
  }
  return false;
}

wn_status wn_run_batch(struct wn_run *run, const struct wn_model *model, struct wn_workspace *ws, int64_t B, int64_t T,
                       const int32_t *doc_start) {
  if (ws->model != model) return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: the workspace is another model's");
  if (B < 1 || T < 1 || B > ws->B || T > ws->T)
    return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: batch of B %lld, T %lld; the workspace takes up to B %lld, T %lld",
                   (long long)B, (long long)T, (long long)ws->B, (long long)ws->T);
  wn_run_init(run, model, B, T);
  run->exec.precision = ws->options.precision;
  run->types = ws->types;
  run->exec.scratch = ws->scratch;
  run->exec.scratch_bytes = ws->scratch_bytes;
  run->doc_start = doc_start;
  int64_t longest = 0;
  for (int64_t b = 0; b < B; b++) {
    for (int64_t t = 0; t < T; t++) {
      const int64_t first = doc_start ? doc_start[b * T + t] : 0;
      if (first < 0 || first > t)
        return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: doc_start[%lld,%lld] is %lld, expected 0 to %lld", (long long)b,
                       (long long)t, (long long)first, (long long)t);
      ws->positions[b * T + t] = (int32_t)(t - first);
      if (t - first >= longest) longest = t - first + 1;
    }
  }
  run->positions = ws->positions;
  run->rotary = wn_workspace_rotary(ws, longest);
  return WN_OK;
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
  WN_TRY(wn_run_batch(&run, model, ws, batch->B, batch->T, batch->doc_start));
  run.dropout = step->training ? model->config.dropout : 0;
  run.dropout_hidden = step->training ? model->config.dropout_hidden : 0;
  run.training = step->training;
  run.seed = step->seed;
  run.stream = step->step * wn_run_streams(&model->config);
  run.grads = step->grads;
  run.grad_at = step->grad_at;
  run.begun = step->begun;
  run.observer = step->observer;
  /* Observers look ids up in their own tables. */
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
  wn_recurrence_advance(&run, ws, step->recurrence_set);
  return WN_OK;
}
