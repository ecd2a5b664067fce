/* A training run in a folder: data, model, optimizer, log, periodic evaluation and checkpoints.
 *
 * Resuming is exact because the only state is the checkpoint's arrays (with segment recurrence the cached states too)
 * and the step number: batches, dropout masks and initial values are functions of (seed, step). So a run that was
 * killed and resumed has, with the same number of threads, the same parameters to the bit as one that was not. An
 * evaluation that was interrupted is made after resuming, before the next step. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/misuse.h"
#include "dist/dist.h"
#include "model/config.h"
#include "model/model.h"
#include "text/tokenizer.h"
#include "train/adapt.h"
#include "train/checkpoint.h"
#include "train/eval.h"
#include "train/idle.h"
#include "train/prepare.h"
#include "train/runlog.h"

enum { PATH_BYTES = 4096, EVAL_BATCHES_ENDLESS = 16 };

struct run {
  wn_context *ctx;
  const char *dir;
  bool writes; /* this process (the first of several) writes into dir */
  wn_recipe recipe;
  wn_tokenizer *tok; /* or NULL */
  wn_model *model;
  wn_model *given; /* the model that a new run starts from, until the start has been checked; or NULL */
  wn_trainer *trainer;
  wn_data_source *train, *val; /* val may be NULL */
  uint64_t val_rows;           /* rows of val that an evaluation uses; UINT64_MAX: all */
  uint64_t val_batches;        /* batches of an evaluation */
  wn_row_sums *val_sums;       /* [val_batches, the trainer's batch] */
  struct wn_arrays arrays;
  int32_t *tokens, *targets, *doc_start; /* [accumulate*batch, context] */
  int32_t *inputs, *input_count; /* [accumulate*batch, input length], [accumulate*batch]; NULL without an encoder */
  struct wn_run_log log;
  int64_t saved_step; /* step of the checkpoint in dir; -1: there is none */
  bool changed;       /* the recipe differs from the checkpoint's: it is saved even if no step follows */
  bool stopped;       /* an evaluation was interrupted */
  double start;
};

static void run_clear(struct run *r) {
  wn_run_log_close(&r->log);
  wn_arrays_clear(&r->arrays);
  wn_free(r->val_sums);
  wn_data_source_destroy(r->train);
  wn_data_source_destroy(r->val);
  wn_trainer_destroy(r->trainer);
  wn_model_destroy(r->model);
  wn_model_destroy(r->given);
  wn_tokenizer_destroy(r->tok);
}

/* Finds the first key below `path` whose values differ: its dotted name and both values. A value is NULL if the key is
 * left out because it is off. False: none differs. */
static bool first_difference(json_t *a, json_t *b, const char *path, char *out, size_t bytes, json_t **x, json_t **y) {
  const char *key;
  json_t *value;
  for (int k = 0; k < 2; k++) json_object_foreach(k == 0 ? a : b, key, value) {
      json_t *ours = json_object_get(a, key), *theirs = json_object_get(b, key);
      if ((ours && theirs && json_equal(ours, theirs)) || (k == 1 && ours)) continue;
      char name[256];
      snprintf(name, sizeof name, "%s.%s", path, key);
      if ((!ours || json_is_object(ours)) && (!theirs || json_is_object(theirs))) {
        if (first_difference(ours, theirs, name, out, bytes, x, y)) return true;
        continue;
      }
      snprintf(out, bytes, "%s", name);
      *x = ours, *y = theirs;
      return true;
    }
  return false;
}

