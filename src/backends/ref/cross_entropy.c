/* Softmax cross-entropy of each row of logits, its gradient, and whether the arg-max is the target. 4MV operations. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/cross_entropy.c"
#include "backends/ref/twice.h"
WN_REF_ROWS(cross_entropy_forward, struct wn_cross_entropy, a->M, 1)
#else

static void NAME(cross_entropy_forward)(const struct wn_cross_entropy *a, int64_t from, int64_t to) {
  const REAL *logits = a->logits; /* [M,V] */
  REAL *dlogits = a->dlogits;     /* [M,V], may be logits */
  for (int64_t m = from; m < to; m++) {
    const REAL *row = logits + m * a->ld;
    REAL *drow = dlogits ? dlogits + m * a->ld : NULL;
    const int32_t target = a->targets[m];
    int64_t best = 0;
    for (int64_t v = 1; v < a->V; v++)
      if (row[v] > row[best]) best = v;
    if (a->hit) a->hit[m] = target == best;
    if (target < 0) {
      a->loss[m] = 0;
      if (drow)
        for (int64_t v = 0; v < a->V; v++) drow[v] = 0;
      continue;
    }
    const double top = (double)row[best], cap = a->cap;
    double sum = 0;
    for (int64_t v = 0; v < a->V; v++) sum += exp((double)row[v] - top);
    a->loss[m] = top + log(sum) - (double)row[target];
    if (drow)
      for (int64_t v = 0; v < a->V; v++) {
        const double x = (double)row[v], through = cap > 0 ? 1.0 - x / cap * (x / cap) : 1.0;
        drow[v] = (REAL)((exp(x - top) / sum - (v == target ? 1.0 : 0.0)) * a->scale * through);
      }
  }
}
#endif
