/* The race between layers (race.h). */
#include "prune/race.h"

#include "base/estimate.h"

enum { FIRST_BATCHES = 2 };        /* of the first look */
#define PASSED ((double)-INFINITY) /* the trial of a layer that runs no longer and has not dropped out */

wn_status wn_race_init(wn_context *ctx, struct wn_prune_evaluator *evaluator, const struct wn_race_search *search,
                       struct wn_race *out) {
  const int64_t L = search->layers, half = search->rows / 2;
  int64_t looks = 0;
  *out = (struct wn_race){.rows = search->rows, .first = FIRST_BATCHES * search->batch, .evaluator = evaluator};
  for (int64_t n = out->first; n <= half; n *= 2) looks++;
  out->level = search->delta / ((double)(L > 1 ? L - 1 : 1) * (double)(looks > 0 ? looks : 1) * (double)search->steps);
  return WN_ALLOC(ctx, "a race's losses", (size_t)L * (size_t)half + 1, &out->loss);
}

/* The t of the mean of a - b over n rows; 0 where all are equal, which says nothing of other rows. */
static double race_t(const struct wn_race *race, const double *a, const double *b, int64_t n) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) mean += a[i] - b[i];
  mean /= (double)n;
  for (int64_t i = 0; i < n; i++) squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean);
  const double left = 1 - (double)n / (double)race->rows;
  const double error = sqrt(squares / (double)(n - 1) / (double)n * left);
  return error > 0 ? mean / error : 0;
}

/* Is the t over n rows significant, or would it be over `then` rows with the same mean and variance? */
static bool race_drops(const struct wn_race *race, double t, int64_t n, int64_t then) {
  const double all = (double)race->rows, grows = (double)then / (double)n * (all - (double)n) / (all - (double)then);
  return wn_student_tail((double)(then - 1), t * sqrt(grows)) < race->level;
}

/* After n rows: drops the layers that are significantly worse than the leader, and lets those pass that would not be so
 * after half of the rows either. Returns how many still run, the leader among them. */
static int64_t race_look(const struct wn_race *race, int64_t layers, int64_t n, double *trial) {
  const int64_t half = race->rows / 2;
  int64_t leader = -1, left = 0;
  double least = INFINITY;
  for (int64_t l = 0; l < layers; l++) {
    double sum = 0;
    if (!isnan(trial[l])) continue;
    for (int64_t i = 0; i < n; i++) sum += race->loss[l * half + i];
    if (leader < 0 || sum < least) leader = l, least = sum;
  }
  for (int64_t l = 0; l < layers; l++) {
    if (!isnan(trial[l])) continue;
    const double t = l == leader ? 0 : race_t(race, race->loss + l * half, race->loss + leader * half, n);
    if (l == leader || (!race_drops(race, t, n, n) && race_drops(race, t, n, half)))
      left++;
    else
      trial[l] = race_drops(race, t, n, n) ? INFINITY : PASSED;
  }
  return left;
}

wn_status wn_race_run(const struct wn_race *race, int64_t layers, const int64_t *to, double *trial, int64_t *read) {
  const int64_t half = race->rows / 2;
  int64_t left = 0, from = 0;
  *read = 0;
  for (int64_t l = 0; l < layers; l++) left += isnan(trial[l]);
  for (int64_t n = race->first; left > 1 && n <= half; from = n, n *= 2) {
    for (int64_t l = 0; l < layers; l++) {
      if (!isnan(trial[l])) continue;
      WN_TRY(race->evaluator->part(race->evaluator, l, to[l], &(struct wn_prune_part){from, n}, race->loss + l * half));
      *read += n - from;
    }
    left = race_look(race, layers, n, trial);
  }
  for (int64_t l = 0; l < layers; l++)
    if (trial[l] == PASSED) trial[l] = NAN;
  return WN_OK;
}
