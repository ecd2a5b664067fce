/* A bias that only tests have, with two parameters a head: KERPLE's logarithm (Chi et al. 2022, arXiv 2205.09921), with
 * squares in place of its bounds:   f = -theta[0]^2 log(1 + theta[1]^2 x).
 * It is all that a mechanism needs: these functions, a kind, and an entry (own_term.h). */
#ifndef TESTS_OWN_BIAS_H
#define TESTS_OWN_BIAS_H

#include "ops/score.h"

WN_TERM double own_bias_grows(const struct wn_score_map *t, struct wn_score_at at) {
  const double b = wn_score_theta(t, at, 1);
  return log(1 + b * b * (double)(at.x > 0 ? at.x : 0));
}
WN_TERM double own_bias_head(const struct wn_score_map *t, struct wn_score_at at) {
  const double a = wn_score_theta(t, at, 0);
  return a * a;
}
WN_TERM double own_bias_value(const struct wn_score_map *t, double of_head, struct wn_score_at at) {
  return -of_head * own_bias_grows(t, at);
}
WN_TERM double own_bias_slope(const struct wn_score_map *t, struct wn_score_at at, int64_t k) {
  const double a = wn_score_theta(t, at, 0), b = wn_score_theta(t, at, 1), x = (double)at.x;
  return k == 0 ? -2 * a * own_bias_grows(t, at) : -a * a * 2 * b * x / (1 + b * b * x);
}
WN_TERM struct wn_interval own_bias_reach(const struct wn_score_map *t, bool open, int64_t k) {
  const struct wn_interval all = {0, INT32_MAX};
  (void)t, (void)open, (void)k;
  return all;
}

#endif