/* The recipe's model must be the checkpoint's except for L_mem: a resumed run may begin, change or drop this loss. */
static wn_status same_model(wn_context *ctx, const char *dir, const wn_model_config *want, wn_model *model) {
  wn_model_config have = *wn_model_config_get(model);
  char *a = NULL, *b = NULL;
  if (want->attention.selective.mem.enabled && !want->attention.selective.enabled &&
      !have.attention.selective.mem.enabled)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: model.attention.selective.mem is asked for; the checkpoint's model has no selective attention",
                   dir);
  have.attention.selective.mem = want->attention.selective.mem;
  wn_status status = wn_model_config_json(ctx, &have, &a);
  if (status == WN_OK) status = wn_model_config_json(ctx, want, &b);
  if (status == WN_OK && strcmp(a, b)) {
    json_t *ours = json_loads(a, 0, NULL), *theirs = json_loads(b, 0, NULL), *x = NULL, *y = NULL;
    char key[256] = "model";
    first_difference(ours, theirs, "model", key, sizeof key, &x, &y);
    const size_t how = JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    char *is = json_dumps(x, how), *wanted = json_dumps(y, how);
    status = wn_fail(ctx, WN_ERR_CONFIG, "%s: the checkpoint's %s is %s, the recipe's %s", dir, key,
                     is ? is : "not set", wanted ? wanted : "not set");
    free(is);
    free(wanted);
    json_decref(ours);
    json_decref(theirs);
  }
  wn_text_free(a);
  wn_text_free(b);
  return status == WN_OK ? wn_model_set_attention_config(ctx, model, &have.attention, "selective.mem") : status;
}

/* A recipe that names no tokenizer gets the one that wn_data_prepare wrote into its token file's folder, so that the
 * model can be given text. */
static void take_tokenizer_beside(wn_data_config *data) {
  char dir[sizeof data->tokenizer] = ".";
  if (data->tokenizer[0] || (data->kind != WN_DATA_TOKENS && data->kind != WN_DATA_SPAN_CORRUPTION)) return;
  const char *slash = strrchr(data->train, '/');
  const size_t n = slash ? (size_t)(slash - data->train) : 0;
  if (n >= sizeof dir) return;
  if (n > 0) snprintf(dir, sizeof dir, "%.*s", (int)n, data->train);
  if (slash && n == 0) snprintf(dir, sizeof dir, "/");
  if (wn_folder_has(dir, "data.json") && wn_tokenizer_file_of(dir)) memcpy(data->tokenizer, dir, sizeof dir);
}

/* Only the first of several processes writes into the folder; the others wait until it has opened it. */
static wn_status open_folder(struct run *r) {
  if (r->writes) {
    WN_TRY(wn_make_dirs(r->ctx, r->dir));
    WN_TRY(wn_run_log_open(r->ctx, r->dir, &r->log));
    WN_TRY(wn_folder_recover(r->ctx, r->dir));
  }
  return wn_dist_barrier(r->ctx);
}

/* Where the tokenizer is loaded from if the recipe names one: from the model's folder, since the one that the recipe
 * names may no longer exist. "": the recipe names none, so the model was trained without one. */
static const char *tokenizer_from(const char *model, const wn_data_config *data) {
  const bool own = *model && (!wn_path_is_dir(model) || wn_tokenizer_file_of(model));
  return data->tokenizer[0] && own ? model : data->tokenizer;
}

/* Begins a run in a folder without a checkpoint. Nothing is written before the recipe has passed its checks. */
static wn_status begin_model(struct run *r) {
  wn_context *ctx = r->ctx;
  const wn_recipe *c = &r->recipe;
  if (!c->train.init[0]) take_tokenizer_beside(&r->recipe.data);
  WN_TRY(wn_run_prepare(ctx, &r->recipe, tokenizer_from(c->train.init, &c->data), &r->tok));
  WN_TRY(open_folder(r));
  WN_TRY(wn_model_create(ctx, &r->recipe.model, r->recipe.train.seed, &r->model));
  if (!c->train.init[0]) return WN_OK;
  WN_TRY(wn_model_load(ctx, c->train.init, WN_OPTIONS(wn_model_load_options, .as_float = true), &r->given));
  return wn_adapt_start(ctx, c->train.init, r->given, &c->train, r->model);
}

