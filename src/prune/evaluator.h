/* The loss of a set of rows under budgets that change by one layer at a time. */
#ifndef WN_PRUNE_EVALUATOR_H
#define WN_PRUNE_EVALUATOR_H

#include "model/model.h"
#include "prune/set.h"

/* Sums run over rows and positions in order, batch by batch, as wn_eval's do, so that all evaluators that agree on
 * every position's loss agree on their result to the bit. */
struct wn_prune_evaluator {
  const char *name;
  size_t bytes; /* all that it holds */
  bool by_rows; /* positions before the first that can change are left alone; known after begin */
  /* The accepted budgets [layers]; NULL: none. */
  wn_status (*begin)(struct wn_prune_evaluator *e, const int64_t *tokens, double *loss);
  /* The loss with the budget of `layer` at `to`; nothing is accepted. */
  wn_status (*evaluate)(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss);
  /* Makes that budget the accepted one. */
  wn_status (*accept)(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss);
  void (*destroy)(struct wn_prune_evaluator *e);
};

/* Computes everything anew each time, a whole forward step of each batch: the reference. budgets: policy and choices,
 * copied; the set is borrowed. */
wn_status wn_prune_plain_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                                const wn_budgets *budgets, struct wn_prune_evaluator **out);

/* Only what a change can reach (reuse.c). */
struct wn_prune_reuse {
  const char *what;               /* the set's name, for messages */
  const struct wn_prune_set *set; /* borrowed */
  int64_t batch;
  const wn_budgets *budgets; /* policy and choices, copied */
  bool trials;               /* evaluate will be called; the cheapest trial's results are kept for accept where memory
                                allows */
  uint64_t memory;           /* bytes that may be taken */
};
wn_status wn_prune_reuse_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_reuse *options,
                                struct wn_prune_evaluator **out);

#endif
