/* A pass through the layers, forward and backward, and the batch that it is given (step.c says what a step is). */
#include "model/workspace.h"

#include <string.h>

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
  out->balance = wn_workspace_sum(ws, WN_SUM_BALANCE, l);
  return WN_OK;
}

/* Copies layer l's large arrays to bf16, or back. The last layer's are never copied: nothing overwrites them before its
 * backward. */
static wn_status step_move_reduced(struct wn_run *run, const struct wn_workspace *ws, int64_t l, bool back) {
  if (ws->keep != WN_KEEP_REDUCED || l == run->model->config.layers - 1) return WN_OK;
  struct wn_layer_acts a;
  struct wn_layer_blocks blocks = {0};
  wn_layer_acts_plan(&run->model->config, run->types, run->B, run->T, run->recurrence.rows > 0, &blocks, &a);
  char *copy = ws->kept + (size_t)l * ws->kept_bytes, *values = ws->blocks.large;
  const struct wn_convert move = {.n = (int64_t)(blocks.large_bytes / sizeof(float)),
                                  .x = back ? copy : values,
                                  .x_type = back ? WN_BF16 : WN_F32,
                                  .y = back ? values : copy,
                                  .y_type = back ? WN_F32 : WN_BF16};
  return wn_run_convert_forward(run, &move);
}

/* The lookup of the run's tokens in the token and position tables. The caller sets y, dy and the gradients. */
static struct wn_embedding step_embedding(const struct wn_run *run) {
  const wn_model_config *c = &run->model->config;
  const struct wn_outer_params *outer = &run->model->outer;
  return (struct wn_embedding){.M = run->B * run->T,
                               .C = c->width,
                               .V = c->vocab_size,
                               .P = c->position == WN_POS_LEARNED ? c->context : 0,
                               .ids = run->tokens,
                               .positions = run->positions,
                               .tok = wn_run_param(run, outer->embed),
                               .packed = wn_run_packed(run, outer->embed),
                               .scale = c->embed_scale,
                               .pos = wn_run_param(run, outer->pos)};
}

wn_status wn_run_embed(struct wn_run *run, void *raw, void *rstd, void *mean, void *x) {
  const wn_model_config *c = &run->model->config;
  const struct wn_outer_params *outer = &run->model->outer;
  struct wn_embedding embedding = step_embedding(run);
  embedding.y = c->embed_norm ? raw : x;
  WN_TRY(wn_run_embedding_forward(run, &embedding));
  if (c->embed_norm)
    WN_TRY(wn_run_norm(
        run, embedding.M,
        (struct wn_norm_site){.gain = outer->embed_gain, .shift = outer->embed_shift, .rstd = rstd, .mean = mean}, raw,
        NULL, NULL, x));
  return wn_run_dropout(run, 0, x);
}

struct wn_norm_site wn_run_final_norm(const struct wn_run *run, void *rstd, void *mean) {
  return (struct wn_norm_site){
      .gain = run->model->outer.norm_gain, .shift = run->model->outer.norm_shift, .rstd = rstd, .mean = mean};
}

wn_status wn_run_stack(struct wn_run *run, struct wn_workspace *ws) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T;
  struct wn_layer_acts a;
  WN_TRY(step_layer_acts(run, ws, 0, &a));
  WN_TRY(wn_run_embed(run, ws->embedded, ws->embed_rstd, ws->embed_mean, a.x));
  const void *mid = NULL, *branch = NULL;
  for (int64_t l = 0; l < c->layers; l++) {
    WN_TRY(step_layer_acts(run, ws, l, &a));
    WN_TRY(wn_layer_forward(run, l, &a, &ws->temp, mid, branch, true));
    mid = wn_layer_stream(run, &a);
    branch = ws->temp.branch;
    WN_TRY(wn_span_forward(run, l, &a, wn_workspace_sum(ws, WN_SUM_SPAN, l)));
    WN_TRY(wn_gates_forward(run, ws, l, &a));
    if (!run->measuring && run->observer && run->observer->layer) run->observer->layer(run->observer->user, run, l, &a);
    if (run->grads) WN_TRY(step_move_reduced(run, ws, l, false));
    if (!wn_run_has_mem(run)) continue;
    const struct wn_memory_loss memory = wn_layer_memory_loss(run, &a, wn_workspace_sum(ws, WN_SUM_MEM, l));
    WN_TRY(wn_run_memory_loss_forward(run, &memory));
  }
  return wn_run_norm(run, M, wn_run_final_norm(run, ws->rstd, ws->mean), mid, branch, ws->x_out, ws->n_out);
}

