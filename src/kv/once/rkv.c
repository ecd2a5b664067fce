/* R-KV: Cai et al. 2025, "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", arXiv 2505.24133. While
 * text is generated, the cache is compressed whenever it is full. A token stays if the last w rows attend to it and no
 * other key is like its own:
 *
 *   I[j] = maximum over tokens j-r..j+r of the mean over the last w rows of softmax over j of the maximum over the
 *          group's heads of the logits
 *   R[j] = softmax over j of the mean over i of C[i,j], C the cosines of keys without the diagonal
 *   importance[j] = lambda I[j] - (1 - lambda) R[j]
 *
 * So that not all of several like keys go, C[i,j] counts as 0 where j is the last token with a cosine above `similar`;
 * where no token has one, j is the first token, as in the authors' code. The last w tokens always stay: I is taken over
 * those before them, R over all. The authors' code has lambda 0.07, the paper 0.1. Cost: n^2 Hkv D products. */
#include <string.h>

#include "kv/once/score.h"

/* I of the first m tokens for key-value head g. row, pooled [n]. */
WN_WIDE static void rkv_importance(const struct wn_once_view *v, int64_t g, int64_t m, double *row, double *sum,
                                   double *out) {
  const int64_t group = v->H / v->Hkv, rows = v->options->rkv.rows < v->w ? v->options->rkv.rows : v->w;
  memset(sum, 0, (size_t)m * sizeof *sum);
  for (int64_t r = v->w - rows; r < v->w; r++) {
    for (int64_t j = 0; j < m; j++) row[j] = -INFINITY;
    for (int64_t h = g * group; h < (g + 1) * group; h++)
      for (int64_t j = 0; j < m; j++)
        row[j] =
            wn_larger(v->scale * wn_once_dot(v->q + (r * v->H + h) * v->D, v->k + (g * v->n + j) * v->D, v->D), row[j]);
    wn_once_softmax(row, m);
    for (int64_t j = 0; j < m; j++) sum[j] += row[j] / (double)rows;
  }
  wn_once_pool(sum, m, v->options->rkv.neighbours, WN_POOL_MAX, out);
}

/* R of all tokens for key-value head g. row, inverse [n]; k [n,D]: room for its keys. */
WN_WIDE static void rkv_redundancy(const struct wn_once_view *v, int64_t g, double *row, double *inverse, double *k,
                                   double *out) {
  const int64_t n = v->n, D = v->D;
  const double tiny = 1e-8;
  for (int64_t i = 0; i < n * D; i++) k[i] = (double)v->k[g * n * D + i];
  for (int64_t j = 0; j < n; j++) {
    inverse[j] = 1 / (sqrt(wn_once_dot_double(k + j * D, k + j * D, D)) + tiny);
    out[j] = 0;
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t last = 0;
    for (int64_t j = 0; j < n; j++) {
      row[j] = i == j ? 0 : wn_once_dot_double(k + i * D, k + j * D, D) * inverse[i] * inverse[j];
      if (row[j] > v->options->rkv.similar) last = j;
    }
    row[last] = 0;
    for (int64_t j = 0; j < n; j++) out[j] += row[j] / (double)n;
  }
  wn_once_softmax(out, n);
}

static void rkv_head(const struct wn_once_head *h) {
  const struct wn_once_view *v = h->v;
  const int64_t n = v->n, m = wn_once_before(v, v->options->rkv.rows);
  const double lambda = v->options->rkv.importance;
  double *row = h->room, *other = row + n, *importance = other + n;
  rkv_importance(v, h->g, m, row, other, importance);
  rkv_redundancy(v, h->g, row, other, importance + n, h->out);
  for (int64_t j = 0; j < m; j++) h->out[j] = (1 - lambda) * h->out[j] - lambda * importance[j];
}

static wn_status rkv_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  const int64_t each = v->n * (3 + v->D);
  void *memory;
  WN_TRY(wn_alloc(ctx, "R-KV", (size_t)(v->Hkv * each) * sizeof(double), &memory));
  wn_once_heads(v, rkv_head, memory, each, scores, NULL);
  wn_once_mark_recent(v, wn_once_before(v, v->options->rkv.rows), scores);
  wn_free(memory);
  return WN_OK;
}

static int64_t rkv_rows(const struct wn_once_options *options) {
  return options->rkv.rows;
}

const struct wn_once_method wn_once_rkv = {
    .name = "rkv",
    .summary = "keeps tokens that the last rows attend to and whose keys are not like others (Cai et al. 2025)",
    .needs = WN_ONCE_KEYS | WN_ONCE_WINDOW,
    .rows = rkv_rows,
    .score = rkv_score,
};
