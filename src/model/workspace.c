/* The memory of a step: laid out once for the largest (B,T). The size of the scratch is found by a measuring pass. */
#include "model/workspace.h"

#include <string.h>

#include "attention/registry.h"
#include "kv/budgets.h"
#include "kv/policy.h"
#include "model/config.h"

#define LOGITS_BYTES ((int64_t)64 << 20)
#define LOGITS_ROWS_MIN 64

int64_t wn_logits_rows(int64_t M, int64_t V) {
  int64_t rows = LOGITS_BYTES / 4 / V / 16 * 16;
  if (rows < LOGITS_ROWS_MIN) rows = LOGITS_ROWS_MIN;
  if (rows >= M) return M;
  const int64_t chunks = (M + rows - 1) / rows; /* chunks of equal size, so that the last one is not small */
  return ((M + chunks - 1) / chunks + 15) / 16 * 16;
}

/* Counts or places all arrays except those whose size is found later (rooms of the recurrence, scratch). ws->blocks is
 * set before. */
static void workspace_lay(struct wn_workspace *ws) {
  const wn_model_config *c = &ws->model->config;
  const size_t e = wn_dtype_size(ws->model->dtype);
  const int64_t L = c->layers, C = c->width, M = ws->B * ws->T;
  const int64_t recurrence = ws->options.recurrence;
  const bool all = ws->keep == WN_KEEP_ALL, encoder = wn_is_encoder(c), layer = c->norm == WN_NORM_LAYER;
  const int64_t own = all ? L : 1, own_exact = all || ws->keep == WN_KEEP_REDUCED ? L : 1;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(ws->blocks.large, 1, "activations", true, WN_DIMS(own, (int64_t)ws->blocks.large_bytes)),
      WN_ARRAY_SIZED(ws->blocks.derived, 1, "derived activations", true,
                     WN_DIMS(own, (int64_t)ws->blocks.derived_bytes)),
      WN_ARRAY_SIZED(ws->blocks.exact, 1, "exact activations", true,
                     WN_DIMS(own_exact, (int64_t)ws->blocks.exact_bytes)),
      WN_ARRAY_SIZED(ws->blocks.act, wn_dtype_size(ws->types.ffn), "act of all layers", ws->blocks.one_act,
                     WN_DIMS(M, c->ffn_width)),
      WN_ARRAY_SIZED(ws->kept, 1, "kept activations", true, WN_DIMS(L, (int64_t)ws->kept_bytes)),
      WN_ARRAY_FOR(ws->sums, "sums", true, WN_DIMS(ws->sums_count)),
      WN_ARRAY_FOR(ws->recurrence_positions, "positions of the recurrence", recurrence > 0,
                   WN_DIMS(recurrence + ws->T)),
      WN_ARRAY_FOR(ws->evicted_at, "evictions", true, WN_DIMS(L, ws->evicting, M)),
      WN_ARRAY_SIZED(ws->embedded, e, "embedded", c->embed_norm, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(ws->embed_rstd, e, "embed_rstd", c->embed_norm, WN_DIMS(M)),
      WN_ARRAY_SIZED(ws->embed_mean, e, "embed_mean", c->embed_norm && layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(ws->x_out, e, "x_out", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(ws->n_out, e, "n_out", true, WN_DIMS(M, C)),
      WN_ARRAY_SIZED(ws->rstd, e, "rstd", true, WN_DIMS(M)),
      WN_ARRAY_SIZED(ws->mean, e, "mean", layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(ws->logits, e, "logits", !encoder, WN_DIMS(ws->chunk, c->vocab_size)),
      WN_ARRAY_FOR(ws->loss, "loss", !encoder, WN_DIMS(ws->chunk)),
      WN_ARRAY_SIZED(ws->hit, 1, "hit", !encoder, WN_DIMS(ws->chunk)),
  };
  WN_ARRAYS_LAY(&ws->arrays, rows);
  wn_layer_temp_lay(c, ws->types, ws->B, ws->T, recurrence > 0, ws->options.backward, &ws->arrays, &ws->temp);
}

/* Counts or places the arrays that are only on the host. */
static void workspace_lay_own(struct wn_workspace *ws) {
  const int64_t recurrence = ws->options.recurrence, sets = ws->options.recurrence_sets, L = ws->model->config.layers;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(ws->recurrence, "recurrence", recurrence > 0, WN_DIMS(sets, L)),
      WN_ARRAY_FOR(ws->rooms, "rooms of the recurrence", recurrence > 0, WN_DIMS(L + 1)),
      WN_ARRAY_FOR(ws->recurrence_seen, "tokens of the streams", recurrence > 0, WN_DIMS(sets)),
      WN_ARRAY_FOR(ws->sums_read, "sums that are read", !wn_workspace_memory(ws)->host, WN_DIMS(ws->sums_count)),
  };
  WN_ARRAYS_LAY(&ws->own, rows);
}

static void workspace_lay_batch(const struct wn_workspace *ws, struct wn_workspace_batch *b) {
  const wn_model_config *c = &ws->model->config;
  const int64_t M = ws->B * ws->T;
  const bool apart = !wn_workspace_memory(ws)->host;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(b->positions, "positions", true, WN_DIMS(M)),
      WN_ARRAY_FOR(b->row_count, "rows that are tokens", true, WN_DIMS(ws->B)),
      WN_ARRAY_SIZED(b->control, 1, "control tokens", c->attention.threshold.enabled && ws->model->control, WN_DIMS(M)),
      WN_ARRAY_FOR(b->tokens, "tokens", apart, WN_DIMS(M)),
      WN_ARRAY_FOR(b->targets, "targets", apart, WN_DIMS(M)),
      WN_ARRAY_FOR(b->doc_start, "document starts", apart, WN_DIMS(M)),
      WN_ARRAY_FOR(b->key_count, "key counts", apart, WN_DIMS(ws->B)),
  };
  WN_ARRAYS_LAY(&b->arrays, rows);
}

/* Counts or places the host's arrays, and those that are copied from the host to the backend. */
static void workspace_lay_host(struct wn_workspace *ws) {
  workspace_lay_own(ws);
  workspace_lay_batch(ws, &ws->host);
  workspace_lay_batch(ws, &ws->device);
}

static wn_status workspace_host_arrays(wn_context *ctx, struct wn_workspace *ws) {
  const bool host = wn_workspace_memory(ws)->host;
  ws->device.arrays.memory = wn_workspace_memory(ws);
  workspace_lay_host(ws);
  WN_TRY(wn_arrays_check(ctx, &ws->own, "workspace of B %lld, T %lld", (long long)ws->B, (long long)ws->T));
  WN_TRY(wn_arrays_check(ctx, &ws->host.arrays, "workspace of B %lld, T %lld", (long long)ws->B, (long long)ws->T));
  WN_TRY(wn_arrays_allocate(ctx, &ws->own, "the workspace of a step"));
  WN_TRY(wn_arrays_allocate(ctx, &ws->host.arrays, "a batch"));
  if (!host) WN_TRY(wn_arrays_allocate(ctx, &ws->device.arrays, "a batch"));
  workspace_lay_host(ws);
  if (host) ws->device = ws->host, ws->device.arrays = (struct wn_arrays){0};
  if (host) ws->sums_read = ws->sums;
  return WN_OK;
}

/* Which activations are stored in bf16. None with recurrence, with an encoder, with bf16 storage (which rounds them
 * anyway), or with an observer; and attention's rows not where evictions are found from them or gates read keys.
 * Without norms before the branches n1 and n2 are the residual stream, which is not rounded. */
static struct wn_layer_types workspace_types(const struct wn_workspace *ws) {
  const wn_model_config *c = &ws->model->config;
  struct wn_layer_types types = wn_layer_types_of(ws->model->dtype);
  if (ws->options.precision != WN_BF16 || ws->keep == WN_KEEP_REDUCED || ws->options.recurrence > 0 ||
      ws->options.observer || wn_is_encoder(c) || c->encoder.layers > 0)
    return types;
  if (c->experts.count == 0) { /* experts read floats and round what they multiply themselves */
    types.ffn = WN_BF16;
    if (wn_norm_before_branch(c)) types.norms = WN_BF16;
  }
  if (ws->evicting == 0 && !wn_layer_reads_keys(c)) types.rows = WN_BF16;
  return types;
}

static wn_status workspace_arrays(wn_context *ctx, struct wn_workspace *ws) {
  const wn_model_config *c = &ws->model->config;
  const int64_t recurrence = ws->options.recurrence;
  int64_t M, keys;
  struct wn_layer_acts acts;
  ws->keep = !ws->options.backward                     ? WN_KEEP_NOTHING
             : ws->options.recompute                   ? WN_KEEP_INPUT
             : ws->options.activation_dtype == WN_BF16 ? WN_KEEP_REDUCED
                                                       : WN_KEEP_ALL;
  ws->types = workspace_types(ws);
  /* `act` is computed again from `in`: a hundredth of the step's time saves a tenth of its memory. */
  ws->blocks.one_act = ws->keep == WN_KEEP_ALL && ws->types.ffn == WN_BF16;
  if (__builtin_mul_overflow(ws->B, ws->T + recurrence, &keys) || keys > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "workspace of B %lld, T %lld, recurrence %lld: too many tokens",
                   (long long)ws->B, (long long)ws->T, (long long)recurrence);
  if (__builtin_mul_overflow(ws->B, ws->T, &M) || M > INT32_MAX ||
      !wn_layer_acts_plan(c, ws->types, ws->B, ws->T, recurrence > 0, &ws->blocks, &acts))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "workspace of B %lld, T %lld: too many tokens", (long long)ws->B,
                   (long long)ws->T);
  if (ws->keep == WN_KEEP_INPUT) /* less than large_bytes, so no overflow */
    ws->kept_bytes =
        ((size_t)M * (size_t)c->width * wn_dtype_size(ws->model->dtype) + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  if (ws->keep == WN_KEEP_REDUCED) ws->kept_bytes = (ws->blocks.large_bytes / 2 + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  ws->chunk = wn_logits_rows(M, c->vocab_size);
  ws->sums_count = WN_SUM_LOSSES + WN_SUMS_OF_LAYER * c->layers;
  ws->arrays.memory = wn_workspace_memory(ws);
  workspace_lay(ws);
  WN_TRY(wn_arrays_check(ctx, &ws->arrays, "workspace of B %lld, T %lld", (long long)ws->B, (long long)ws->T));
  WN_TRY(wn_arrays_allocate(ctx, &ws->arrays, "the workspace of a step"));
  workspace_lay(ws);
  return workspace_host_arrays(ctx, ws);
}

/* Finds the scratch that the largest step will need. */
static wn_status workspace_measure(struct wn_workspace *ws, size_t *need, size_t *host) {
  struct wn_run run;
  wn_run_init(&run, ws->model, ws->B, ws->T);
  run.rotary = wn_workspace_rotary(ws, ws->T);
  run.measuring = true;
  run.exec.precision = ws->options.precision;
  run.types = ws->types;
  run.observer = ws->options.observer;
  const int32_t *some = ws->device.positions; /* only an address, not read */
  run.tokens = run.targets = run.positions = run.doc_start = some;
  run.training = ws->options.backward;
  run.dropout = ws->options.backward ? ws->model->config.dropout : 0;
  run.dropout_hidden = ws->options.backward ? ws->model->config.dropout_hidden : 0;
  run.budgets = ws->evicting > 0 ? &ws->budgets : NULL;
  run.evicted_at = ws->evicted_at;
  run.grads = ws->options.backward ? ws->model->params : NULL; /* only an address, not read */
  const struct wn_batch batch = {.B = ws->B, .T = ws->T};
  struct wn_step_result result;
  wn_encoder_measure(&run, ws);
  if (wn_is_encoder(&ws->model->config)) {
    run.doc_start = NULL;
    run.key_count = some;
    WN_TRY(wn_run_stack(&run, ws));
    if (run.grads) WN_TRY(wn_run_backward(&run, ws));
    *need = run.need;
    *host = run.host_need;
    return WN_OK;
  }
  if (ws->options.recurrence > 0) { /* once more with no tokens kept: a backend may need other scratch for fewer keys */
    run.doc_start = NULL;
    wn_recurrence_bind(&run, ws, 0);
    WN_TRY(wn_run_step(&run, ws, &batch, &(struct wn_step){0}, &result));
    run.recurrence.full = true;
  }
  WN_TRY(wn_run_step(&run, ws, &batch, &(struct wn_step){0}, &result));
  *need = run.need;
  *host = run.host_need;
  return WN_OK;
}

/* Positions of a block after cached rows may exceed the model's table. */
static wn_status workspace_rotary(struct wn_workspace *ws) {
  const int64_t rows = ws->options.recurrence + ws->T;
  return rows > ws->model->rotary.rows ? wn_rotary_create(ws->model, "workspace", rows, &ws->rotary) : WN_OK;
}

static wn_status workspace_recurrence_positions(wn_context *ctx, struct wn_workspace *ws) {
  const struct wn_memory *memory = wn_workspace_memory(ws);
  const int64_t n = ws->options.recurrence > 0 ? ws->options.recurrence + ws->T : 0;
  const size_t bytes = (size_t)n * sizeof(int32_t);
  void *opened;
  if (n == 0) return WN_OK;
  WN_TRY(wn_memory_open(ctx, memory, "positions of the recurrence", ws->recurrence_positions, bytes, &opened));
  for (int64_t i = 0; i < n; i++) ((int32_t *)opened)[i] = (int32_t)i;
  return wn_memory_close(ctx, memory, ws->recurrence_positions, bytes, opened, true);
}

wn_status wn_workspace_create(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t T,
                              const struct wn_workspace_options *options, wn_workspace **out) {
  *out = NULL;
  if (B < 1 || T < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "workspace of B %lld, T %lld: both must be at least 1", (long long)B,
                   (long long)T);
  if (T > model->config.context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "workspace of T %lld: the model's context is %lld", (long long)T,
                   (long long)model->config.context);
  WN_TRY(wn_alloc_reserve(ctx));
  if (options->backward) WN_TRY(wn_model_need_float(ctx, model, "training"));
  if (options->recurrence < 0 || options->recurrence > INT32_MAX / 2 ||
      (options->recurrence > 0 && options->recurrence_sets < 1) || options->recurrence_sets > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "workspace of recurrence %lld in %lld sets: expected 0 to %d in at least one",
                   (long long)options->recurrence, (long long)options->recurrence_sets, INT32_MAX / 2);
  if (options->budgets) WN_TRY(wn_budgets_check_rows(ctx, options->budgets));
  if (options->recurrence > 0 && options->budgets)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets and segment recurrence exclude each other");
  if (options->recurrence > 0) WN_TRY(wn_model_recurrence_check(ctx, "workspace", &model->config));
  if (options->backward && options->activation_dtype != WN_F32 &&
      (options->activation_dtype != WN_BF16 || model->dtype != WN_F32))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "activations of dtype %s for a model of %s: F32 and, for F32 models, BF16",
                   wn_dtype_name(options->activation_dtype), wn_dtype_name(model->dtype));
  if (options->precision != WN_F32 && (options->precision != WN_BF16 || model->dtype != WN_F32))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "products of precision %s for a model of %s: F32 and, for F32 models, BF16",
                   wn_dtype_name(options->precision), wn_dtype_name(model->dtype));
  struct wn_workspace *ws;
  WN_TRY(WN_ALLOC(ctx, "workspace", 1, &ws));
  ws->ctx = ctx;
  ws->model = model;
  ws->B = B;
  ws->T = T;
  ws->options = *options;
  ws->options.budgets = NULL; /* the caller's pointer is not kept */
  if (options->budgets) {
    const wn_model_config *c = &model->config;
    ws->budgets = *options->budgets;
    ws->budgets.tokens = ws->budgets.head_tokens = NULL;
    ws->budgets.layers = ws->budgets.heads = 0;
    ws->evicting = wn_policy_groups(&ws->budgets, c->kv_heads, wn_attention_selections(&c->attention, c->kv_heads));
  }
  wn_status status;
  size_t need, host;
  void *beside;
  if (model->encoder) {
    struct wn_workspace_options own = *options;
    own.budgets = NULL, own.observer = NULL; /* these are for the decoder's layers */
    WN_TRY_GOTO(wn_workspace_create(ctx, model->encoder, B, model->encoder->config.context, &own, &ws->encoder), fail);
  }
  WN_TRY_GOTO(workspace_arrays(ctx, ws), fail);
  WN_TRY_GOTO(workspace_recurrence_positions(ctx, ws), fail);
  bool changed;
  WN_TRY_GOTO(wn_recurrence_fit(ws, &changed), fail);
  WN_TRY_GOTO(workspace_rotary(ws), fail);
  WN_TRY_GOTO(workspace_measure(ws, &need, &host), fail);
  WN_TRY_GOTO(wn_alloc(ctx, "scratch of a step on the host", host, &beside), fail);
  ws->host_scratch = beside;
  ws->host_scratch_bytes = host;
  WN_TRY_GOTO(wn_workspace_memory(ws)->allocate(ctx, "scratch of a step", need, &ws->scratch), fail);
  ws->scratch_bytes = need;
  *out = ws;
  return WN_OK;
fail:
  wn_workspace_destroy(ws);
  return status;
}

