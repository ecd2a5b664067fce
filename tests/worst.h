/* The worst of many errors. */
#ifndef WN_TESTS_WORST_H
#define WN_TESTS_WORST_H

#include <math.h>
#include <stdbool.h>

/* Is an error of d worse than the worst so far? A NaN is, and nothing is worse. */
static inline bool worse(double d, double worst) {
  return !(d <= worst) && !isnan(worst);
}

#endif
