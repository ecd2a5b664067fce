/* TOVA: Oren et al. 2024, arXiv 2401.06104, section 3.2, once: the last row's attention weight, mean over all heads of
 * the layer, so that all key-value heads keep the same tokens. In the paper the last token can go too; as in kvpress,
 * it always stays. Cost: n H D products. */
#include "kv/once/score.h"

static int64_t tova_rows(const struct wn_once_options *options) {
  (void)options;
  return 1;
}

static wn_status tova_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  const int64_t m = wn_once_before(v, 1);
  WN_TRY(wn_once_window(ctx, v, 1, m, scores));
  for (int64_t j = 0; j < m; j++) {
    double sum = 0;
    for (int64_t g = 0; g < v->Hkv; g++) sum += scores[g * v->n + j];
    for (int64_t g = 0; g < v->Hkv; g++) scores[g * v->n + j] = -sum / (double)v->Hkv;
  }
  wn_once_mark_recent(v, m, scores);
  return WN_OK;
}

const struct wn_once_method wn_once_tova = {
    .name = "tova",
    .summary = "keeps tokens with the most attention from the last row, all heads alike (Oren et al. 2024)",
    .needs = WN_ONCE_KEYS | WN_ONCE_WINDOW,
    .rows = tova_rows,
    .score = tova_score,
};
