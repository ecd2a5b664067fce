/* T5's objective: spans of a text are dropped and asked for. */
#ifndef WN_DATA_SPAN_CORRUPTION_H
#define WN_DATA_SPAN_CORRUPTION_H

#include "winnow/data.h"

/* Of n >= 2 tokens: how many are dropped, in how many spans. */
void wn_span_corruption_noise(int64_t n, double density, double mean_span, int64_t *noise, int64_t *spans);
/* The longest text whose inputs fit in input_length >= 2 tokens, and how long its targets are. */
void wn_span_corruption_lengths(int64_t input_length, double density, double mean_span, int64_t *text, int64_t *target);

struct wn_span_corruption {
  double density, mean_span;
  int32_t vocab_size; /* the last entries are the sentinels: wn_span_sentinel */
  int32_t end;        /* the token that ends inputs and targets; -1: the sentinel after the last span's */
};
struct wn_span_row {
  int32_t *inputs, *targets;         /* [n - noise + spans + 1] and [noise + spans + 1]: room, given */
  int64_t input_count, target_count; /* these lengths, set */
};
/* Drops spans of text [n], n >= 2, as (seed, row) has it. */
void wn_span_corrupt(const struct wn_span_corruption *c, uint64_t seed, uint64_t row, const int32_t *text, int64_t n,
                     struct wn_span_row *out);

#endif
