/* One optimizer step: `accumulate` micro-steps of forward and backward, whose gradients are summed, then the update.
 * Several processes share both (shards.c). The loss is the mean over the counted positions of all micro-steps, so the
 * result does not depend on how a batch is split (up to rounding): each micro-step's gradient is scaled by 1 / counted
 * positions of the whole step, L_mem's by the micro-step's share of the documents, and the span loss's by its share of
 * the tokens. Only the experts' balance loss is not such a mean: each micro-step has its own, weighted by tokens.
 * Memory: one array of gradients for the parameters that learn, the optimizer's one or two arrays of that size, and the
 * workspace. All of it is allocated at creation, except the rooms of segment recurrence, which follow the spans at the
 * end of a step. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "dist/dist.h"
#include "kv/budgets.h"
#include "train/schedule.h"

/* Programs may fill the struct by hand: checks that every enum value is a known one. */
static wn_status check_names(wn_context *ctx, const wn_train_config *c) {
  const struct {
    const char *key;
    int value, count;
  } names[] = {{"optimizer", (int)c->optimizer, WN_OPT_MUON + 1},
               {"schedule", (int)c->schedule, WN_SCHED_CONSTANT + 1},
               {"tune", (int)c->tune, WN_TUNE_MECHANISMS + 1},
               {"prune.policy", (int)c->prune.policy, wn_policy_count()}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].value < 0 || names[i].value >= names[i].count)
      return wn_fail(ctx, WN_ERR_CONFIG, "train.%s is %d; expected 0 to %d", names[i].key, names[i].value,
                     names[i].count - 1);
  return WN_OK;
}

static wn_status check_config(wn_context *ctx, const wn_model *model, const wn_train_config *config) {
  int64_t longest = model->config.context;
  WN_TRY(check_names(ctx, config));
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_train_config, config));
  if (config->batch < 1 || config->accumulate < 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "train.batch and train.accumulate must be at least 1, found %lld and %lld",
                   (long long)config->batch, (long long)config->accumulate);
  if (config->context < 0 || config->context > longest)
    return wn_fail(ctx, WN_ERR_CONFIG, "train.context is %lld, the model's context is %lld", (long long)config->context,
                   (long long)longest);
  if (config->activation_dtype != WN_F32 && config->activation_dtype != WN_BF16)
    return wn_fail(ctx, WN_ERR_CONFIG, "train.activation_dtype must be float32 or bfloat16, found %s",
                   wn_dtype_name(config->activation_dtype));
  if (config->precision != WN_F32 && config->precision != WN_BF16)
    return wn_fail(ctx, WN_ERR_CONFIG, "train.precision must be float32 or bfloat16, found %s",
                   wn_dtype_name(config->precision));
  if (config->precision == WN_BF16 && model->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "train.precision bfloat16 needs a model of F32, found %s",
                   wn_dtype_name(model->dtype));
  if (!(config->lr >= 0) || !isfinite(config->lr))
    return wn_fail(ctx, WN_ERR_CONFIG, "train.lr must be a finite number that is not negative, found %g", config->lr);
  if (config->optimizer != WN_OPT_MUON) return WN_OK;
  if (!(config->muon.lr >= 0) || !isfinite(config->muon.lr) || !(config->muon.momentum >= 0) ||
      !(config->muon.momentum < 1) || config->muon.steps < 1)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "train.muon: lr must be finite and not negative, momentum from 0 to below 1, steps at least 1; found "
        "%g, %g, %lld",
        config->muon.lr, config->muon.momentum, (long long)config->muon.steps);
  return WN_OK;
}

static wn_status open_budgets(wn_context *ctx, wn_trainer *t) {
  wn_budgets_init(&t->target, NULL);
  t->target.policy = t->config.prune.policy;
  WN_TRY(wn_budgets_parse(ctx, &t->model->config, t->config.prune.budgets, &t->target));
  WN_TRY(wn_budgets_check(ctx, &t->target, &t->model->config));
  if (t->target.cache_positions)
    return wn_fail(ctx, WN_ERR_CONFIG, "train.prune.budgets: \"cache_positions\" is for decoding only");
  return wn_budgets_copy(ctx, &t->target, &t->budgets);
}

