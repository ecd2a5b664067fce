/* Attention sums: adds the attention weights of R rows over the same N columns. 8RN operations, of which 2RN are
 * exponentials, since the attention weights are not stored. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/attention_sums.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(attention_sums_forward, struct wn_attention_sums)
#else

static double NAME(sums_logit)(const struct wn_attention_sums *a, int64_t r, int64_t c) {
  const REAL *logits = a->logits, *add = a->add, *extra = a->extra;
  const double L = a->scale * (double)logits[r * a->ld + c] + (double)add[r / a->share * a->N + c];
  return extra ? L + (double)extra[r * a->N + c] : L;
}

static wn_status NAME(attention_sums_forward)(const struct wn_exec *exec, const struct wn_attention_sums *a) {
  const REAL *factor = a->factor, *sink = a->sink;
  REAL *sums = a->sums;
  (void)exec;
  for (int64_t r = 0; r < a->R; r++) {
    double top = -INFINITY, sum = 0;
    for (int64_t c = 0; c < a->N; c++) top = fmax(top, NAME(sums_logit)(a, r, c));
    for (int64_t s = 0; s < a->S; s++) top = fmax(top, a->scale * (double)sink[r * a->ld_sink + s]);
    if (top == -INFINITY) continue;
    for (int64_t s = 0; s < a->S; s++) sum += exp(a->scale * (double)sink[r * a->ld_sink + s] - top);
    for (int64_t c = 0; c < a->N; c++) {
      const double e = exp(NAME(sums_logit)(a, r, c) - top);
      sum += factor ? (double)factor[r * a->N + c] * e : e;
    }
    if (sum == 0) continue;
    for (int64_t c = 0; c < a->N; c++) {
      const double e = exp(NAME(sums_logit)(a, r, c) - top);
      sums[c] = (REAL)((double)sums[c] + (factor ? (double)factor[r * a->N + c] * e : e) / sum);
    }
  }
  return WN_OK;
}
#endif