wn_status wn_run_backward(struct wn_run *run, struct wn_workspace *ws) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T, L = c->layers;
  struct wn_layer_acts a;
  const struct wn_outer_params *outer = &run->model->outer;
  WN_TRY(wn_run_norm_grad(run, M, wn_run_final_norm(run, ws->rstd, ws->mean), ws->x_out, ws->temp.d_n, ws->temp.d_res,
                          false));
  if (run->whole) run->whole(run->whole_user, L);
  for (int64_t l = L - 1; l >= 0; l--) {
    WN_TRY(step_layer_acts(run, ws, l, &a));
    /* The last layer's activations are still there. */
    if (ws->keep == WN_KEEP_INPUT && l < L - 1) WN_TRY(wn_layer_forward(run, l, &a, &ws->temp, NULL, NULL, false));
    if (ws->blocks.one_act && l < L - 1) WN_TRY(wn_layer_activate(run, l, &a));
    WN_TRY(step_move_reduced(run, ws, l, true));
    if (ws->keep == WN_KEEP_REDUCED && l < L - 1) WN_TRY(wn_layer_rebuild(run, l, &a));
    WN_TRY(wn_layer_backward(run, l, &a, &ws->temp));
    if (run->whole) run->whole(run->whole_user, l);
  }
  WN_TRY(wn_run_dropout(run, 0, ws->temp.d_res));
  if (c->embed_norm)
    WN_TRY(wn_run_norm_grad(
        run, M,
        (struct wn_norm_site){
            .gain = outer->embed_gain, .shift = outer->embed_shift, .rstd = ws->embed_rstd, .mean = ws->embed_mean},
        ws->embedded, ws->temp.d_res, ws->temp.d_res, false));
  struct wn_embedding embedding = step_embedding(run);
  embedding.dy = ws->temp.d_res;
  WN_TRY(wn_run_grad_begin(run, outer->embed));
  embedding.dtok = wn_run_grad(run, outer->embed);
  embedding.dpos = wn_run_grad(run, outer->pos);
  return wn_run_embedding_backward(run, &embedding);
}

/* Checks doc_start and computes positions from it; *longest: tokens of the longest document. */
static wn_status batch_positions(struct wn_workspace *ws, const struct wn_batch *batch, int64_t *longest) {
  const int64_t T = batch->T;
  *longest = 0;
  for (int64_t b = 0; b < batch->B; b++)
    for (int64_t t = 0; t < T; t++) {
      const int64_t first = batch->doc_start ? batch->doc_start[b * T + t] : 0;
      if (first < 0 || first > t)
        return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: doc_start[%lld,%lld] is %lld, expected 0 to %lld", (long long)b,
                       (long long)t, (long long)first, (long long)t);
      ws->host.positions[b * T + t] = (int32_t)(t - first);
      if (t - first >= *longest) *longest = t - first + 1;
    }
  return WN_OK;
}

/* Checks indices on the host, where operations cannot. */
static wn_status batch_check(wn_context *ctx, const char *what, const int32_t *p, int64_t n, int64_t low,
                             int64_t high) {
  for (int64_t i = 0; i < n; i++)
    if (p[i] < low || p[i] >= high)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "%s[%lld] is %d, expected %lld to %lld", what, (long long)i, p[i],
                     (long long)low, (long long)high - 1);
  return WN_OK;
}

/* Copies a batch to the backend's memory. On the host operations read the caller's arrays and check indices
 * themselves. */