/* The budgets of optimizer step `step`, counted from 1; NULL: nothing is evicted. */
static const wn_budgets *budgets_of(wn_trainer *t, int64_t step,
                                    int64_t (*schedule)(const wn_train_config *, int64_t, int64_t, int64_t)) {
  bool any = false;
  for (int64_t l = 0; l < t->target.layers; l++) {
    t->budgets.tokens[l] = schedule(&t->config, t->context, t->target.tokens[l], step);
    any = any || t->budgets.tokens[l] < t->context;
  }
  for (int64_t i = 0; i < t->target.layers * t->target.heads; i++) {
    t->budgets.head_tokens[i] = schedule(&t->config, t->context, t->target.head_tokens[i], step);
    any = any || t->budgets.head_tokens[i] < t->context;
  }
  return any ? &t->budgets : NULL;
}

const wn_budgets *wn_trainer_budgets(wn_trainer *t) {
  return budgets_of(t, t->step, wn_schedule_budget);
}

bool wn_trainer_never_evicts(wn_trainer *t) {
  return t->target.layers > 0 && !budgets_of(t, t->config.steps, wn_schedule_budget);
}

wn_status wn_trainer_create(wn_context *ctx, wn_model *model, const wn_train_config *config, wn_trainer **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(config), WN_POINTER(out));
  *out = NULL;
  WN_TRY(check_config(ctx, model, config));
  wn_trainer *t;
  WN_TRY(WN_ALLOC(ctx, "trainer", 1, &t));
  wn_status status;
  wn_handle_mark(t, WN_HANDLE_TRAINER);
  t->model = model;
  wn_model_keep(model);
  t->config = *config;
  WN_TRY_GOTO(wn_shards_plan(ctx, config, &t->shards), failed);
  t->batch = t->shards.rows;
  t->accumulate = t->shards.micro_steps;
  t->context = config->context ? config->context : model->config.context;
  if (config->prune.budgets[0]) WN_TRY_GOTO(open_budgets(ctx, t), failed);
  WN_TRY_GOTO(wn_adapt_rows_init(ctx, model, config, &t->learns), failed);
  struct wn_optimizer_share share;
  WN_TRY_GOTO(wn_shards_share(&t->shards, model, &t->learns, &share), failed);
  WN_TRY_GOTO(wn_optimizer_init(ctx, model, config->optimizer, t->learns.rows, t->learns.count, &share, &t->opt),
              failed);
  const struct wn_array own[] = {
      WN_ARRAY_SIZED(t->begun, 1, "gradients begun", true, WN_DIMS(model->table.count)),
      WN_ARRAY_FOR(t->micro, "figures of micro-steps", true, WN_DIMS(t->accumulate, WN_MICRO)),
      WN_ARRAY_SIZED(t->shown, wn_dtype_size(model->dtype), "gradients that are shown", !model->backend->memory->host,
                     WN_DIMS((int64_t)t->learns.gradients))};
  WN_TRY_GOTO(WN_ARRAYS_CREATE(ctx, &t->own, "a step's figures", own), failed);
  WN_TRY_GOTO(wn_shards_open(&t->shards, &t->opt, t->begun), failed);
  t->grads = t->shards.sum[0];
  struct wn_workspace_options options = {.backward = true,
                                         .recompute = config->recompute,
                                         .activation_dtype = config->activation_dtype,
                                         .precision = config->precision};
  options.recurrence = model->config.recurrence;
  options.budgets = t->target.layers > 0 ? &t->target : NULL;
  options.recurrence_whole = config->whole_recurrence;
  options.recurrence_sets = t->accumulate + (config->eval_every > 0); /* the last set is for evaluations */
  WN_TRY_GOTO(wn_workspace_create(ctx, model, t->batch, t->context, &options, &t->ws), failed);
  WN_TRY_GOTO(wn_alloc_reserve(ctx), failed); /* the reserve must still be there after all of this */
  *out = t;
  return WN_OK;
