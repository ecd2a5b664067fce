/* Expected Attention: Devoto et al. 2025, "Expected Attention: KV Cache Compression by Estimating Attention from Future
 * Queries Distribution", arXiv 2510.00636. Queries before rotation are taken as normal with the mean m and the
 * covariance S that those of the context have. With the rotation R averaged over the next `future` positions, a key
 * expects
 *
 *   m' = R m,  S' = R S R^T
 *   z[j] = c k[j].m' + c^2/2 k[j]^T S' k[j],  p = softmax over j of z      (c: the factor on logits, 1/sqrt(D))
 *   importance[j] = (mean over the group's heads of p[j] + epsilon) |v[j]|
 *
 * The first `sinks` tokens always stay, and their queries do not count. The paper has the norm of the projected value,
 * W_o v; kvpress has |v|, as here. Its factor is always 1/sqrt(D), here the model's. In kvpress a rotation of a part of
 * a head fails; here the rest is not turned. Cost: n H D^2 / 2 products. */
#include "kv/once/score.h"

/* The mean over the next positions of the rotation of each pair: cosine and sine. */
static void expected_turns(const struct wn_once_view *v, int64_t pairs, double *turns) {
  const double size = v->rope->magnitude != 0 ? v->rope->magnitude : 1, count = (double)v->options->expected.future;
  for (int64_t i = 0; i < pairs; i++) {
    const double f = wn_once_frequency(v->rope, i);
    turns[2 * i] = turns[2 * i + 1] = 0;
    for (int64_t p = v->next; p < v->next + v->options->expected.future; p++) {
      turns[2 * i] += cos((double)p * f) * size / count;
      turns[2 * i + 1] += sin((double)p * f) * size / count;
    }
  }
}

/* R x, in place: x[d] at d * step. */
static void expected_turn(const struct wn_rope *rope, int64_t pairs, const double *turns, double *x, int64_t step) {
  for (int64_t i = 0; i < pairs; i++) {
    const struct wn_once_pair p = wn_once_pair(rope, i);
    const double a = x[p.a * step], b = x[p.b * step];
    x[p.a * step] = a * turns[2 * i] - b * turns[2 * i + 1];
    x[p.b * step] = a * turns[2 * i + 1] + b * turns[2 * i];
  }
}

/* p of head h for tokens first..n-1, with room for m' and S' [D+D*D]. */
WN_WIDE static void expected_head(const struct wn_once_view *v, int64_t h, int64_t first, int64_t pairs,
                                  const double *turns, double *room, double *p) {
  const int64_t D = v->D;
  double *mean = room, *S = room + D;
  for (int64_t d = 0; d < D; d++) mean[d] = v->mean[h * D + d];
  for (int64_t d = 0; d < D * D; d++) S[d] = v->covariance[h * D * D + d];
  expected_turn(v->rope, pairs, turns, mean, 1);
  for (int64_t d = 0; d < D; d++) expected_turn(v->rope, pairs, turns, S + d, D);
  for (int64_t d = 0; d < D; d++) expected_turn(v->rope, pairs, turns, S + d * D, 1);
  for (int64_t j = first; j < v->n; j++) {
    const float *k = v->k + (h / (v->H / v->Hkv) * v->n + j) * D;
    double square = 0; /* S' is symmetric: its lower half, twice */
    for (int64_t d = 0; d < D && v->options->expected.covariance; d++)
      square += (double)k[d] * (2 * wn_once_dot_mixed(k, S + d * D, d) + (double)k[d] * S[d * D + d]);
    p[j - first] = v->scale * wn_once_dot_mixed(k, mean, D) + v->scale * v->scale / 2 * square;
  }
  wn_once_softmax(p, v->n - first);
}

static int64_t expected_pairs(const struct wn_once_view *v) {
  return v->rope ? (v->rope->R ? v->rope->R : v->D) / 2 : 0;
}

static void expected_scores(const struct wn_once_head *of) {
  const struct wn_once_view *v = of->v;
  const int64_t n = v->n, D = v->D, group = v->H / v->Hkv, sinks = v->options->expected.sinks;
  const int64_t first = sinks < n ? sinks : n;
  double *p = of->room + D + D * D, *out = of->out;
  for (int64_t j = 0; j < n; j++) out[j] = j < first ? WN_ONCE_SINK : 0;
  for (int64_t h = of->g * group; h < (of->g + 1) * group; h++) {
    expected_head(v, h, first, expected_pairs(v), of->more, of->room, p);
    for (int64_t j = first; j < n; j++) out[j] -= p[j - first] / (double)group;
  }
  for (int64_t j = first; j < n && v->options->expected.values; j++)
    out[j] = (out[j] - v->options->expected.epsilon) * wn_once_value_norm(v, of->g, j);
}

static wn_status expected_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  const int64_t pairs = expected_pairs(v), each = v->D + v->D * v->D + v->n;
  void *memory;
  WN_TRY(wn_alloc(ctx, "Expected Attention", (size_t)(2 * pairs + v->Hkv * each) * sizeof(double), &memory));
  double *turns = memory;
  if (pairs > 0) expected_turns(v, pairs, turns);
  wn_once_heads(v, expected_scores, turns + 2 * pairs, each, scores, turns);
  wn_free(memory);
  return WN_OK;
}

static int64_t expected_sinks(const struct wn_once_options *options) {
  return options->expected.sinks;
}

const struct wn_once_method wn_once_expected = {
    .name = "expected",
    .summary = "keeps tokens that queries distributed as the context's would attend to (Devoto et al. 2025)",
    .needs = WN_ONCE_KEYS | WN_ONCE_VALUES | WN_ONCE_QUERIES,
    .sinks = expected_sinks,
    .score = expected_score,
};
