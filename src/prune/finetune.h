/* Fine-tuning in the course of a search: a training run in the search's folder that each round continues. */
#ifndef WN_PRUNE_FINETUNE_H
#define WN_PRUNE_FINETUNE_H

#include "model/model.h"
#include "winnow/prune.h"

struct wn_finetune {
  struct wn_model *model; /* borrowed: receives the parameters */
  wn_recipe recipe;       /* the run's, but for steps */
  char fingerprint[24];   /* of what it was given and the rounds do not set themselves */
  char dir[4096], budgets[4096];
};

/* Checks that the options suit the model. dir: the search's folder. */
wn_status wn_finetune_init(wn_context *ctx, const wn_prune_finetune *options, struct wn_model *model, const char *dir,
                           struct wn_finetune *out);
/* A run exists. */
bool wn_finetune_exists(const struct wn_finetune *f);
/* A round: continues the run (or begins it) from step `from` to `until` under the budgets, wherever between them it is;
 * at once where it exists already. */
wn_status wn_finetune_run(wn_context *ctx, struct wn_finetune *f, const wn_budgets *budgets, int64_t from,
                          int64_t until, wn_train_fn progress, void *user);
/* The run's parameters into the model. WN_ERR_CONFIG where it is not at `step`. */
wn_status wn_finetune_load(wn_context *ctx, const struct wn_finetune *f, int64_t step);

#endif
