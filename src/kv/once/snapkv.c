/* SnapKV: Li et al. 2024, arXiv 2404.14469, section 4, as published: the last w rows of the context vote once.
 *
 *   vote[j] = mean over the last w rows and the heads of a group of the attention weight of j
 *   importance[j] = mean, or maximum, of vote over tokens j-r .. j+r
 *
 * The last w tokens always stay; pools and votes run over the tokens before them. In the paper each head chooses for
 * itself and weights are summed; as in kvpress, heads of a group choose together, and ends of the pool count as zeros.
 * Cost: w n H D products. */
#include "kv/once/score.h"

static int64_t snapkv_window(const struct wn_once_options *options) {
  return options->snapkv.rows;
}

static wn_status snapkv_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  const int64_t rows = v->options->snapkv.rows, m = wn_once_before(v, rows);
  void *memory;
  WN_TRY(wn_alloc(ctx, "SnapKV", (size_t)(v->Hkv * v->n) * sizeof(double), &memory));
  double *votes = memory;
  const wn_status status = wn_once_window(ctx, v, rows, m, votes);
  if (status == WN_OK) {
    for (int64_t g = 0; g < v->Hkv; g++) {
      double *out = scores + g * v->n;
      wn_once_pool(votes + g * v->n, m, v->options->snapkv.neighbours, v->options->snapkv.pool, out);
      for (int64_t j = 0; j < m; j++) out[j] = -out[j];
    }
    wn_once_mark_recent(v, m, scores);
  }
  wn_free(memory);
  return status;
}

/* Its options are keys of wn_budgets. */
const struct wn_once_method wn_once_snapkv = {
    .name = "snapkv",
    .summary = "keeps tokens with the most attention from the last rows, pooled over neighbours (Li et al. 2024)",
    .needs = WN_ONCE_KEYS | WN_ONCE_WINDOW,
    .rows = snapkv_window,
    .score = snapkv_score,
};
