/* Logits of whole sequences, for analysis: a forward pass in groups of sequences; then the logits of all positions, or
 * of some at a time. */
#include "base/misuse.h"
#include "base/options.h"
#include "model/workspace.h"

#define GROUP_TOKENS 4096

/* The layers' forward pass. */
static wn_status logits_stack(struct wn_run *run, struct wn_model *model, wn_workspace *ws,
                              const struct wn_batch *batch, const wn_budgets *budgets) {
  WN_TRY(wn_run_batch(run, model, ws, batch, NULL));
  WN_TRY(wn_run_budgets(run, ws, budgets));
  if (model->encoder && batch->inputs) WN_TRY(wn_encoder_forward(run, ws, batch));
  return wn_run_stack(run, ws);
}

/* Logits of `rows` rows of the final norm's output, at most a chunk of them. */
static wn_status logits_of_rows(struct wn_run *run, wn_workspace *ws, int64_t first, int64_t rows, float *logits) {
  const struct wn_model *model = run->model;
  const int64_t V = model->config.vocab_size;
  const struct wn_memory *memory = model->backend->memory;
  void *opened;
  WN_TRY(wn_run_output(run, wn_element(ws->n_out, first * model->config.width, model->dtype), rows, ws->logits));
  const size_t bytes = (size_t)(rows * V) * wn_dtype_size(model->dtype);
  WN_TRY(wn_memory_open(model->ctx, memory, "logits", ws->logits, bytes, &opened));
  for (int64_t i = 0; i < rows * V; i++) logits[i] = (float)wn_number(opened, i, model->dtype);
  return wn_memory_close(model->ctx, memory, ws->logits, bytes, opened, false);
}

static wn_status logits_of_group(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch,
                                 const wn_budgets *budgets, float *logits) {
  const int64_t V = model->config.vocab_size, M = batch->B * batch->T;
  struct wn_run run;
  WN_TRY(logits_stack(&run, model, ws, batch, budgets));
  if (model->dtype == WN_F32 && model->backend->memory->host) return wn_run_output(&run, ws->n_out, M, logits);
  for (int64_t first = 0; first < M; first += ws->chunk) {
    const int64_t rows = M - first < ws->chunk ? M - first : ws->chunk;
    WN_TRY(logits_of_rows(&run, ws, first, rows, logits + first * V));
  }
  return WN_OK;
}

struct wn_logits_pass {
  wn_workspace *ws;
  struct wn_run run;
};

wn_status wn_logits_pass_begin(wn_context *ctx, struct wn_model *model, const struct wn_batch *batch,
                               struct wn_logits_pass **out) {
  *out = NULL;
  struct wn_logits_pass *pass;
  WN_TRY(WN_ALLOC(ctx, "logits", 1, &pass));
  wn_status status = wn_workspace_create(ctx, model, batch->B, batch->T,
                                         &(struct wn_workspace_options){.activation_dtype = WN_F32}, &pass->ws);
  if (status == WN_OK) status = logits_stack(&pass->run, model, pass->ws, batch, NULL);
  if (status == WN_OK)
    *out = pass;
  else
    wn_logits_pass_end(pass);
  return status;
}

int64_t wn_logits_pass_most(const struct wn_logits_pass *pass) {
  return pass->ws->chunk;
}

wn_status wn_logits_pass_rows(struct wn_logits_pass *pass, int64_t first, int64_t rows, float *logits) {
  return logits_of_rows(&pass->run, pass->ws, first, rows, logits);
}

void wn_logits_pass_end(struct wn_logits_pass *pass) {
  if (!pass) return;
  wn_workspace_destroy(pass->ws);
  wn_free(pass);
}

/* Logits of the whole batch; its targets are not read. */
static wn_status logits_of_batch(wn_context *ctx, struct wn_model *model, const struct wn_batch *all,
                                 const wn_budgets *budgets, float *logits) {
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  if (all->B < 1 || all->T < 1 || !all->tokens || !logits)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "logits: B %lld, T %lld; tokens and logits must be given", (long long)all->B,
                   (long long)all->T);
  int64_t group = GROUP_TOKENS / all->T;
  group = group < 1 ? 1 : group > all->B ? all->B : group;
  wn_workspace *ws;
  WN_TRY(wn_workspace_create(ctx, model, group, all->T,
                             &(struct wn_workspace_options){.activation_dtype = WN_F32, .budgets = budgets}, &ws));
  wn_status status = WN_OK;
  for (int64_t b = 0; b < all->B && status == WN_OK; b += group) {
    struct wn_batch now = *all;
    now.B = all->B - b < group ? all->B - b : group;
    now.tokens += b * all->T;
    if (all->doc_start) now.doc_start += b * all->T;
    if (all->inputs) now.inputs += b * all->S;
    if (all->input_count) now.input_count += b;
    status = logits_of_group(model, ws, &now, budgets, logits + b * all->T * model->config.vocab_size);
  }
  wn_workspace_destroy(ws);
  return status;
}

wn_status wn_model_logits(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t B, int64_t T,
                          const wn_logits_options *options, float *logits) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(tokens), WN_POINTER(logits));
  wn_logits_options o = {0};
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_logits_options, options, &o));
  struct wn_batch batch = {.B = B, .T = T, .tokens = tokens, .doc_start = o.doc_start};
  const wn_model_inputs *inputs = o.inputs;
  if (!inputs) return logits_of_batch(ctx, model, &batch, o.budgets, logits);
  if (!model->encoder) return wn_fail(ctx, WN_ERR_ARGUMENT, "logits: inputs for a model without an encoder");
  if (!inputs->tokens || o.doc_start)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "logits: %s", o.doc_start ? "inputs with doc_start" : "the inputs are NULL");
  if (inputs->S > 0 && inputs->S <= model->config.encoder.context)
    WN_TRY(wn_model_check_ids(ctx, model, "logits: input", inputs->tokens, B * inputs->S));
  batch.S = inputs->S, batch.inputs = inputs->tokens, batch.input_count = inputs->count;
  return logits_of_batch(ctx, model, &batch, o.budgets, logits);
}
