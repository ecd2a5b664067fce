/* Evaluators: the loss of a set of rows under budgets, of which one layer's changes at a time. */
#ifndef WN_PRUNE_EVALUATOR_H
#define WN_PRUNE_EVALUATOR_H

#include "model/model.h"
#include "prune/set.h"

/* Losses are summed in the order of rows and positions, batch by batch, as in wn_eval. So evaluators that agree on
 * every position's loss agree on the result to the bit. */
struct wn_prune_evaluator {
  const char *name;
  size_t bytes; /* all memory that it holds */
  bool by_rows; /* positions before the first that can change are not computed again; known after `begin` */
  /* Sets the accepted budgets, tokens [layers]; NULL: none. */
  wn_status (*begin)(struct wn_prune_evaluator *e, const int64_t *tokens, double *loss);
  /* The loss if the budget of `layer` were `to`; the accepted budgets stay. */
  wn_status (*evaluate)(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss);
  /* Makes that budget the accepted one. */
  wn_status (*accept)(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss);
  /* After `begin` or `accept`: the sum of each row's losses, loss [all_rows], in every process. Runs nothing. */
  wn_status (*rows)(struct wn_prune_evaluator *e, double *loss);
  /* The sum of each row's losses if the budget of `layer` were `to`, of the part's rows: loss [all_rows], in every
   * process. */
  wn_status (*part)(struct wn_prune_evaluator *e, int64_t layer, int64_t to, const struct wn_prune_part *part,
                    double *loss);
  void (*destroy)(struct wn_prune_evaluator *e);
};

/* The plain evaluator, for reference: every evaluation is a whole forward pass of each batch. budgets: policy and
 * options, copied. The set is borrowed. */
wn_status wn_prune_plain_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                                const wn_budgets *budgets, struct wn_prune_evaluator **out);

/* The options of the evaluator that computes only what a change can affect (reuse.c). */
struct wn_prune_reuse {
  const char *what;               /* the set's name, for messages */
  const struct wn_prune_set *set; /* borrowed */
  int64_t batch;
  const wn_budgets *budgets; /* policy and options, copied */
  bool trials;     /* `evaluate` will be called; if memory allows, the cheapest trial's results are kept for `accept` */
  uint64_t memory; /* bytes that it may use */
};
wn_status wn_prune_reuse_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_reuse *options,
                                struct wn_prune_evaluator **out);

#endif
