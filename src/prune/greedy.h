/* The greedy search's rule, apart from what is searched (arXiv 2410.02703, section 4).
 *
 * Each step lowers by `step` the budget of the one layer whose lowering leaves the smallest loss; equal losses: the
 * lowest layer. No budget falls below `step`. The step that would pass the target is not taken.
 *
 * Exact: every layer that can be lowered is evaluated in every step, L evaluations per step. Lazy (Minoux 1978): a
 * layer's increase of the loss when last evaluated is used until the layer is the cheapest; then it is evaluated anew,
 * and taken if it still is. That is the same choice as long as increases only grow while budgets fall; where they do
 * not, it may differ, which `check` counts. Stopping is always decided by all layers' present losses. */
#ifndef WN_PRUNE_GREEDY_H
#define WN_PRUNE_GREEDY_H

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

struct wn_greedy {
  int64_t layers, step;
  int64_t *tokens; /* [layers] the budgets */
  double loss;     /* at these budgets */
  double target;   /* the largest loss that may be reached */
  bool lazy, check;
  double *increase; /* [layers] of the loss, when the layer was last evaluated; NAN: never. Kept between steps */
  double *trial;    /* [layers] scratch: the losses of this step, NAN: not evaluated */
  /* The loss with `layer` lowered to `to`, the others as in tokens. */
  wn_status (*evaluate)(void *user, int64_t layer, int64_t to, double *loss);
  void *user;
};

enum wn_greedy_verdict { WN_GREEDY_LOWER, WN_GREEDY_AT_TARGET, WN_GREEDY_AT_FLOOR };
struct wn_greedy_choice {
  enum wn_greedy_verdict verdict;
  int64_t layer; /* the cheapest; -1 at the floor */
  double loss;   /* with it lowered */
  int64_t evaluations;
  bool differs;  /* check: the exact choice is another layer */
  int64_t exact; /* check: it, and its loss */
  double exact_loss;
};
wn_status wn_greedy_choose(struct wn_greedy *greedy, struct wn_greedy_choice *out);
/* Takes the choice: tokens, loss. */
void wn_greedy_take(struct wn_greedy *greedy, const struct wn_greedy_choice *choice);

#endif
