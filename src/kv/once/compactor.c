/* Compactor: Chari and Van Durme 2025, arXiv 2507.08143: leverage scores (leverage.c) and attention without a causal
 * mask within chunks of the context (seen.c), both in standard units over all heads of the layer:
 *
 *   a[j] = mean over tokens j-1..j+1 of |v| c, c the attention sum of the chunk's rows
 *   importance[j] = blend l[j] + a[j], both less their mean, divided by their standard deviation
 *
 * The first `sinks` and the last `recent` tokens always stay and take no part. `blend` is the part of the tokens that
 * is evicted, as in kvpress; the authors' own engine has 0.5, and takes leverage scores within chunks too. Logits have
 * no factor in either. As in kvpress, a last chunk that is not full is filled up with queries and keys of zeros (its
 * mask adds -1e-9 where -1e9 must be meant), so that its tokens get more; `padded` = false leaves them out, as the
 * authors' engine does. Cost: that of leverage scores and n c H D products. */
#include <string.h>

#include "kv/once/score.h"

static wn_status compactor_attention(wn_context *ctx, const struct wn_once_view *v, int64_t first, int64_t count,
                                     double *out) {
  void *memory;
  WN_TRY(wn_alloc(ctx, "Compactor", (size_t)count * sizeof(double), &memory));
  double *row = memory;
  for (int64_t g = 0; g < v->Hkv; g++) {
    for (int64_t j = 0; j < count; j++) row[j] = v->chunks[g * v->n + first + j] * wn_once_value_norm(v, g, first + j);
    wn_once_pool(row, count, 1, WN_POOL_MEAN, out + g * count);
  }
  wn_free(memory);
  wn_once_standard(out, v->Hkv, count, count);
  return WN_OK;
}

wn_status wn_once_compactor_of(wn_context *ctx, const struct wn_once_view *v, const double *sketch, double *scores) {
  const int64_t n = v->n, sinks = v->options->compactor.sinks, recent = v->options->compactor.recent;
  const int64_t first = sinks < n ? sinks : n, count = n - first > recent ? n - first - recent : 0;
  const double ratio = v->ratio >= 0 ? v->ratio : 1 - (double)v->kept / (double)n;
  const double blend = v->options->compactor.blend >= 0 ? v->options->compactor.blend : ratio;
  wn_once_mark_recent(v, first, scores);
  for (int64_t g = 0; g < v->Hkv; g++)
    for (int64_t j = 0; j < first; j++) scores[g * n + j] = WN_ONCE_SINK;
  if (count == 0) return WN_OK;
  void *memory;
  WN_TRY(wn_alloc(ctx, "Compactor", (size_t)(2 * v->Hkv * count) * sizeof(double), &memory));
  double *leverage = memory, *attention = leverage + v->Hkv * count;
  wn_status status = compactor_attention(ctx, v, first, count, attention);
  if (status == WN_OK)
    status = wn_once_leverage_of(ctx, v, first, count, sketch, v->options->leverage.sketch, leverage, count);
  for (int64_t g = 0; g < v->Hkv && status == WN_OK; g++)
    for (int64_t j = 0; j < count; j++)
      scores[g * n + first + j] = -(blend * leverage[g * count + j] + attention[g * count + j]);
  wn_free(memory);
  return status;
}

static wn_status compactor_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  double *sketch;
  WN_TRY(wn_once_sketch(ctx, v, &sketch));
  const wn_status status = wn_once_compactor_of(ctx, v, sketch, scores);
  wn_free(sketch);
  return status;
}

static int64_t compactor_sinks(const struct wn_once_options *options) {
  return options->compactor.sinks;
}

const struct wn_once_method wn_once_compactor = {
    .name = "compactor",
    .summary = "keeps tokens by leverage scores and attention without a mask within chunks (Chari and Van Durme 2025)",
    .needs = WN_ONCE_PLAIN | WN_ONCE_VALUES | WN_ONCE_CHUNKS,
    .by_kept = true,
    .sinks = compactor_sinks,
    .score = compactor_score,
};
