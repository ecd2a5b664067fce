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

/* What computes the losses of rows row0 .. row0 + B - 1 under budgets, NULL: none. rows (may be NULL): [held rows]
 * receives each row's; *sum: all of them, in the order of positions. */
struct wn_prune_pass {
  const char *name;
  size_t bytes;
  void *user;
  wn_status (*run)(void *user, const wn_budgets *budgets, int64_t row0, int64_t B, wn_row_sums *rows, double *sum);
  void (*destroy)(void *user);
};
/* An evaluator that runs every batch whatever has changed. Takes over the pass, also after a failure. budgets: policy
 * and options, copied; NULL: none. The set is borrowed. */
wn_status wn_prune_pass_create(wn_context *ctx, const struct wn_prune_set *set, int64_t batch, int64_t layers,
                               const wn_budgets *budgets, const struct wn_prune_pass *pass,
                               struct wn_prune_evaluator **out);

/* The plain evaluator, for reference: every evaluation is a whole forward pass of each batch. budgets: policy and
 * options, copied. The set is borrowed. */
wn_status wn_prune_plain_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                                const wn_budgets *budgets, struct wn_prune_evaluator **out);

/* Losses behind contexts that are compressed once (once.c): the set has a context (wn_prune_set_leave), and budgets are
 * of its tokens. memory: bytes that it may keep. */
wn_status wn_prune_once_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                               const wn_budgets *budgets, uint64_t memory, struct wn_prune_evaluator **out);

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
