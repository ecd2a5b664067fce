/* Drawing a token: min-p, then temperature, then top-k, then top-p (Holtzman et al. 2020) on what is left, in the usual
 * order.
 *
 * Nothing is sorted and nothing allocated. The cut is found digit by digit in the logits' bit patterns, changed so that
 * they keep the order: four passes over [V] with a histogram of 256 bins. Among equal logits the lowest ids are
 * kept. */
#include "ops/sample.h"

#include <math.h>
#include <string.h>

#include "backends/ref/ref.h"
#include "base/rng.h"

wn_status wn_ref_adjust_forward(const struct wn_exec *exec, const struct wn_adjust *a) {
  const float repeat = (float)a->repeat;
  float *y = a->y;
  (void)exec;
  if (y != a->x) memcpy(y, a->x, (size_t)a->V * sizeof *y);
  for (int64_t v = 0; a->allowed && v < a->n; v++)
    if (v >= a->allowed_count || !a->allowed[v]) y[v] = -INFINITY;
  for (int64_t v = 0; a->seen && v < a->n; v++)
    if (a->seen[v]) y[v] = y[v] > 0 ? y[v] / repeat : y[v] * repeat;
  for (int64_t v = 0; a->times && v < a->n; v++)
    if (a->times[v] > 0) y[v] -= (float)(a->presence + a->frequency * a->times[v]);
  for (int64_t i = 0; i < a->biases; i++) y[a->bias_ids[i]] += a->bias[i];
  return WN_OK;
}

/* A float's bits as an unsigned number with the same order. */
static uint32_t sample_key_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* What is kept: keys above `key`, and the first `ties` (by id) of the keys equal to it. */
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

/* The sum of the kept weights; by_bin [256] (or NULL): the same by the first digit of the key. */
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

/* The smallest set of largest logits within `within` whose weights (counting: each 1) reach `target`. first [256]: the
 * weights by the first digit, if known, or NULL. */
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
    int bin = 255, last = -1; /* last: the lowest bin with weight, used if rounding leaves the target out of reach */
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

static double sample_log_probability(const float *logits, int64_t V, int32_t id) {
  double top = -INFINITY, sum = 0;
  for (int64_t v = 0; v < V; v++) top = fmax(top, (double)logits[v]);
  for (int64_t v = 0; v < V; v++) sum += exp((double)logits[v] - top);
  return (double)logits[id] - top - log(sum);
}

/* Draws with temperature > 0; `best`: the largest logit. */
static int32_t sample_draw(const struct wn_sample_row *s, int64_t best) {
  const float *logits = s->logits;
  const int64_t V = s->V;
  const double top = (double)logits[best];
  int64_t token = best;
  struct cut kept = {0, V}; /* all */
  if (s->min_p > 0) kept.key = sample_key_of(logits[best] + (float)log(s->min_p));
  if (s->top_k > 0 && s->top_k < V)
    kept = sample_find_cut(logits, V, &kept, true, (double)s->top_k, top, s->temperature, NULL);
  double first[256] = {0};
  double total = sample_total(logits, V, &kept, top, s->temperature, s->top_p < 1 ? first : NULL);
  if (s->top_p < 1) {
    kept = sample_find_cut(logits, V, &kept, false, s->top_p * total, top, s->temperature, first);
    total = sample_total(logits, V, &kept, top, s->temperature, NULL);
  }
  double left = total * wn_random_uniform(s->seed, WN_STREAM_SAMPLE, s->step, 0);
  struct walk w = {&kept, 0};
  for (int64_t v = 0; v < V; v++) {
    if (!sample_is_kept(&w, sample_key_of(logits[v]))) continue;
    const double weight = sample_weight_of(logits[v], top, s->temperature);
    if (weight <= 0) continue;
    token = v; /* the last one, if rounding leaves a rest */
    left -= weight;
    if (left < 0) break;
  }
  return (int32_t)token;
}

static struct wn_drawn sample_row(const struct wn_sample_row *s) {
  const float *logits = s->logits;
  int64_t best = 0;
  for (int64_t v = 0; v < s->V; v++) {
    if (isnan(logits[v]) || logits[v] == INFINITY) return (struct wn_drawn){.token = (int32_t)v, .bad = 1};
    if (logits[v] > logits[best]) best = v;
  }
  struct wn_drawn drawn = {.token = (int32_t)best, .bad = logits[best] == -INFINITY ? 2 : 0};
  if (drawn.bad) return drawn;
  if (s->temperature > 0) drawn.token = sample_draw(s, best);
  if (s->log_probability) drawn.log_probability = sample_log_probability(logits, s->V, drawn.token);
  return drawn;
}

wn_status wn_ref_sample_forward(const struct wn_exec *exec, const struct wn_sample *s) {
  (void)exec;
  for (int64_t r = 0; r < s->rows; r++) s->drawn[r] = sample_row(&s->row[r]);
  return WN_OK;
}