failed:
  wn_trainer_destroy(t);
  return status;
}

void wn_trainer_destroy(wn_trainer *t) {
  WN_CHECK_OR(, WN_HANDLE(t, TRAINER));
  wn_workspace_destroy(t->ws);
  wn_shards_clear(&t->shards);
  wn_optimizer_clear(&t->opt);
  wn_adapt_rows_clear(&t->learns);
  wn_arrays_clear(&t->own);
  wn_budgets_clear(&t->target);
  wn_budgets_clear(&t->budgets);
  wn_model_release(t->model);
  wn_free(t);
}

/* Zeroes the gradients, except those that products will overwrite. */
static wn_status trainer_clear_gradients(struct wn_trainer *t, void *grads) {
  const size_t size = wn_dtype_size(t->model->dtype);
  const struct wn_memory *memory = t->model->backend->memory;
  if (t->learns.has_lora) { /* gradients of tensors beside the model's */
    memset(t->begun, 1, (size_t)t->model->table.count);
    return memory->zero(t->model->ctx, grads, t->learns.gradients * size);
  }
  for (int i = 0; i < t->model->table.count; i++) {
    const size_t at = t->learns.grad_at[i];
    t->begun[i] = !wn_model_begins(t->model, i);
    if (at != WN_NO_GRADIENT && t->begun[i])
      WN_TRY(memory->zero(t->model->ctx, (char *)grads + at * size, t->model->table.rows[i].count * size));
  }
  return WN_OK;
}

/* What the micro-steps of a step share. */
struct trainer_step {
  const int32_t *tokens, *targets, *doc_start;
  uint64_t counted;
  double documents, all_tokens, mem_weight;
  const wn_budgets *budgets;
};

/* Runs micro-step a, counted over all processes: dropout, streams and factors depend only on this number. whole: it is
 * the last one, so that its backward completes the gradients. */
static wn_status trainer_micro_step(struct wn_trainer *t, const struct trainer_step *s, int64_t a, void *grads,
                                    bool whole) {
  const int64_t micro = t->batch * t->context;
  const struct wn_batch batch = {.B = t->batch,
                                 .T = t->context,
                                 .tokens = s->tokens + a * micro,
                                 .targets = s->targets + a * micro,
                                 .doc_start = s->doc_start ? s->doc_start + a * micro : NULL,
                                 .S = t->input_length,
                                 .inputs = t->inputs ? t->inputs + a * t->batch * t->input_length : NULL,
                                 .input_count = t->input_count ? t->input_count + a * t->batch : NULL};
  const struct wn_step step = {.grads = grads,
                               .grad_at = t->learns.grad_at,
                               .begun = t->begun,
                               .whole = whole ? wn_shards_layer : NULL,
                               .whole_user = &t->shards,
                               .loss_scale = 1.0 / (double)s->counted,
                               .mem_scale = s->mem_weight * (double)wn_batch_documents(&batch) / s->documents,
                               .span_scale = (double)wn_batch_all_tokens(&batch) / s->all_tokens,
                               .gate_weight = s->mem_weight,
                               .training = true,
                               .seed = t->config.seed,
                               .step = (uint64_t)t->step * (uint64_t)t->accumulate + (uint64_t)a,
                               .recurrence_set = a,
                               .budgets = s->budgets};
  struct wn_step_result result = {0};
  WN_TRY(wn_model_step(t->model, t->ws, &batch, &step, &result));
  double *figures = t->micro + a * WN_MICRO;
  figures[WN_MICRO_LOSS] = result.loss_sum;
  figures[WN_MICRO_MEM] = result.mem_loss * step.mem_scale + result.gate_loss * step.span_scale;
  figures[WN_MICRO_SPAN_LOSS] = result.span_loss * step.span_scale;
  figures[WN_MICRO_BALANCE] = result.balance_loss * step.span_scale;
  figures[WN_MICRO_SPAN] = result.span * step.span_scale;
  return WN_OK;
}

