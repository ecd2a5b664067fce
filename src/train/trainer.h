/* The internals of a trainer, shared with runs and checkpoints. */
#ifndef WN_TRAIN_TRAINER_H
#define WN_TRAIN_TRAINER_H

#include "base/arrays.h"
#include "model/model.h"
#include "train/adapt_rows.h"
#include "train/shards.h"
#include "winnow/train.h"

enum { WN_MICRO_LOSS, WN_MICRO_MEM, WN_MICRO_SPAN_LOSS, WN_MICRO_BALANCE, WN_MICRO_SPAN, WN_MICRO };

struct wn_trainer {
  struct wn_model *model; /* borrowed */
  wn_train_config config;
  /* Sequences per micro-step, micro-steps per step (of all processes), tokens per sequence. With train.shards
   * micro-steps may be smaller than the recipe's batch. */
  int64_t batch, accumulate, context;
  struct wn_shards shards;
  wn_workspace *ws;
  struct wn_optimizer opt;
  struct wn_arrays own;       /* of begun, micro and shown */
  wn_budgets target, budgets; /* with train.prune: the final budgets, and those of the current step */
  bool had_budgets;           /* the checkpoint that it continues was trained under budgets */
  struct wn_adapt_rows learns;
  void *grads; /* [learns.gradients] of the model's dtype: the last step's gradient, before clipping; with several
                  processes only of the pieces that this one updates */
  void *shown; /* [learns.gradients] host copy for wn_trainer_gradient_at, if grads are not on the host */
  const int32_t *inputs, *input_count; /* for an encoder: [accumulate*batch, input_length] and [accumulate*batch] */
  int64_t input_length;
  uint8_t *begun;  /* [table.count] during a step: as in wn_step */
  double *micro;   /* [accumulate, WN_MICRO] results of each micro-step */
  int64_t step;    /* optimizer steps done */
  uint64_t tokens; /* trained on so far */
};

/* The budgets in force after t->step steps, for evaluations and checkpoints; NULL: none. */
const wn_budgets *wn_trainer_budgets(wn_trainer *t);
/* Are train.prune.budgets set, but so large that even the last step, where they are smallest, evicts nothing? */
bool wn_trainer_never_evicts(wn_trainer *t);

#endif