wn_status wn_workspace_fit(wn_workspace *ws) {
  bool changed;
  size_t need, host;
  void *scratch;
  WN_TRY(wn_recurrence_fit(ws, &changed));
  if (!changed) return WN_OK;
  WN_TRY(workspace_measure(ws, &need, &host));
  if (host > ws->host_scratch_bytes) {
    WN_TRY(wn_alloc(ws->ctx, "scratch of a step on the host", host, &scratch));
    wn_free(ws->host_scratch);
    ws->host_scratch = scratch;
    ws->host_scratch_bytes = host;
  }
  if (need <= ws->scratch_bytes && need >= ws->scratch_bytes / 4 * 3) return WN_OK;
  WN_TRY(wn_workspace_memory(ws)->allocate(ws->ctx, "scratch of a step", need, &scratch));
  wn_workspace_memory(ws)->release(ws->scratch);
  ws->scratch = scratch;
  ws->scratch_bytes = need;
  return WN_OK;
}

void wn_workspace_destroy(wn_workspace *ws) {
  if (!ws) return;
  const struct wn_memory *memory = wn_workspace_memory(ws);
  memory->wait(ws->ctx, memory->record(ws->ctx)); /* a step that failed may have copies still running */
  wn_workspace_destroy(ws->encoder);
  wn_recurrence_clear(ws);
  wn_rotary_clear(&ws->rotary);
  wn_workspace_memory(ws)->release(ws->scratch);
  wn_free(ws->host_scratch);
  wn_arrays_clear(&ws->arrays);
  wn_arrays_clear(&ws->own);
  wn_arrays_clear(&ws->host.arrays);
  wn_arrays_clear(&ws->device.arrays);
  wn_free(ws);
}

size_t wn_workspace_bytes(const wn_workspace *ws) {
  return ws->arrays.bytes + ws->own.bytes + ws->host.arrays.bytes + ws->device.arrays.bytes + ws->scratch_bytes +
         ws->host_scratch_bytes + ws->recurrence_bytes + (ws->encoder ? wn_workspace_bytes(ws->encoder) : 0);
}
