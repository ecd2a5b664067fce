/* The rule of the greedy search, independent of how losses are computed (arXiv 2410.02703, section 4).
 *
 * Each step lowers the budget of one layer by `step`: of the layer that leaves the smallest loss, with equal losses the
 * lowest layer. No budget falls below `step`. A step that would pass the target is not taken.
 *
 * Exact: every layer that can be lowered is evaluated in every step: L evaluations per step. Lazy (Minoux 1978): each
 * layer keeps the increase of the loss from its last evaluation. The layer with the smallest increase is evaluated
 * again, and taken if it still is the cheapest. The choice is the same as long as increases only grow while budgets
 * fall; otherwise it may differ, and `check` counts such steps. With a race (race.h) layers that are worse by a sample
 * of the rows are not evaluated, and the rest are. Stopping is always decided by new evaluations of all layers. */
#ifndef WN_PRUNE_GREEDY_H
#define WN_PRUNE_GREEDY_H

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "prune/race.h"

struct wn_greedy {
  int64_t layers, step;
  int64_t *tokens; /* [layers] the budgets */
  double loss;     /* the loss at these budgets */
  double target;   /* the largest loss allowed */
  bool lazy, check;
  /* [layers] increase of the loss when the layer was last evaluated; NAN: never. Kept between steps */
  double *increase;
  double *trial; /* [layers] scratch: the losses of this step; NAN: not evaluated; infinite: dropped out of the race */
  const struct wn_race *race; /* NULL: none; not with lazy */
  int64_t *lowered;           /* [layers] scratch of the race */
  /* Computes the loss with `layer` lowered to `to`, the others as in tokens. */
  wn_status (*evaluate)(void *user, int64_t layer, int64_t to, double *loss);
  void *user;
};

enum wn_greedy_verdict { WN_GREEDY_LOWER, WN_GREEDY_AT_TARGET, WN_GREEDY_AT_FLOOR };
struct wn_greedy_choice {
  enum wn_greedy_verdict verdict;
  int64_t layer; /* the cheapest layer; -1 at the floor */
  double loss;   /* the loss with it lowered */
  int64_t evaluations;
  int64_t raced, left; /* rows that the race read, of all layers together; layers left by it. 0, 0: no race was run */
  bool differs;        /* check: the exact choice is another layer */
  int64_t exact;       /* check: the exact choice, and its loss */
  double exact_loss;
};
wn_status wn_greedy_choose(struct wn_greedy *greedy, struct wn_greedy_choice *out);
/* Takes the choice: updates tokens and loss. */
void wn_greedy_take(struct wn_greedy *greedy, const struct wn_greedy_choice *choice);

#endif
