/* The square-root mask: Fernandez, Unsal, "How Much Attention is 'All You Need'?". Besides the `buffer` nearest keys, a
 * row sees those whose distance, counted from the end of the buffer, is floor((m / density)^2) for some m >= 1. */
#ifndef WN_OPS_TERM_SQUARE_ROOT_H
#define WN_OPS_TERM_SQUARE_ROOT_H

#include "ops/term/term.h"

/* The m-th distance, counted from the end of the buffer. */
WN_TERM int64_t square_root_distance(int64_t m, double density) {
  const double ratio = (double)m / density;
  return (int64_t)(ratio * ratio);
}
/* The first m whose distance may be `far`. */
WN_TERM int64_t square_root_near(int64_t far, double density) {
  const int64_t near = (int64_t)(density * sqrt((double)far));
  return near > 1 ? near - 1 : 1;
}
WN_TERM bool square_root_sees(int64_t buffer, double density, int64_t x) {
  const int64_t far = x - buffer + 1;
  if (x < buffer) return true;
  int64_t m = square_root_near(far, density);
  while (square_root_distance(m, density) < far) m++;
  return square_root_distance(m, density) == far;
}

#endif
