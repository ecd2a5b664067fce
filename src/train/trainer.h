/* The trainer's inside, shared with the run and the checkpoints. */
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
  /* Rows per micro-step, micro-steps per step (of all processes), tokens per row. With train.shards micro-steps may be
   * shorter than the recipe's. */
  int64_t batch, accumulate, context;
  struct wn_shards shards;
  wn_workspace *ws;
  struct wn_optimizer opt;
  struct wn_arrays own;       /* begun, micro and shown */
  wn_budgets target, budgets; /* with train.prune: those at the end, and those of the step at hand */
  bool had_budgets;           /* the checkpoint that it goes on from was of a training under some */
  struct wn_adapt_rows learns;
  void *grads; /* [learns.gradients] of the model's dtype: the last step's gradient, before clipping; of several
                  processes, of the pieces that this one updates */
  void *shown; /* [learns.gradients] what wn_trainer_gradient_at showed, where grads are not the host's */
  const int32_t *inputs, *input_count; /* of the encoder, [accumulate*batch, input_length] and [accumulate*batch] */
  int64_t input_length;
  uint8_t *begun;  /* [table.count] during a step: as in wn_step */
  double *micro;   /* [accumulate, WN_MICRO] what each micro-step has measured */
  int64_t step;    /* optimizer steps done */
  uint64_t tokens; /* trained on so far */
};

/* The budgets in force after t->step steps, in evaluations and in what is saved; NULL: none. */
const wn_budgets *wn_trainer_budgets(wn_trainer *t);
/* Whether train.prune.budgets are set, and the step that they are smallest at, the last one, would evict nothing. */
bool wn_trainer_never_evicts(wn_trainer *t);

#endif
