/* Span corruption: Raffel et al. 2020, §3.1.4 and figure 2, and their program's random_spans_noise_mask.
 *
 *   text     a b c d e f g h i              noise = round(n * density), spans = round(noise / mean_span)
 *   inputs   a b <0> e f g <1> |            a sentinel replaces each dropped span; | is the end
 *   targets  <0> c d <1> h i |              sentinels with what was dropped; | the end
 *
 * Kept and dropped stretches alternate; the first is kept, the last dropped. The lengths of each kind are a uniformly
 * drawn composition of their total. The end is the next sentinel, as in the paper's figure, or a token of its own, as
 * in their program. Everything is a function of (seed, row), row being the sequence's number. Cost: at most n random
 * numbers per sequence. */
#include "data/span_corruption.h"

#include <math.h>
#include "base/rng.h"

void wn_span_corruption_noise(int64_t n, double density, double mean_span, int64_t *noise, int64_t *spans) {
  int64_t k = (int64_t)rint((double)n * density);
  k = k < 1 ? 1 : k > n - 1 ? n - 1 : k;
  int64_t s = (int64_t)rint((double)k / mean_span);
  s = s < 1 ? 1 : s;
  if (s > n - k) s = n - k; /* each span needs a kept token before it */
  *noise = k;
  *spans = s;
}

/* The length of the inputs made from n tokens: never decreases as n grows. */
static int64_t span_input_length(int64_t n, double density, double mean_span) {
  int64_t noise, spans;
  wn_span_corruption_noise(n, density, mean_span, &noise, &spans);
  return n - noise + spans + 1;
}

void wn_span_corruption_lengths(int64_t input_length, double density, double mean_span, int64_t *text,
                                int64_t *target) {
  int64_t noise, spans, n = input_length < 2 ? 2 : input_length;
  while (span_input_length(n + 1, density, mean_span) <= input_length) n++;
  /* A span of one token saves nothing, since its sentinel takes its place, and the end takes one more token. */
  while (n > 2 && span_input_length(n, density, mean_span) > input_length) n--;
  wn_span_corruption_noise(n, density, mean_span, &noise, &spans);
  if (density == 0.5 && noise + spans + 1 > input_length && n > 2) n--; /* as T5's program: equal lengths */
  wn_span_corruption_noise(n, density, mean_span, &noise, &spans);
  *text = n;
  *target = noise + spans + 1;
}

/* The rest of a composition: `items` in `parts` parts, none empty. */
struct composition {
  int64_t items, parts;
  uint64_t drawn;
};

/* Draws the next part: each gap between two items is a cut with its conditional probability. */
static int64_t next_part(struct composition *c, uint64_t seed, uint64_t row, uint64_t which) {
  int64_t length = 1;
  if (c->parts == 1) length = c->items;
  while (c->parts > 1) {
    const uint64_t places = (uint64_t)(c->items - length), cuts = (uint64_t)(c->parts - 1);
    if (wn_random_below(seed, WN_STREAM_NOISE, row, 2 * c->drawn++ + which, places) < cuts) break;
    length++;
  }
  c->items -= length;
  c->parts--;
  return length;
}

int32_t wn_span_sentinel(int32_t vocab_size, int32_t n) {
  return vocab_size - 1 - n;
}

int32_t wn_span_sentinel_number(int32_t vocab_size, int32_t sentinels, int32_t token) {
  return token >= vocab_size - sentinels ? vocab_size - 1 - token : -1;
}

void wn_span_corrupt(const struct wn_span_corruption *c, uint64_t seed, uint64_t row, const int32_t *text, int64_t n,
                     struct wn_span_row *out) {
  int64_t noise, spans, at = 0, i = 0, t = 0;
  int32_t *inputs = out->inputs, *targets = out->targets;
  wn_span_corruption_noise(n, c->density, c->mean_span, &noise, &spans);
  struct composition kept = {.items = n - noise, .parts = spans}, dropped = {.items = noise, .parts = spans};
  for (int64_t s = 0; s < spans; s++) {
    for (int64_t k = next_part(&kept, seed, row, 0); k > 0; k--) inputs[i++] = text[at++];
    inputs[i++] = targets[t++] = wn_span_sentinel(c->vocab_size, (int32_t)s);
    for (int64_t k = next_part(&dropped, seed, row, 1); k > 0; k--) targets[t++] = text[at++];
  }
  inputs[i++] = targets[t++] = c->end >= 0 ? c->end : wn_span_sentinel(c->vocab_size, (int32_t)spans);
  out->input_count = i;
  out->target_count = t;
}
