/* T5's objective: spans of a text are dropped and must be predicted. */
#ifndef WN_DATA_SPAN_CORRUPTION_H
#define WN_DATA_SPAN_CORRUPTION_H

#include "winnow/data.h"

/* Of n >= 2 tokens: how many are dropped, and in how many spans. */
void wn_span_corruption_noise(int64_t n, double density, double mean_span, int64_t *noise, int64_t *spans);
/* The longest text whose inputs fit in input_length >= 2 tokens, and the length of its targets. */
void wn_span_corruption_lengths(int64_t input_length, double density, double mean_span, int64_t *text, int64_t *target);

struct wn_span_corruption {
  double density, mean_span;
  int32_t vocab_size; /* its last entries are the sentinels: wn_span_sentinel */
  int32_t end;        /* ends inputs and targets; -1: the next sentinel is used */
};
struct wn_span_row {
  int32_t *inputs, *targets;         /* arrays of the caller: [n - noise + spans + 1] and [noise + spans + 1] */
  int64_t input_count, target_count; /* their lengths, set by the call */
};
/* Drops spans of text [n], n >= 2, as determined by (seed, row); row: the sequence's number. */
void wn_span_corrupt(const struct wn_span_corruption *c, uint64_t seed, uint64_t row, const int32_t *text, int64_t n,
                     struct wn_span_row *out);

#endif