/* Computes this process's parts and combines them with the others': gradients, and in sums [WN_MICRO] the results of
 * all micro-steps. */
static wn_status trainer_parts(struct wn_trainer *t, const struct trainer_step *s, double *sums) {
  struct wn_shards *shards = &t->shards;
  const int64_t each = t->accumulate / shards->parts;
  memset(t->micro, 0, (size_t)t->accumulate * WN_MICRO * sizeof *t->micro);
  for (int64_t i = 0; i < shards->count; i++) {
    void *grads = wn_shards_begin(shards, i);
    const bool last = i == shards->count - 1;
    WN_TRY(trainer_clear_gradients(t, grads));
    for (int64_t k = 0; k < each; k++)
      WN_TRY(trainer_micro_step(t, s, (shards->first + i) * each + k, grads, shards->overlap && last && k == each - 1));
    if (t->learns.has_lora) WN_TRY(wn_lora_backward(&t->learns.lora, t->learns.grad_at, grads));
    if (!last) WN_TRY(wn_shards_add(shards, i));
  }
  WN_TRY(wn_shards_finish(shards));
  WN_TRY(wn_dist_merge(t->model->ctx, t->micro, shards->size > 1 ? (size_t)(t->accumulate * WN_MICRO) : 0));
  for (int64_t a = 0; a < t->accumulate; a++)
    for (int k = 0; k < WN_MICRO; k++) sums[k] += t->micro[a * WN_MICRO + k];
  return WN_OK;
}

wn_status wn_trainer_step(wn_context *ctx, wn_trainer *t, const int32_t *tokens, const int32_t *targets,
                          const int32_t *doc_start, wn_train_progress *progress) {
  WN_CHECK_WORK(WN_HANDLE_AS("trainer", t, TRAINER), WN_POINTER(tokens), WN_POINTER(targets));
  double start = wn_seconds_now();
  int64_t all = t->batch * t->context * t->accumulate;
  uint64_t counted = 0;
  for (int64_t i = 0; i < all; i++) counted += targets[i] >= 0;
  if (counted == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "step %lld: no position of the batch has a target", (long long)t->step + 1);

  WN_TRY(wn_adapt_strength_set(t->model, &t->config, &t->learns, t->step + 1));
  const wn_budgets *budgets = budgets_of(t, t->step + 1, wn_schedule_budget_drawn);
  const struct wn_batch whole = {
      .B = t->batch * t->accumulate, .T = t->context, .targets = targets, .doc_start = doc_start};
  const struct trainer_step step = {.tokens = tokens,
                                    .targets = targets,
                                    .doc_start = doc_start,
                                    .counted = counted,
                                    .documents = (double)wn_batch_documents(&whole),
                                    .all_tokens = (double)wn_batch_all_tokens(&whole),
                                    .mem_weight = wn_schedule_memory_loss(&t->config, t->step + 1),
                                    .budgets = budgets};
  double sums[WN_MICRO] = {0};
  WN_TRY(trainer_parts(t, &step, sums));
  const double loss = sums[WN_MICRO_LOSS] / (double)counted, mem_loss = sums[WN_MICRO_MEM],
               span_loss = sums[WN_MICRO_SPAN_LOSS], balance_loss = sums[WN_MICRO_BALANCE], span = sums[WN_MICRO_SPAN];
  const double all_losses = loss + mem_loss + span_loss + balance_loss;
  if (!isfinite(all_losses))
    return wn_fail(ctx, WN_ERR_DIVERGED, "the loss of step %lld is %g", (long long)t->step + 1, wn_told(all_losses));
  double norm, lr = wn_schedule_lr(&t->config, t->step + 1);
  WN_TRY(wn_optimizer_measure(&t->opt, t->grads, &norm));
  if (!isfinite(norm))
    return wn_fail(ctx, WN_ERR_DIVERGED, "the gradient norm of step %lld is %g", (long long)t->step + 1, wn_told(norm));
  const double muon_lr = wn_schedule_muon_lr(&t->config, t->step + 1);
  WN_TRY(wn_optimizer_apply(&t->opt, &t->config, t->grads, lr, muon_lr, t->step + 1));
  WN_TRY(wn_shards_gather(&t->shards));
  if (t->learns.has_lora) WN_TRY(wn_lora_merge(&t->learns.lora));
  WN_TRY(wn_workspace_fit(t->ws));
  t->step++;
  t->tokens += (uint64_t)step.all_tokens;
  if (progress) {
    double seconds = wn_seconds_now() - start;
    *progress = (wn_train_progress){.step = t->step,
                                    .steps = t->config.steps,
                                    .loss = loss,
                                    .lr = lr,
                                    .grad_norm = norm,
                                    .mem_loss = mem_loss,
                                    .span_loss = span_loss,
                                    .balance_loss = balance_loss,
                                    .span = span,
                                    .workspace_bytes = wn_workspace_bytes(t->ws),
                                    .recurrence_bytes = wn_workspace_recurrence_bytes(t->ws),
                                    .recurrence_moves = wn_workspace_recurrence_moves(t->ws),
                                    .tokens_per_second = seconds > 0 ? step.all_tokens / seconds : 0,
                                    .seconds = seconds,
                                    .waited_seconds = t->shards.waited,
                                    .tokens = t->tokens};
    if (budgets) progress->budget = wn_budgets_mean(budgets);
  }
  return WN_OK;
}

