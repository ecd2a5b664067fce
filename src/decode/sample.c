/* Drawing a token: min-p, then temperature, then top-k, then top-p (Holtzman et al. 2020) on what is left, as the
 * ecosystem has it.
 *
 * Nothing is sorted and nothing allocated: the cut is found by descending the digits of the logits' order-preserving
 * bit patterns, four passes over [V] with a histogram of 256 bins. Among equal logits the lowest ids are kept. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/misuse.h"
#include "base/rng.h"
#include "winnow/model.h"

/* A float's bits as an unsigned number of the same order. */
static uint32_t sample_key_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* What is kept: keys above `key`, and the first `ties` (by id) of those equal to it. */
struct cut {
  uint32_t key;
  int64_t ties;
};

struct walk {
  const struct cut *cut;
  int64_t ties;
};

static bool sample_is_kept(struct walk *w, uint32_t key) {
  if (key != w->cut->key) return key > w->cut->key;
  return w->ties++ < w->cut->ties;
}

static double sample_weight_of(float x, double top, double temperature) {
  return exp(((double)x - top) / temperature);
}

/* The sum of the weights that are kept; by_bin [256]: also by the first digit of their keys, or NULL. */
static double sample_total(const float *logits, int64_t V, const struct cut *kept, double top, double temperature,
                           double *by_bin) {
  struct walk w = {kept, 0};
  double total = 0;
  for (int64_t v = 0; v < V; v++) {
    const uint32_t key = sample_key_of(logits[v]);
    if (!sample_is_kept(&w, key)) continue;
    const double weight = sample_weight_of(logits[v], top, temperature);
    total += weight;
    if (by_bin) by_bin[key >> 24] += weight;
  }
  return total;
}

/* The smallest set of largest logits within `within` whose weights (1 each when counting) reach `target`. first [256]:
 * the weights by the first digit, where they are known, or NULL. */
static struct cut sample_find_cut(const float *logits, int64_t V, const struct cut *within, bool counting,
                                  double target, double top, double temperature, const double *first) {
  uint32_t prefix = 0;
  double above = 0; /* weight of the keys above the prefix */
  for (int shift = 24; shift >= 0; shift -= 8) {
    double weight[256] = {0};
    const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
    struct walk w = {within, 0};
    if (shift == 24 && first) memcpy(weight, first, sizeof weight);
    for (int64_t v = shift == 24 && first ? V : 0; v < V; v++) {
      const uint32_t key = sample_key_of(logits[v]);
      if (!sample_is_kept(&w, key) || (key & mask) != prefix) continue;
      weight[key >> shift & 255] += counting ? 1.0 : sample_weight_of(logits[v], top, temperature);
    }
    int bin = 255, last = -1; /* last: the lowest bin with weight, should rounding leave the target out of reach */
    for (; bin >= 0; bin--) {
      if (weight[bin] <= 0) continue;
      last = bin;
      if (above + weight[bin] >= target) break;
      above += weight[bin];
    }
    if (bin < 0) {
      bin = last < 0 ? 0 : last;
      above -= weight[bin];
    }
    prefix |= (uint32_t)bin << shift;
  }
  int64_t equal = 0;
  double each = 1;
  struct walk w = {within, 0};
  for (int64_t v = 0; v < V; v++) {
    const uint32_t key = sample_key_of(logits[v]);
    if (!sample_is_kept(&w, key) || key != prefix) continue;
    if (!counting) each = sample_weight_of(logits[v], top, temperature);
    equal++;
  }
  double ties = ceil((target - above) / each);
  if (!(ties >= 1)) ties = 1;
  return (struct cut){prefix, ties < (double)equal ? (int64_t)ties : equal};
}

void wn_sampling_init(wn_sampling *sampling) {
  WN_CHECK_OR(, WN_POINTER(sampling));
  *sampling = (wn_sampling){.temperature = 0.8, .top_p = 0.95};
}

wn_status wn_sample(wn_context *ctx, const float *logits, int64_t V, const wn_sampling *s, uint64_t step,
                    int32_t *token) {
  WN_CHECK_CALL(WN_POINTER(logits), WN_POINTER_AS("sampling", s), WN_POINTER(token));
  if (V < 1 || V > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: %lld logits; at least 1 is needed", (long long)V);
  if (!(s->temperature >= 0) || !isfinite(s->temperature))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: temperature is %g, expected a number >= 0", s->temperature);
  if (!(s->top_p > 0 && s->top_p <= 1))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: top_p is %g, expected above 0 and at most 1", s->top_p);
  if (!(s->min_p >= 0 && s->min_p <= 1))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: min_p is %g, expected 0 to 1", s->min_p);
  if (s->top_k < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: top_k is %d, expected at least 0", s->top_k);
  int64_t best = 0;
  for (int64_t v = 0; v < V; v++) {
    if (isnan(logits[v]) || logits[v] == INFINITY)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: logit %lld is %g", (long long)v, (double)logits[v]);
    if (logits[v] > logits[best]) best = v;
  }
  if (logits[best] == -INFINITY)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: all %lld logits are -inf: there is no token to draw", (long long)V);
  *token = (int32_t)best;
  if (s->temperature == 0) return WN_OK;
  const double top = (double)logits[best];
  struct cut kept = {0, V}; /* all */
  if (s->min_p > 0) kept.key = sample_key_of(logits[best] + (float)log(s->min_p));
  if (s->top_k > 0 && s->top_k < V) kept = sample_find_cut(logits, V, &kept, true, s->top_k, top, s->temperature, NULL);
  double first[256] = {0};
  double total = sample_total(logits, V, &kept, top, s->temperature, s->top_p < 1 ? first : NULL);
  if (s->top_p < 1) {
    kept = sample_find_cut(logits, V, &kept, false, s->top_p * total, top, s->temperature, first);
    total = sample_total(logits, V, &kept, top, s->temperature, NULL);
  }
  double left = total * wn_random_uniform(s->seed, WN_STREAM_SAMPLE, step, 0);
  struct walk w = {&kept, 0};
  for (int64_t v = 0; v < V; v++) {
    if (!sample_is_kept(&w, sample_key_of(logits[v]))) continue;
    const double weight = sample_weight_of(logits[v], top, s->temperature);
    if (weight <= 0) continue;
    *token = (int32_t)v; /* should rounding leave a rest, the last one */
    left -= weight;
    if (left < 0) break;
  }
  return WN_OK;
}