static wn_status batch_cross(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch,
                             const int32_t *count) {
  const wn_model_config *c = &run->model->config;
  const int64_t M = run->B * run->T;
  const size_t bytes = (size_t)M * sizeof(int32_t);
  const bool recurrence = ws->options.recurrence > 0;
  for (int64_t i = 0; ws->host.control && i < M; i++) /* the embedding refuses ids out of range */
    ws->host.control[i] =
        batch->tokens[i] >= 0 && batch->tokens[i] < c->vocab_size ? run->model->control[batch->tokens[i]] : 0;
  for (int64_t b = 0; b < run->B && batch->targets && !recurrence; b++)
    ws->host.row_count[b] = (int32_t)wn_batch_tokens(batch, b);
  run->rows = (struct wn_documents){
      .B = run->B, .T = run->T, .doc_start = batch->doc_start, .count = batch->targets ? ws->host.row_count : NULL};
  run->control = ws->device.control;
  run->positions = ws->device.positions;
  run->row_count = batch->targets ? ws->device.row_count : NULL;
  if (wn_run_memory(run)->host) {
    run->tokens = batch->tokens, run->targets = batch->targets, run->doc_start = batch->doc_start;
    run->key_count = count;
    return WN_OK;
  }
  WN_TRY(batch_check(ws->ctx, "embedding: ids", batch->tokens, M, 0, c->vocab_size));
  memcpy(ws->host.tokens, batch->tokens, bytes);
  if (batch->targets) {
    WN_TRY(batch_check(ws->ctx, "cross_entropy: targets", batch->targets, M, -1, c->vocab_size));
    memcpy(ws->host.targets, batch->targets, bytes);
  }
  if (batch->doc_start) memcpy(ws->host.doc_start, batch->doc_start, bytes);
  if (count) WN_TRY(batch_check(ws->ctx, "attention: key_count", count, run->B, 0, run->T + 1));
  if (count) memcpy(ws->host.key_count, count, (size_t)run->B * sizeof *count);
  run->tokens = ws->device.tokens;
  run->targets = batch->targets ? ws->device.targets : NULL;
  run->doc_start = batch->doc_start ? ws->device.doc_start : NULL;
  run->key_count = count ? ws->device.key_count : NULL;
  return wn_run_memory(run)->copy_in(run->exec.ctx, ws->device.arrays.base, ws->host.arrays.base,
                                     ws->device.arrays.bytes);
}

wn_status wn_run_batch(struct wn_run *run, const struct wn_model *model, struct wn_workspace *ws,
                       const struct wn_batch *batch, const int32_t *count) {
  const int64_t B = batch->B, T = batch->T;
  int64_t longest;
  if (ws->model != model) return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: the workspace is another model's");
  if (B < 1 || T < 1 || B > ws->B || T > ws->T)
    return wn_fail(ws->ctx, WN_ERR_ARGUMENT, "step: batch of B %lld, T %lld; the workspace takes up to B %lld, T %lld",
                   (long long)B, (long long)T, (long long)ws->B, (long long)ws->T);
  wn_run_init(run, model, B, T);
  run->exec.precision = ws->options.precision;
  run->types = ws->types;
  run->exec.scratch = ws->scratch;
  run->exec.scratch_bytes = ws->scratch_bytes;
  run->host_scratch = ws->host_scratch;
  run->host_scratch_bytes = ws->host_scratch_bytes;
  WN_TRY(batch_positions(ws, batch, &longest));
  run->rotary = wn_workspace_rotary(ws, longest);
  return batch_cross(run, ws, batch, count);
}

int64_t wn_batch_tokens(const struct wn_batch *batch, int64_t b) {
  int64_t n = batch->T;
  while (n > 0 && batch->targets[b * batch->T + n - 1] < 0) n--;
  return n;
}

int64_t wn_batch_all_tokens(const struct wn_batch *batch) {
  int64_t tokens = 0;
  for (int64_t b = 0; b < batch->B; b++) tokens += wn_batch_tokens(batch, b);
  return tokens;
}

int64_t wn_batch_documents(const struct wn_batch *batch) {
  int64_t documents = 0;
  for (int64_t b = 0; b < batch->B; b++) {
    const int32_t count = (int32_t)wn_batch_tokens(batch, b);
    const struct wn_documents row = {
        .B = 1, .T = batch->T, .doc_start = batch->doc_start ? batch->doc_start + b * batch->T : NULL, .count = &count};
    documents += wn_documents_count(&row);
  }
  return documents;
}
