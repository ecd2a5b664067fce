/* Fine-tuning during a search, by training runs (src/train). A round is wn_train_run up to a step number, so it has the
 * properties of a run: if killed it continues to the bit, and the budgets in force are saved in the checkpoint's
 * folder. For gradients evictions are constants (train.prune). Each round runs the recipe's whole schedule, a tenth of
 * it warm-up, so that the losses measured at its end have settled. */
#include "prune/finetune.h"

#include <stdio.h>

#include "base/file.h"
#include "base/fingerprint.h"
#include "dist/dist.h"
#include "io/folder.h"
#include "train/checkpoint.h"
#include "train/prepare.h"

/* Checks that the recipe's model is the checkpoint's, except for training options. */
static wn_status finetune_adopt_model(wn_context *ctx, const char *checkpoint, const wn_model_config *model,
                                      wn_recipe *recipe) {
  wn_model_config its = *model;
  const wn_model_config *want = &recipe->model;
  char *a = NULL, *b = NULL;
  its.dropout = want->dropout;
  its.dropout_hidden = want->dropout_hidden;
  its.init_std = want->init_std;
  its.init = want->init;
  its.attention.dropout = want->attention.dropout;
  its.attention.selective.mem = want->attention.selective.mem;
  if (recipe->model.vocab_size == 0) recipe->model.vocab_size = its.vocab_size;
  if (recipe->model.context == 0) recipe->model.context = its.context;
  WN_TRY(wn_model_config_resolve(ctx, &recipe->model));
  WN_TRY(wn_model_config_resolve(ctx, &its));
  wn_status status = wn_model_config_json(ctx, &its, &a);
  if (status == WN_OK) status = wn_model_config_json(ctx, &recipe->model, &b);
  if (status == WN_OK && strcmp(a, b))
    status = wn_fail(ctx, WN_ERR_CONFIG,
                     "fine-tuning: the recipe's model is not %s's (compare its config.json; only dropout and L_mem may "
                     "differ)",
                     checkpoint);
  wn_text_free(a);
  wn_text_free(b);
  return status;
}

static wn_status finetune_put_path(wn_context *ctx, const char *path, char *out, size_t bytes) {
  if (snprintf(out, bytes, "%s", path) >= (int)bytes)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "fine-tuning: the path %s is too long", path);
  return WN_OK;
}

/* All rounds must have the same recipe: another one would be another search. */
static wn_status finetune_fingerprint(wn_context *ctx, const wn_recipe *recipe, char out[24]) {
  wn_recipe own = *recipe;
  wn_train_config *c = &own.train;
  char *text;
  c->steps = c->warmup = c->schedule_from = c->log_every = c->save_every = c->eval_every = c->eval_batches = 0;
  c->init[0] = c->prune.budgets[0] = own.data.val[0] = own.data.tokenizer[0] = 0;
  WN_TRY(wn_recipe_json(ctx, &own, &text));
  wn_fingerprint(text, strlen(text), out);
  wn_text_free(text);
  return WN_OK;
}

/* Sets the rate, and Muon's own in the same proportion. */
static wn_status finetune_set_rates(wn_context *ctx, double lr, wn_train_config *c) {
  const double end = c->schedule == WN_SCHED_CONSTANT ? 1 : c->min_lr_ratio;
  if (c->optimizer == WN_OPT_MUON) c->muon.lr *= lr > 0 && c->lr > 0 ? lr / c->lr : end;
  c->lr = lr > 0 ? lr : c->lr * end;
  if (c->lr > 0) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "fine-tuning: the recipe's schedule ends at a rate of 0: give one");
}

wn_status wn_finetune_init(wn_context *ctx, const wn_prune_finetune *options, struct wn_model *model, const char *dir,
                           struct wn_finetune *out) {
  const wn_prune_finetune *o = options;
  if (!o->recipe || !o->checkpoint)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "fine-tuning needs a recipe and the checkpoint's folder");
  if (o->steps < 0 || o->every < 0 || o->after < 0 || (o->every > 0 && o->steps == 0))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "fine-tuning: %lld steps after each %lld of the search, %lld after it: none may be negative, and a "
                   "round has at least 1",
                   (long long)o->steps, (long long)o->every, (long long)o->after);
  if (!(o->lr >= 0) || o->lr > 1000)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "fine-tuning: a rate of %g, expected 0 to 1000", o->lr);
  WN_TRY(wn_model_need_float(ctx, model, "fine-tuning"));
  out->model = model;
  out->recipe = *o->recipe;
  WN_TRY(finetune_adopt_model(ctx, o->checkpoint, &model->config, &out->recipe));
  WN_TRY(finetune_fingerprint(ctx, &out->recipe, out->fingerprint));
  WN_TRY(wn_path_join(ctx, out->dir, sizeof out->dir, dir, "tuned"));
  WN_TRY(wn_path_join(ctx, out->budgets, sizeof out->budgets, dir, "budgets.json"));
  wn_train_config *c = &out->recipe.train;
  WN_TRY(finetune_set_rates(ctx, o->lr, c));
  c->eval_every = 0;     /* the search does the evaluations */
  c->strength_steps = 1; /* a scheduled strength is at its final value already */
  c->adapt = false;      /* and gates have their own */
  c->prune.from_step = c->prune.to_step = 0;
  c->mem.from_step = c->mem.to_step = 0;
  WN_TRY(finetune_put_path(ctx, o->checkpoint, c->init, sizeof c->init));
  return finetune_put_path(ctx, out->budgets, c->prune.budgets, sizeof c->prune.budgets);
}

bool wn_finetune_exists(const struct wn_finetune *f) {
  return wn_checkpoint_exists(f->dir) || wn_folder_has(f->dir, "model.safetensors");
}

wn_status wn_finetune_run(wn_context *ctx, struct wn_finetune *f, const wn_budgets *budgets, int64_t from,
                          int64_t until, wn_train_fn progress, void *user) {
  if (wn_dist_rank(ctx) == 0) WN_TRY(wn_budgets_save(ctx, budgets, f->budgets));
  WN_TRY(wn_dist_barrier(ctx)); /* all processes read the parameters */
  wn_train_config *c = &f->recipe.train;
  c->schedule_from = from;
  c->steps = until;
  c->warmup = (until - from) / 10;
  return wn_train_run(ctx, &f->recipe, f->dir, wn_checkpoint_exists(f->dir), progress, user);
}

wn_status wn_finetune_load(wn_context *ctx, const struct wn_finetune *f, int64_t step) {
  struct wn_run_state state;
  if (wn_dist_rank(ctx) == 0) WN_TRY(wn_folder_recover(ctx, f->dir));
  WN_TRY(wn_dist_barrier(ctx)); /* the first process has written the last checkpoint */
  WN_TRY(wn_checkpoint_state(ctx, f->dir, &state));
  if (state.step != step)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: the run is at step %lld, the search's state at %lld", f->dir,
                   (long long)state.step, (long long)step);
  return wn_run_take_parameters(ctx, f->dir, f->model);
}
