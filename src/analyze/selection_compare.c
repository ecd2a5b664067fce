/* How alike two runs select: correlations of their mean 1 - exp(-F), for every pair of layers. Cost: L^2 passes over
 * the cells. */
#include "winnow/selection.h"

#include <math.h>

#include "base/alloc.h"
#include "base/misuse.h"

/* Compares layer l of a with layer k of b over the cells that have pairs in both, on and below the diagonal (of
 * encoders over all cells). */
static void compare_layers(const wn_selection_mean *of_a, int64_t l, const wn_selection_mean *of_b, int64_t k,
                           double *correlation, double *difference) {
  const int64_t size = of_a->size, cells = size * size;
  const float *a = of_a->masked + l * cells, *b = of_b->masked + k * cells;
  double n = 0, mean_a = 0, mean_b = 0, aa = 0, bb = 0, ab = 0, off = 0;
  for (int64_t r = 0; r < size; r++)
    for (int64_t c = 0; c < (of_a->encoder ? size : r + 1); c++) { /* Welford's method */
      const int64_t at = r * size + c;
      if ((of_a->pairs && of_a->pairs[at] == 0) || (of_b->pairs && of_b->pairs[at] == 0)) continue;
      const double x = (double)a[at], y = (double)b[at];
      const double dx = x - mean_a, dy = y - mean_b;
      n++;
      mean_a += dx / n, mean_b += dy / n;
      aa += dx * (x - mean_a), bb += dy * (y - mean_b), ab += dx * (y - mean_b);
      off += fabs(x - y);
    }
  *correlation = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
  *difference = n > 0 ? off / n : 0;
}

wn_status wn_selection_compare(wn_context *ctx, const wn_selection_mean *a, const wn_selection_mean *b,
                               wn_selection_likeness **out) {
  WN_CHECK_CALL(WN_POINTER_AS("first", a), WN_POINTER_AS("second", b), WN_POINTER(out));
  *out = NULL;
  if (!a->masked || !b->masked)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "selections are compared of models with selective attention");
  if (a->T != b->T || a->cell != b->cell)
    return wn_fail(
        ctx, WN_ERR_ARGUMENT,
        "selections over %lld tokens in cells of %lld cannot be compared with those over %lld in cells of %lld",
        (long long)a->T, (long long)a->cell, (long long)b->T, (long long)b->cell);
  if (a->encoder != b->encoder)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "selections of an encoder cannot be compared with those of a decoder");
  const int64_t La = a->layers, Lb = b->layers;
  void *memory;
  WN_TRY(wn_alloc(ctx, "likeness of selections", sizeof **out + 2 * (size_t)(La * Lb) * sizeof(double), &memory));
  wn_selection_likeness *r = memory;
  double same = 0, others = 0;
  *r = (wn_selection_likeness){.layers = {La, Lb}, .correlation = (double *)(void *)(r + 1)};
  r->difference = r->correlation + La * Lb;
  for (int64_t l = 0; l < La; l++) {
    double best = -INFINITY;
    for (int64_t k = 0; k < Lb; k++) {
      double *correlation = &r->correlation[l * Lb + k], *difference = &r->difference[l * Lb + k];
      compare_layers(a, l, b, k, correlation, difference);
      best = fmax(best, *correlation);
      if (l == k)
        same++, r->same += *correlation, r->same_difference += *difference;
      else
        others++, r->others += *correlation, r->other_difference += *difference;
    }
    r->best += best / (double)La;
  }
  if (same > 0) r->same /= same, r->same_difference /= same;
  if (others > 0) r->others /= others, r->other_difference /= others;
  *out = r;
  return WN_OK;
}

void wn_selection_likeness_destroy(wn_selection_likeness *likeness) {
  wn_free(likeness);
}
