/* The statistics behind every error that is told (winnow/estimate.h), and the bootstrap of a saving. */
#ifndef WN_BASE_ESTIMATE_H
#define WN_BASE_ESTIMATE_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/estimate.h"

/* Neither value nor error. */
static const wn_estimate wn_estimate_unknown = {.value = NAN, .error = NAN, .low = NAN, .high = NAN};

/* Numbers of rows, `stride` doubles apart. */
struct wn_row_numbers {
  const double *sum;    /* [count] */
  const double *minus;  /* [count] subtracted from them; NULL: nothing */
  const double *weight; /* [count]; NULL: 1 each */
  int64_t count, stride;
};
/* sum (sum - minus) / sum weight, over rows with a weight above 0. */
wn_estimate wn_estimate_ratio(const struct wn_row_numbers *rows);

/* Row r of `read` rows spread evenly over `all`: the place in the whole that it takes. */
static inline uint64_t wn_spread_row(uint64_t r, uint64_t read, uint64_t all) {
  return (uint64_t)((double)r * ((double)all / (double)read));
}

/* The t with P(|T| > t) = 0.05 for Student's T of `freedom` degrees, above 0; they need not be whole. */
double wn_student_t95(double freedom);
/* P(T > t) for the same. */
double wn_student_tail(double freedom, double t);

/* As JSON: NAME_stderr, NAME_low and NAME_high, null where they are not known; the caller sets NAME. False: out of
 * memory. Reading leaves the number of rows as it is, and the value where NAME is no number. */
bool wn_estimate_set(json_t *object, const char *name, const wn_estimate *e);
void wn_estimate_get(const json_t *object, const char *name, wn_estimate *e);

/* The saving at a target: where a curve of budgets, in the order of falling totals, first exceeds the loss allowed, by
 * a line in the logarithm of the total between the two points around it; the last point where none exceeds it. Its
 * interval: the same for samples of the rows, drawn with replacement, with the budgets held fixed. The levels are
 * those of the expanded percentile interval (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015), which
 * allows for few rows as Student's t does. Draws are functions of a fixed seed, the sample and the place in it. Cost:
 * WN_SAMPLES * rows draws a point. */
enum { WN_SAMPLES = 1000 };
struct wn_saving {
  double freedom;               /* of the rows, as for Student's t; below 0: no point yet */
  double total;                 /* of the last point */
  double gap[WN_SAMPLES + 1];   /* the last point's loss above the target, at most 0; the last one: of all rows */
  double found[WN_SAMPLES + 1]; /* the saving; NAN: the target is not exceeded yet */
};
void wn_saving_init(struct wn_saving *s);
/* Adds a point. whole, total: tokens held without budgets, and by the point. excess [rows]: losses of each row above
 * those allowed. weight [rows]: its counted positions. */
void wn_saving_add(struct wn_saving *s, double whole, double total, const double *excess, const double *weight,
                   int64_t rows);
/* *open (may be NULL): the share of samples in which no point exceeds the target, so that their savings are lower
 * bounds. `last`: the saving of the last point. */
wn_estimate wn_saving_end(const struct wn_saving *s, double last, double *open);

#endif