static wn_status continue_model(struct run *r, const wn_recipe *recipe) {
  wn_context *ctx = r->ctx;
  WN_TRY(open_folder(r));
  if (!recipe) {
    char path[PATH_BYTES];
    WN_TRY(wn_path_join(ctx, path, sizeof path, r->dir, "recipe.json"));
    WN_TRY(wn_recipe_load(ctx, path, NULL, 0, &r->recipe));
  }
  if (wn_tokenizer_file_of(r->dir)) take_tokenizer_beside(&r->recipe.data);
  WN_TRY(wn_run_prepare(ctx, &r->recipe, tokenizer_from(r->dir, &r->recipe.data), &r->tok));
  r->changed = recipe != NULL;
  WN_TRY(wn_model_load(ctx, r->dir, WN_OPTIONS(wn_model_load_options, .as_float = true), &r->model));
  return same_model(ctx, r->dir, &r->recipe.model, r->model);
}

/* Does the folder hold a saved or converted model, complete or not? A new run must not overwrite it, though it is no
 * checkpoint. */
static bool holds_model(const char *dir) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "config.json"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (wn_folder_has(dir, names[i])) return true;
  return false;
}

/* All refusals come before anything in the folder is touched. */
static wn_status open_model(struct run *r, const wn_recipe *recipe, bool resume) {
  char state[PATH_BYTES];
  WN_TRY(wn_folder_file(r->ctx, state, sizeof state, r->dir, "state.json"));
  const bool checkpoint = wn_path_exists(state);
  if (resume && !checkpoint)
    return wn_fail(r->ctx, WN_ERR_IO, "%s: no checkpoint to resume from%s", r->dir,
                   holds_model(r->dir) ? "; the model there has no state.json, a new run can start from it (init)"
                                       : "");
  if (!resume && checkpoint)
    return wn_fail(r->ctx, WN_ERR_ARGUMENT, "%s already holds a run: resume it or choose another folder", r->dir);
  if (!resume && holds_model(r->dir))
    return wn_fail(r->ctx, WN_ERR_ARGUMENT, "%s already holds a model: choose another folder for the run", r->dir);
  if (recipe) r->recipe = *recipe;
  return checkpoint ? continue_model(r, recipe) : begin_model(r);
}

bool wn_train_can_resume(const char *dir) {
  WN_CHECK_OR(false, WN_POINTER(dir));
  return dir && wn_checkpoint_exists(dir);
}

static wn_status open_sources(struct run *r) {
  wn_context *ctx = r->ctx;
  const wn_recipe *c = &r->recipe;
  int64_t T = c->train.context;
  int32_t vocab = (int32_t)c->model.vocab_size;
  WN_TRY(wn_data_source_create(ctx, &c->data, "train", T, vocab, &r->train));
  if (c->train.eval_every > 0 &&
      ((c->data.kind != WN_DATA_TOKENS && c->data.kind != WN_DATA_SPAN_CORRUPTION) || c->data.val[0]))
    WN_TRY(wn_data_source_create(ctx, &c->data, "val", T, vocab, &r->val));
  const int64_t B = c->train.batch, A = c->train.accumulate, S = wn_data_source_input_length(r->train);
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(r->tokens, "tokens", true, WN_DIMS(A, B, T)),
      WN_ARRAY_FOR(r->targets, "targets", true, WN_DIMS(A, B, T)),
      WN_ARRAY_FOR(r->doc_start, "document starts", true, WN_DIMS(A, B, T)),
      WN_ARRAY_FOR(r->inputs, "inputs", true, WN_DIMS(A, B, S)),
      WN_ARRAY_FOR(r->input_count, "input counts", S > 0, WN_DIMS(A, B)),
  };
  return WN_ARRAYS_CREATE(ctx, &r->arrays, "a batch (train.batch * train.accumulate * train.context)", rows);
}

/* Plans the evaluations. Batches are as large as micro-steps, which may be smaller than the recipe's batch; the rows
 * are the same. */
