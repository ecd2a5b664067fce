/* PyramidKV: Cai et al. 2024, "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", arXiv
 * 2406.02069. Lower layers, whose attention is spread, keep more than higher ones: with K tokens on average, a window
 * of w rows and L layers,
 *
 *   least = K / beta,  most = 2 K - least      or, if that is n - w or more,  most = n - w,  least = 2 K - most
 *   kept[l] = most - l (most - least) / (L - 1), rounded
 *
 * and K in every layer where least comes out below w or most below least. This is kvpress's reading; the authors' code
 * adds the w tokens of the window to each layer. Rounding is to the nearest, of two the even number. */
#include "kv/once/score.h"

int64_t wn_once_pyramid(const struct wn_once_options *options, int64_t layer, int64_t layers, int64_t n, double kept,
                        int64_t window) {
  double least = kept / options->pyramid.beta, most = 2 * kept - least;
  if (most >= (double)(n - window)) most = (double)(n - window), least = 2 * kept - most;
  if (!((double)n >= most && most >= least && least >= (double)window)) return (int64_t)fmax(1, nearbyint(kept));
  const double step = layers > 1 ? (most - least) / (double)(layers - 1) : 0;
  return (int64_t)nearbyint(most - (double)layer * step);
}
