/* Fine-tuning during a search: one training run in the search's folder, which each round continues. */
#ifndef WN_PRUNE_FINETUNE_H
#define WN_PRUNE_FINETUNE_H

#include "model/model.h"
#include "winnow/prune.h"

struct wn_finetune {
  struct wn_model *model; /* borrowed: receives the parameters */
  wn_recipe recipe;       /* the run's, except steps */
  char fingerprint[24];   /* of the recipe, without what rounds set themselves */
  char dir[4096], budgets[4096];
};

/* Checks that the options suit the model. dir: the search's folder. */
wn_status wn_finetune_init(wn_context *ctx, const wn_prune_finetune *options, struct wn_model *model, const char *dir,
                           struct wn_finetune *out);
/* Does a run exist? */
bool wn_finetune_exists(const struct wn_finetune *f);
/* Runs a round: trains from step `from` to `until` under the budgets. Begins the run, or continues it from where it is
 * between the two steps. */
wn_status wn_finetune_run(wn_context *ctx, struct wn_finetune *f, const wn_budgets *budgets, int64_t from,
                          int64_t until, wn_train_fn progress, void *user);
/* Loads the run's parameters into the model. WN_ERR_CONFIG if the run is not at `step`. */
wn_status wn_finetune_load(wn_context *ctx, const struct wn_finetune *f, int64_t step);

#endif
