/* Observed attention, as kvpress computes it after heavy hitters (Zhang et al. 2023, H2O, arXiv 2306.14048): the mean
 * attention weight that a token has received from the rows that see it, its own included.
 *
 *   importance[j] = mean over the group's heads of sum over rows i >= j of A[i,j] / (T - position of j)
 *
 * H2O itself takes the sum, which favours early tokens, and protects recent ones: policy h2o. Cost: n additions. */
#include "kv/once/score.h"

static wn_status observed_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  (void)ctx;
  const int64_t group = v->H / v->Hkv;
  for (int64_t g = 0; g < v->Hkv; g++)
    for (int64_t j = 0; j < v->n; j++)
      scores[g * v->n + j] = -v->sums[g * v->n + j] / (double)(group * (v->next - v->at[j]));
  return WN_OK;
}

const struct wn_once_method wn_once_observed = {
    .name = "observed",
    .summary = "keeps tokens with the most attention from the rows that saw them, on average (H2O's mean)",
    .needs = WN_ONCE_SUMS,
    .score = observed_score,
};
