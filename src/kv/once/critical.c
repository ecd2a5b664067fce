/* CriticalKV: Feng et al. 2025, "Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective",
 * arXiv 2502.03805, algorithm 1, over any method. A part of a head's tokens is chosen by the method alone; the others
 * by
 *
 *   importance'[j] = (importance[j] + epsilon) mean over the group's heads of |W_o v[j]|_1
 *
 * with W_o the head's columns of the output projection. Cost: n H D C products, those of the projection. */
#include "kv/once/score.h"

enum { CRITICAL_BLOCK = 16 }; /* tokens that share a reading of W_o */

/* norms [m] of tokens first..first+m-1, key-value head g; m at most CRITICAL_BLOCK. */
static void critical_norms(const struct wn_once_view *v, int64_t g, int64_t first, int64_t m, double *norms) {
  const int64_t D = v->D, group = v->H / v->Hkv;
  const float *values = v->v + (g * v->n + first) * D;
  for (int64_t j = 0; j < m; j++) norms[j] = 0;
  for (int64_t h = g * group; h < (g + 1) * group; h++)
    for (int64_t c = 0; c < v->C; c++)
      for (int64_t j = 0; j < m; j++)
        norms[j] += fabs(wn_once_dot(v->wo + c * v->H * D + h * D, values + j * D, D)) / (double)group;
}

wn_status wn_once_critical(wn_context *ctx, const struct wn_once_view *view, const int64_t *kept, double *scores) {
  const int64_t n = view->n, blocks = (n + CRITICAL_BLOCK - 1) / CRITICAL_BLOCK;
  if (!view->v || !view->wo)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "critical: needs values and the output projection, which are not given");
  void *memory;
  WN_TRY(wn_alloc(ctx, "CriticalKV", (size_t)(view->Hkv * n) * sizeof(int32_t), &memory));
  int32_t *chosen = memory;
  wn_status status = WN_OK;
  for (int64_t g = 0; g < view->Hkv && status == WN_OK; g++) {
    int64_t first = (int64_t)((double)kept[g] * view->options->critical.first);
    if (first < 1 && kept[g] > 0 && view->options->critical.first > 0) first = 1;
    status = wn_once_best(ctx, scores + g * n, n, first, chosen + g * n);
    for (int64_t i = first; i < n; i++) chosen[g * n + i] = -1;
  }
#pragma omp parallel for num_threads(view->threads) schedule(dynamic, 1)
  for (int64_t b = 0; b < view->Hkv * blocks; b++) {
    const int64_t g = b / blocks, first = b % blocks * CRITICAL_BLOCK;
    const int64_t m = n - first < CRITICAL_BLOCK ? n - first : CRITICAL_BLOCK;
    double norms[CRITICAL_BLOCK], *out = scores + g * n + first;
    critical_norms(view, g, first, m, norms);
    for (int64_t j = 0; j < m; j++)
      if (!wn_once_protected(out[j])) out[j] = (out[j] - view->options->critical.epsilon) * norms[j];
  }
  for (int64_t g = 0; g < view->Hkv; g++)
    for (int64_t i = 0; i < n && chosen[g * n + i] >= 0; i++) {
      double *score = scores + g * n + chosen[g * n + i];
      if (!wn_once_protected(*score)) *score = WN_ONCE_RECENT;
    }
  wn_free(memory);
  return status;
}
