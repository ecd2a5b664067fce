/* CriticalKV: Feng et al. 2025, "Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective",
 * arXiv 2502.03805, algorithm 1, over any method. A part of a head's tokens is chosen by the method alone; the others
 * by
 *
 *   importance'[j] = (importance[j] + epsilon) mean over the group's heads of |W_o v[j]|_1
 *
 * with W_o the head's columns of the output projection. Cost: n H D C products, those of the projection. */
#include <string.h>

#include "base/arrays.h"
#include "kv/once/score.h"

/* Adds |W_o v[j]|_1 of head h to norms [n], as a part of the mean over its group. */
struct critical {
  const struct wn_once_view *v;
  int64_t h;
  float *turned, *y; /* [D,C], the head's columns of W_o, across; [threads,C] */
  double *norms;
};
WN_WIDE static void critical_row(void *args, int64_t j) {
  const struct critical *x = args;
  const struct wn_once_view *v = x->v;
  const int64_t D = v->D, C = v->C, group = v->H / v->Hkv;
  const float *values = v->v + x->h / group * v->n * D;
  float *restrict own = x->y + wn_hand() * C;
  double sum = 0;
  memset(own, 0, (size_t)C * sizeof *own);
  for (int64_t d = 0; d < D; d++) {
    const float value = values[j * D + d], *restrict row = x->turned + d * C;
    for (int64_t c = 0; c < C; c++) own[c] += value * row[c];
  }
  for (int64_t c = 0; c < C; c++) sum += (double)fabsf(own[c]);
  x->norms[j] += sum / (double)group;
}
static void critical_head(const struct critical *x) {
  const struct wn_once_view *v = x->v;
  for (int64_t c = 0; c < v->C; c++)
    for (int64_t d = 0; d < v->D; d++) x->turned[d * v->C + c] = v->wo[c * v->wo_row + x->h * v->D + d];
  wn_parallel_for(v->threads, v->n, critical_row, x);
}

wn_status wn_once_projected(wn_context *ctx, const struct wn_once_view *view, double *norms) {
  const int64_t n = view->n, group = view->H / view->Hkv;
  if (!view->v || !view->wo)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "critical: needs values and the output projection, which are not given");
  float *turned, *y;
  struct wn_arrays arrays = {0};
  const struct wn_array of[] = {WN_ARRAY_FOR(turned, "output projection", true, WN_DIMS(view->D, view->C)),
                                WN_ARRAY_FOR(y, "projected values", true, WN_DIMS(view->threads, view->C))};
  WN_TRY(WN_ARRAYS_CREATE(ctx, &arrays, "CriticalKV", of));
  memset(norms, 0, (size_t)(view->Hkv * n) * sizeof *norms);
  for (int64_t h = 0; h < view->H; h++) critical_head(&(struct critical){view, h, turned, y, norms + h / group * n});
  wn_arrays_clear(&arrays);
  return WN_OK;
}

wn_status wn_once_critical(wn_context *ctx, const struct wn_once_view *view, const int64_t *kept, const double *norms,
                           double *scores) {
  const int64_t n = view->n;
  int32_t *chosen;
  WN_TRY(WN_ALLOC(ctx, "tokens chosen first", n, &chosen));
  wn_status status = WN_OK;
  for (int64_t g = 0; g < view->Hkv && status == WN_OK; g++) {
    double *out = scores + g * n;
    int64_t first = (int64_t)((double)kept[g] * view->options->critical.first);
    if (first < 1 && kept[g] > 0 && view->options->critical.first > 0) first = 1;
    status = wn_once_best(ctx, out, n, first, chosen);
    if (status != WN_OK) break;
    for (int64_t j = 0; j < n; j++)
      if (!wn_once_protected(out[j])) out[j] = (out[j] - view->options->critical.epsilon) * norms[g * n + j];
    for (int64_t i = 0; i < first; i++)
      if (!wn_once_protected(out[chosen[i]])) out[chosen[i]] = WN_ONCE_RECENT;
  }
  wn_free(chosen);
  return status;
}
