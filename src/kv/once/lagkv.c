/* LagKV: Liang et al. 2025, "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important", arXiv
 * 2504.04704. The tokens after the first `sinks` are divided into partitions of L. A token stays if its key and value
 * vary much over their dimensions when each dimension is measured by the range that it has in the next partition:
 *
 *   x'[j,d] = (x[j,d] - min[d]) / (max[d] - min[d]), min and max over the next partition      (eq. 2, 3)
 *   s(x)[j] = softmax over the partition's tokens of std over d of x'[j,d]                    (eq. 4, 5)
 *   importance[j] = (s(k)[j] + s(v)[j]) / 2                                                   (eq. 6)
 *
 * Within a partition tokens are ranked, and a score is the rank by L. The last partition and what follows it always
 * stay. Below sinks + 2 L tokens the last ones stay. The paper takes the best of each partition as it is completed, so
 * that each keeps the same number; as in kvpress, the tokens of all partitions are chosen together, by rank, which
 * takes the same ones up to one of each partition. With `cross` ranks are not taken. A dimension without a range counts
 * as 0 here, as infinite there. Keys are those of the cache, rotated. Cost: 4 n D operations a head. */
#include <string.h>

#include "kv/once/score.h"

/* s(x) of the L tokens at x [2L,D], whose next partition follows them. */
static void lagkv_part(const float *x, int64_t L, int64_t D, double *least, double *range, double *out) {
  for (int64_t d = 0; d < D; d++) {
    double most = least[d] = (double)x[L * D + d];
    for (int64_t j = L; j < 2 * L; j++)
      least[d] = wn_smaller((double)x[j * D + d], least[d]), most = wn_larger((double)x[j * D + d], most);
    range[d] = most - least[d];
  }
  for (int64_t j = 0; j < L; j++) {
    double mean = 0, square = 0;
    for (int pass = 0; pass < 2; pass++)
      for (int64_t d = 0; d < D; d++) {
        const double value = range[d] > 0 ? ((double)x[j * D + d] - least[d]) / range[d] : 0;
        if (pass == 0)
          mean += value / (double)D;
        else
          square += (value - mean) * (value - mean);
      }
    out[j] = D > 1 ? sqrt(square / (double)(D - 1)) : 0;
  }
  wn_once_softmax(out, L);
}

/* -importance, or with ranks -rank / L: how many of the partition are less important; of equal ones the older are. */
static void lagkv_rank(const double *importance, int64_t L, bool cross, double *scores) {
  for (int64_t j = 0; j < L; j++) {
    int64_t rank = 0;
    for (int64_t i = 0; i < L && !cross; i++)
      rank += importance[i] < importance[j] || (importance[i] == importance[j] && i < j);
    scores[j] = cross ? -importance[j] : -(double)rank / (double)L;
  }
}

static void lagkv_head(const struct wn_once_head *h) {
  const struct wn_once_view *v = h->v;
  const int64_t n = v->n, D = v->D, L = v->options->lagkv.lag;
  const int64_t sinks = v->options->lagkv.sinks < n ? v->options->lagkv.sinks : n;
  const int64_t parts = n >= sinks + 2 * L ? (n - sinks) / L - 1 : 0; /* that are scored */
  double *key = h->room, *value = key + L, *least = value + L, *range = least + D, *out = h->out;
  for (int64_t j = 0; j < n; j++)
    out[j] = j < sinks ? WN_ONCE_SINK : parts > 0 ? WN_ONCE_RECENT : -(double)(j - sinks) / (double)(n - sinks);
  for (int64_t p = 0; p < parts; p++) {
    const int64_t first = sinks + p * L;
    lagkv_part(v->k + (h->g * n + first) * D, L, D, least, range, key);
    lagkv_part(v->v + (h->g * n + first) * D, L, D, least, range, value);
    for (int64_t j = 0; j < L; j++) key[j] = (key[j] + value[j]) / 2;
    lagkv_rank(key, L, v->options->lagkv.cross, out + first);
  }
}

static wn_status lagkv_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  const int64_t each = 2 * (v->options->lagkv.lag + v->D);
  void *memory;
  WN_TRY(wn_alloc(ctx, "LagKV", (size_t)(v->Hkv * each) * sizeof(double), &memory));
  wn_once_heads(v, lagkv_head, memory, each, scores, NULL);
  wn_free(memory);
  return WN_OK;
}

const struct wn_once_method wn_once_lagkv = {
    .name = "lagkv",
    .summary = "keeps tokens whose keys and values vary much by the range of those that follow (Liang et al. 2025)",
    .needs = WN_ONCE_KEYS | WN_ONCE_VALUES,
    .score = lagkv_score,
};
