/* A race: which layers can be the cheapest to lower, by a growing sample of the rows.
 *
 * A look compares, over the n rows read so far, each layer with the leader, the one with the smallest loss: the mean d
 * of the rows' differences, its variance s^2, and
 *
 *   t = d / sqrt(s^2/n (1 - n/R))
 *
 * where R is the number of all rows, from which the n are drawn without replacement. A layer drops out where Student's
 * t with n - 1 degrees of freedom is above t with a probability below `level`. Looks are at `first`, 2 first, 4 first,
 * ... rows, up to half of all. Layers left then are compared over all rows, as without a race, and so is a layer that
 * with this mean and variance would not drop out after half of the rows either: it is read no further. So with a
 * `level` of almost 0 nothing drops out, at the cost of the first look.
 *
 * The error: the layer that is the cheapest over all R rows drops out only in a look in which a layer that is not
 * cheaper leads; there are at most L - 1 such leaders and a known number of looks. With level = delta / (steps (L - 1)
 * looks) the union bound says that some step of the search differs from the exact one with a probability of at most
 * delta. It is the t test's: nearly exact where the mean of n differences is about normal, not where a few rows decide
 * (heavy tails). The rows must be in an order drawn at random. */
#ifndef WN_PRUNE_RACE_H
#define WN_PRUNE_RACE_H

#include <stdint.h>
#include "prune/evaluator.h"

struct wn_race {
  int64_t rows, first;                  /* all; of the first look */
  double level;                         /* of a comparison, one-sided */
  double *loss;                         /* [layers, rows / 2] scratch: the sums of the rows' losses */
  struct wn_prune_evaluator *evaluator; /* its `part` is used */
};

struct wn_race_search {
  int64_t layers, steps, rows, batch;
  double delta;
};
/* A race on an evaluator's rows, whose batches have `batch` rows. delta: the probability that some of a search's
 * `steps` differs from an exact one. The caller frees race->loss. */
wn_status wn_race_init(wn_context *ctx, struct wn_prune_evaluator *evaluator, const struct wn_race_search *search,
                       struct wn_race *out);
/* trial [layers]: NAN for a layer that runs; of those that drop out it becomes infinite. to [layers]: the lowered
 * budgets. *read: rows read, of all layers together. */
wn_status wn_race_run(const struct wn_race *race, int64_t layers, const int64_t *to, double *trial, int64_t *read);

#endif
