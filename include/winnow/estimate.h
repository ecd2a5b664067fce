/* winnow: figures with their errors. The unit is a row (a block of the context, or a document), never a token: tokens
 * of a row are not independent. A mean over tokens is a ratio of two sums over rows,
 *   R = sum_i y_i / sum_i w_i     (y_i: a row's summed losses; w_i: its counted positions)
 * and its standard error is the jackknife's, to first order
 *   e^2 = (n-1)/n sum_i (e_i / (1 - w_i/W))^2 / W^2,     e_i = y_i - R w_i,  W = sum_i w_i
 * which for rows of equal length is the sample's standard deviation over the root of n. The 95% interval is R -+ t e,
 * with Student's t of (sum w^2)^2 / sum w^4 - 1 degrees of freedom: n - 1 for rows of equal length, fewer where some
 * are much longer. Rows that are consecutive pieces of one document count as independent; where they are not, errors
 * are too small. */
#ifndef WINNOW_ESTIMATE_H
#define WINNOW_ESTIMATE_H

#include <stdint.h>
#include "winnow/status.h"

WN_STABLE_BEGIN

/* The sums of one row. */
typedef struct wn_row_sums {
  double loss;   /* of its counted positions, nats */
  double tokens; /* how many positions count */
  double hits;   /* of them: arg-max equals target */
} wn_row_sums;

/* A figure and its error. */
typedef struct wn_estimate {
  double value, error; /* error: standard error; NAN: not known, as for one row */
  double low, high;    /* the 95% interval; NAN likewise */
  uint64_t rows;       /* that count: those without a position do not */
} wn_estimate;

/* The mean loss and the accuracy over the positions of rows [count]. The interval of a perplexity is exp of the
 * loss's. */
void wn_rows_loss(const wn_row_sums *rows, int64_t count, wn_estimate *out);
void wn_rows_accuracy(const wn_row_sums *rows, int64_t count, wn_estimate *out);
/* The mean loss of rows [count] minus that of `base` [count], paired: row i of both has the same positions. Its error
 * is smaller than that of two separate means, because what makes a row hard is hard for both. WN_ERR_ARGUMENT: a row of
 * the one has another number of positions than in the other. */
wn_status wn_rows_difference(const wn_row_sums *rows, const wn_row_sums *base, int64_t count, wn_estimate *out);

/* What the interval of a difference says. */
typedef enum wn_verdict {
  WN_VERDICT_OPEN,  /* "open": it contains 0, and reaches beyond the margin; or there is no interval */
  WN_VERDICT_EQUAL, /* "equal": it lies within the margin, on both sides of 0 */
  WN_VERDICT_LOWER, /* "lower": it lies below 0, and not within the margin */
  WN_VERDICT_HIGHER /* "higher": it lies above 0, and not within the margin */
} wn_verdict;
/* margin: the largest difference that does not matter, in the difference's unit; not negative. */
wn_verdict wn_estimate_verdict(const wn_estimate *difference, double margin);
const char *wn_verdict_name(wn_verdict verdict); /* "?": there is none of that number */

WN_API_END
#endif