static wn_status plan_evaluations(struct run *r) {
  const wn_train_config *c = &r->recipe.train;
  const int64_t B = r->trainer->batch;
  if (!r->val) return WN_OK;
  const uint64_t all = wn_data_source_batches(r->val, B);
  r->val_batches = all;
  r->val_rows = UINT64_MAX;
  if (c->eval_batches > 0 || all == 0) {
    r->val_rows = (uint64_t)(c->eval_batches > 0 ? c->eval_batches : EVAL_BATCHES_ENDLESS) * (uint64_t)c->batch;
    r->val_batches = (r->val_rows - 1) / (uint64_t)B + 1;
    if (all > 0 && all < r->val_batches) r->val_batches = all;
  }
  return WN_ALLOC(r->ctx, "rows of an evaluation", r->val_batches * (size_t)B, &r->val_sums);
}

static wn_status open_trainer(struct run *r) {
  wn_context *ctx = r->ctx;
  WN_TRY(wn_trainer_create(ctx, r->model, &r->recipe.train, &r->trainer));
  WN_TRY(plan_evaluations(r));
  if (r->recipe.train.precision == WN_BF16)
    wn_log(ctx, WN_LOG_INFO, "train.precision bfloat16: products of rounded numbers by %s", wn_backend_bf16(ctx));
  if (r->inputs) wn_trainer_set_inputs(r->trainer, r->inputs, r->input_count, wn_data_source_input_length(r->train));
  if (!wn_checkpoint_exists(r->dir)) return r->writes ? wn_run_log_trim(ctx, &r->log, 0) : WN_OK;
  struct wn_run_state state;
  WN_TRY(wn_checkpoint_load(ctx, r->dir, r->trainer, &state));
  if (r->writes) WN_TRY(wn_run_log_trim(ctx, &r->log, state.step));
  r->saved_step = state.step;
  if (r->recipe.train.shards == 0 && state.processes > 1)
    wn_log(ctx, WN_LOG_WARNING,
           "%s was trained by %d processes: with another train.shards results differ in the last bits", r->dir,
           state.processes);
  if (state.threads != ctx->threads || strcmp(state.isa, wn_isa_name(ctx->isa)) || strcmp(state.backend, ctx->backend))
    wn_log(
        ctx, WN_LOG_WARNING,
        "%s was trained with %d threads on %s/%s and continues with %d on %s/%s: results may differ in the last bits",
        r->dir, state.threads, state.backend, state.isa, ctx->threads, ctx->backend, wn_isa_name(ctx->isa));
  return WN_OK;
}

/* Parameters that are NaN or infinite must not replace a good checkpoint. */
static wn_status check_finite(struct run *r, const float *p) {
  for (int i = 0; i < r->model->table.count; i++) {
    const struct wn_param *row = &r->model->table.rows[i];
    for (size_t k = 0; k < row->count; k++)
      if (!isfinite(p[row->offset + k]))
        return wn_fail(r->ctx, WN_ERR_DIVERGED, "parameter %s[%zu] is %g after step %lld", row->name, k,
                       wn_told(p[row->offset + k]), (long long)r->trainer->step);
  }
  return WN_OK;
}

static wn_status check_parameters(struct run *r) {
  void *params;
  WN_TRY(wn_model_params_open(r->model, &params));
  const wn_status status = check_finite(r, params), closed = wn_model_params_close(r->model, params, false);
  return status == WN_OK ? closed : status;
}

static wn_status save(struct run *r) {
  if (r->saved_step == r->trainer->step && !r->changed) return WN_OK;
  WN_TRY(check_parameters(r));
  if (r->writes) WN_TRY(wn_run_log_sync(r->ctx, &r->log));
  WN_TRY(wn_checkpoint_save(r->ctx, r->dir, &r->recipe, r->tok, r->trainer));
  r->saved_step = r->trainer->step;
  r->changed = false;
  return WN_OK;
}

