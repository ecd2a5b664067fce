/* Optimizers over a model's flat parameter array: clipping, weight decay, state in one arena. */
#ifndef WN_TRAIN_OPTIMIZER_H
#define WN_TRAIN_OPTIMIZER_H

#include "base/alloc.h"
#include "model/model.h"
#include "winnow/train.h"

struct wn_optimizer {
  struct wn_model *model; /* borrowed */
  wn_optimizer_kind kind;
  struct wn_exec exec;
  struct wn_arena arena;
  void *m;       /* [table.total] of the model's dtype, first moment; NULL for Adagrad */
  void *v;       /* [table.total] second moment (AdamW) or sum of squares (Adagrad) */
  double *norms; /* [table.count] gradient norm of each tensor, of the last wn_optimizer_measure */
};

/* Initialises *opt (caller's storage); cleared with wn_optimizer_clear, also after a failure. */
wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind, struct wn_optimizer *opt);
void wn_optimizer_clear(struct wn_optimizer *opt);

/* Fills opt->norms from grads [table.total] and gives the norm of the whole gradient. */
wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm);
/* Updates the parameters with the gradient that was just measured. step counts from 1. grads stay as they are:
 * clipping is folded into the update. */
wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             int64_t step);

#endif