void wn_trainer_set_inputs(wn_trainer *t, const int32_t *inputs, const int32_t *input_count, int64_t S) {
  WN_CHECK_OR(, WN_HANDLE(t, TRAINER), WN_POINTER(inputs));
  t->inputs = inputs;
  t->input_count = input_count;
  t->input_length = S;
}

void wn_trainer_forget(wn_trainer *t) {
  WN_CHECK_OR(, WN_HANDLE(t, TRAINER));
  for (int64_t a = 0; a < t->accumulate; a++) wn_workspace_forget(t->ws, a);
}

wn_status wn_trainer_gradient_at(const wn_trainer *t, int i, wn_safetensors_entry *out) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE_AS("trainer", t, TRAINER));
  WN_CHECK_ARGUMENTS(t->model->ctx, WN_POINTER(out));
  wn_context *ctx = t->model->ctx;
  if (i < 0 || i >= t->model->table.count)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "gradient %d of %d tensors", i, t->model->table.count);
  if (t->shards.size > 1)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "gradient %d: of %d processes none has the whole of it", i, t->shards.size);
  const struct wn_param *row = &t->model->table.rows[i];
  if (t->learns.grad_at[i] == WN_NO_GRADIENT)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "gradient %d: tensor %s does not learn", i, row->name);
  const struct wn_memory *memory = t->model->backend->memory;
  const size_t size = wn_dtype_size(t->model->dtype), at = t->learns.grad_at[i] * size;
  if (!memory->host)
    WN_TRY(wn_memory_read(ctx, memory, (char *)t->shown + at, (const char *)t->grads + at, row->count * size));
  *out = (wn_safetensors_entry){.name = row->name,
                                .dtype = t->model->dtype,
                                .ndim = row->ndim,
                                .data = (const char *)(memory->host ? t->grads : t->shown) + at,
                                .bytes = row->count * size};
  for (int d = 0; d < row->ndim; d++) out->shape[d] = row->shape[d];
  return WN_OK;
}