static wn_status val_batch(void *user, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start,
                           bool *packed) {
  struct run *r = user;
  const int64_t B = r->trainer->batch, T = r->recipe.train.context;
  *packed = wn_data_source_packs(r->val);
  WN_TRY(wn_data_source_batch(r->ctx, r->val, r->recipe.train.seed, index, B, tokens, targets, doc_start));
  for (int64_t b = 0; b < B; b++)
    if (index * (uint64_t)B + (uint64_t)b >= r->val_rows) /* rows beyond val_rows in the last batch do not count */
      for (int64_t t = 0; t < T; t++) targets[b * T + t] = -1;
  return WN_OK;
}

static wn_status val_inputs(void *user, uint64_t index, int32_t *inputs, int32_t *input_count) {
  struct run *r = user;
  return wn_data_source_inputs(r->ctx, r->val, r->recipe.train.seed, index, r->trainer->batch, inputs, input_count);
}

/* Uses the training workspace and batch, so it needs no memory beyond that of a step. */
static wn_status run_evaluate(struct run *r, wn_train_progress *progress) {
  const wn_train_config *c = &r->recipe.train;
  const int64_t B = r->trainer->batch, rows = (int64_t)r->val_batches * B;
  memset(r->val_sums, 0, (size_t)rows * sizeof *r->val_sums);
  struct wn_eval_loop loop = {.model = r->model,
                              .ws = r->trainer->ws,
                              .B = B,
                              .T = c->context,
                              .tokens = r->tokens,
                              .targets = r->targets,
                              .doc_start = r->doc_start,
                              .continues = r->model->config.recurrence > 0,
                              .batches = r->val_batches,
                              .recurrence_set = r->trainer->accumulate,
                              .S = wn_data_source_input_length(r->val),
                              .inputs = r->inputs,
                              .input_count = r->input_count,
                              .input_batch = val_inputs,
                              .batch = val_batch,
                              .batch_user = r,
                              .budgets = wn_trainer_budgets(r->trainer),
                              .rows = r->val_sums};
  struct wn_eval_sums sums;
  WN_TRY(wn_eval_loop_run(r->ctx, &loop, &sums));
  if (sums.counted == 0) return WN_OK;
  progress->evaluated = true;
  progress->val_loss = sums.loss / (double)sums.counted;
  progress->val_accuracy = (double)sums.hits / (double)sums.counted;
  wn_rows_loss(r->val_sums, rows, &progress->val_loss_rows);
  progress->val_loss_rows.value = progress->val_loss;
  return WN_OK;
}

/* Reads the rows of a step. */
static wn_status read_rows(struct run *r, int64_t step) {
  const wn_train_config *c = &r->recipe.train;
  const int64_t rows = c->batch * c->accumulate;
  WN_TRY(wn_data_source_batch(r->ctx, r->train, c->seed, (uint64_t)step, rows, r->tokens, r->targets, r->doc_start));
  if (!r->inputs) return WN_OK;
  return wn_data_source_inputs(r->ctx, r->train, c->seed, (uint64_t)step, rows, r->inputs, r->input_count);
}

/* Compares both models on the first row that the run will see. */
static wn_status check_start(struct run *r) {
  const wn_train_config *c = &r->recipe.train;
  wn_status status = WN_OK;
  if (r->given && c->adapt) {
    const wn_model_inputs inputs = {r->inputs, r->input_count, wn_data_source_input_length(r->train)};
    status = read_rows(r, 0);
    if (status == WN_OK)
      status = wn_adapt_check(r->ctx, c->init, r->given, r->model, r->inputs ? &inputs : NULL, r->tokens, c->context);
  }
  wn_model_destroy(r->given);
  r->given = NULL;
  return status;
}

