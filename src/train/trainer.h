/* The trainer's inside, shared with the run and the checkpoints. */
#ifndef WN_TRAIN_TRAINER_H
#define WN_TRAIN_TRAINER_H

#include "base/arrays.h"
#include "model/model.h"
#include "train/adapt_rows.h"
#include "winnow/train.h"

struct wn_trainer {
  struct wn_model *model; /* borrowed */
  wn_train_config config;
  int64_t batch, accumulate, context; /* rows per micro-step, micro-steps per step, tokens per row */
  wn_workspace *ws;
  struct wn_optimizer opt;
  struct wn_arrays arrays, own; /* the backend's: grads; the host's: begun and shown */
  wn_budgets target, budgets;   /* with train.prune: those at the end, and those of the step at hand */
  struct wn_adapt_rows learns;
  void *grads; /* [learns.gradients] of the model's dtype: the last step's gradient, before clipping */
  void *shown; /* [learns.gradients] what wn_trainer_gradient_at showed, where grads are not the host's */
  const int32_t *inputs, *input_count; /* of the encoder, [accumulate*batch, input_length] and [accumulate*batch] */
  int64_t input_length;
  uint8_t *begun;  /* [table.count] during a step: as in wn_step */
  int64_t step;    /* optimizer steps done */
  uint64_t tokens; /* trained on so far */
};

/* The budgets in force after t->step steps, in evaluations and in what is saved; NULL: none. */
const wn_budgets *wn_trainer_budgets(wn_trainer *t);

#endif
