/* Dropout (Srivastava et al. 2014), and the noise of a relaxed Bernoulli variable (Maddison, Mnih, Teh 2017, arXiv
 * 1611.00712): one pass over n values. */
#include "backends/ref/ref.h"
#include "base/rng.h"
#include "ops/gates.h"

static void dropout_rows(const struct wn_exec *exec, const struct wn_dropout *a, int64_t from, int64_t to) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype); /* of x [n] */
  const double scale = 1.0 / (1.0 - a->p), limit = a->p * 4294967296.0;
  for (int64_t i = from; i < to; i += 4) {
    uint32_t word[4];
    wn_philox(a->seed, a->stream, (uint64_t)(i / 4), word);
    for (int64_t k = i; k < i + 4 && k < a->n; k++)
      wn_number_set(a->x, k, t, (double)word[k - i] >= limit ? wn_number(a->x, k, t) * scale : 0.0);
  }
}
WN_ROWS(wn_ref_dropout_forward, struct wn_dropout, exec->threads, a->n, 4, dropout_rows(exec, a, from, to))

static void noise_rows(const struct wn_exec *exec, const struct wn_noise *a, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += 4) {
    uint32_t word[4];
    wn_philox(a->seed, a->stream, (uint64_t)(i / 4), word);
    for (int64_t k = i; k < i + 4 && k < a->n; k++)
      wn_number_set(a->x, k, exec->dtype, wn_number(a->x, k, exec->dtype) + wn_gate_noise(word[k - i]));
  }
}
WN_ROWS(wn_ref_noise_forward, struct wn_noise, exec->threads, a->n, 4, noise_rows(exec, a, from, to))