static bool due(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

static bool evaluates(const struct run *r, int64_t step) {
  const wn_train_config *c = &r->recipe.train;
  return r->val && (due(c->eval_every, step) || step == c->steps);
}

/* An interrupt during the evaluation is not lost: the run stops before its next step, or after its last one. */
static wn_status evaluate(struct run *r, wn_train_progress *p) {
  const wn_status status = run_evaluate(r, p);
  r->stopped = status == WN_ERR_CANCELLED;
  return r->stopped ? WN_OK : status;
}

/* Makes the evaluation that the last step lacks. A loss that is NaN was not logged, so it is measured again. */
static wn_status make_up_evaluation(struct run *r, wn_train_fn fn, void *user) {
  const wn_trainer *t = r->trainer;
  wn_train_progress p = {.step = t->step, .steps = r->recipe.train.steps, .tokens = t->tokens};
  if (t->step == 0 || !evaluates(r, t->step)) return WN_OK;
  double lacks = r->writes && wn_run_log_unevaluated(&r->log, t->step, &p); /* only the first process has the log */
  WN_TRY(wn_dist_merge(r->ctx, &lacks, 1));
  if (lacks == 0) return WN_OK;
  WN_TRY(evaluate(r, &p));
  p.seconds = wn_seconds_now() - r->start;
  if (!p.evaluated) return WN_OK;
  if (r->writes) WN_TRY(wn_run_log_complete(r->ctx, &r->log, &p));
  if (r->writes) WN_TRY(wn_run_log_sync(r->ctx, &r->log));
  if (fn) fn(user, &p);
  return WN_OK;
}

static wn_status one_step(struct run *r, wn_train_fn fn, void *user) {
  const wn_train_config *c = &r->recipe.train;
  wn_train_progress p = {0};
  WN_TRY(read_rows(r, r->trainer->step));
  if (!wn_data_source_continues(r->train, (uint64_t)r->trainer->step, c->batch * c->accumulate))
    wn_trainer_forget(r->trainer);
  WN_TRY(wn_trainer_step(r->ctx, r->trainer, r->tokens, r->targets,
                         wn_data_source_packs(r->train) ? r->doc_start : NULL, &p));
  bool last = p.step == c->steps;
  if (evaluates(r, p.step)) WN_TRY(evaluate(r, &p));
  p.seconds = wn_seconds_now() - r->start;
  if (r->writes && (due(c->log_every, p.step) || p.evaluated || r->stopped || last))
    WN_TRY(wn_run_log_append(r->ctx, &r->log, &p));
  if (due(c->save_every, p.step) || last) {
    WN_TRY(save(r));
    p.saved = true;
  }
  if (fn) fn(user, &p);
  return WN_OK;
}

static wn_status run_loop(struct run *r, wn_train_fn fn, void *user) {
  wn_context *ctx = r->ctx;
  const wn_train_config *c = &r->recipe.train;
  WN_TRY(make_up_evaluation(r, fn, user));
  while (r->trainer->step < c->steps || r->stopped) {
    /* The first process decides for all. */
    double cancelled = r->stopped || (r->writes && wn_context_cancelled(ctx));
    WN_TRY(wn_dist_merge(ctx, &cancelled, 1));
    if (cancelled > 0) {
      WN_TRY(save(r));
      return wn_fail(ctx, WN_ERR_CANCELLED,
                     "%s: stopped at step %lld of %lld; the state is saved, resume continues from it", r->dir,
                     (long long)r->trainer->step, (long long)c->steps);
    }
    wn_status status = one_step(r, fn, user);
    if (status == WN_ERR_DIVERGED)
      return wn_fail_prefix(ctx, status, "%s: training stopped, the checkpoint of step %lld is kept", r->dir,
                            (long long)r->saved_step);
    if (status != WN_OK) return status;
  }
  return WN_OK;
}

/* Warns if the scheduled strength would fall on resuming: "half of the run" is later in a run that was made longer. */
static void tell_strength(const struct run *r) {
  const wn_train_config *c = &r->recipe.train;
  const double next = wn_adapt_strength(c, r->saved_step + 1);
  for (int i = 0; i < r->model->table.count && r->saved_step < c->steps; i++) {
    if (!r->model->table.rows[i].scheduled) continue;
    const double now = wn_model_value(r->model, i, 0);
    if (next < now - 1e-6) /* more than a float's rounding */
      wn_log(r->ctx, WN_LOG_WARNING,
             "the scheduled strength falls from %.3g to %.3g and rises again: train.strength_steps is %lld%s", now,
             next, (long long)c->strength_steps, c->strength_steps ? "" : ", half of train.steps");
    return;
  }
}

wn_status wn_train_run(wn_context *ctx, const wn_recipe *recipe, const char *out_dir, bool resume, wn_train_fn progress,
                       void *user) {
  WN_CHECK_WORK(WN_POINTER(out_dir));
  if (!recipe && !resume) return wn_fail(ctx, WN_ERR_ARGUMENT, "a new run in %s needs a recipe", out_dir);
  struct run r = {.ctx = ctx,
                  .dir = out_dir,
                  .writes = wn_dist_rank(ctx) == 0,
                  .log.fd = -1,
                  .saved_step = -1,
                  .start = wn_seconds_now()};
  wn_status status;
  WN_TRY_GOTO(wn_dist_alike(ctx), done);
  WN_TRY_GOTO(open_model(&r, recipe, resume), done);
  if (r.recipe.train.shards == 0 && wn_dist_size(ctx) > 1)
    r.recipe.train.shards = wn_dist_size(ctx); /* saved with the recipe */
  WN_TRY_GOTO(open_sources(&r), done);
  WN_TRY_GOTO(check_start(&r), done);
  WN_TRY_GOTO(open_trainer(&r), done);
  /* The first checkpoint is saved before the first step: a folder that cannot be written or a full disk is noticed now
   * and not after hours, and from here on there is always one to go back to. */
  WN_TRY_GOTO(wn_dist_barrier(ctx), done); /* all processes have seen the folder as it was */
  if (r.saved_step < 0) WN_TRY_GOTO(save(&r), done);
  WN_TRY_GOTO(wn_dist_barrier(ctx), done); /* the checkpoint exists */
  wn_dist_kept(ctx, "the last checkpoint is whole");
  const wn_train_config *t = &r.recipe.train;
  const int64_t waits =
      t->schedule_from < t->steps ? t->schedule_from : t->steps; /* steps done before the schedule begins */
  if (r.saved_step < waits)
    wn_log(ctx, WN_LOG_WARNING, "%s up to step %lld: train.schedule_from is %lld, and the run is at step %lld",
           t->warmup > 0 ? "the learning rate is 0" : "the learning rate is not lowered", (long long)waits,
           (long long)t->schedule_from, (long long)r.saved_step);
  if (r.saved_step < t->steps && t->schedule_from < t->steps && t->schedule_from + t->warmup >= t->steps)
    wn_log(ctx, WN_LOG_WARNING, "the learning rate is still rising at the end: train.warmup is %lld of %lld steps",
           (long long)t->warmup, (long long)(t->steps - t->schedule_from));
  tell_strength(&r);
  if (recipe)
    WN_TRY_GOTO(wn_recipe_warn_idle(ctx, &r.recipe), done); /* only for a new run or recipe: one warning is enough */
  const char *gates = wn_model_gates_with(&r.recipe.model, WN_GATES_LOSS);
  const bool mem = r.recipe.model.attention.selective.mem.enabled;
  if (r.saved_step < t->steps && (mem || gates) && t->mem.from_step >= t->steps)
    wn_log(ctx, WN_LOG_WARNING, "%s: train.mem.from_step is %lld of %lld steps",
           !gates ? "L_mem never acts"
           : mem  ? "L_mem and the losses of gates never act"
                  : "the losses of gates never act",
           (long long)t->mem.from_step, (long long)t->steps);
  if (r.saved_step < t->steps && wn_trainer_never_evicts(r.trainer))
    wn_log(ctx, WN_LOG_WARNING,
           "nothing is evicted: at the last step train.prune.budgets, %s, are no less than the %lld tokens of a row",
           t->prune.budgets, (long long)r.trainer->context);
  r.start = wn_seconds_now();
  status = run_loop(&r, progress, user);
  if (status == WN_OK) status = wn_dist_barrier(ctx); /* the first process has written the last checkpoint */
done:
  wn_dist_kept(ctx, NULL);
  run_clear(&r);
  return status;
}
