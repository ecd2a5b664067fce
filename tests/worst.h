/* The largest of many errors. */
#ifndef WN_TESTS_WORST_H
#define WN_TESTS_WORST_H

#include <math.h>
#include <stdbool.h>

/* Whether error d is larger than the largest so far. NaN counts as the largest. */
static inline bool worse(double d, double worst) {
  return !(d <= worst) && !isnan(worst);
}

#endif
