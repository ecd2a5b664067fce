/* The table of rotary angles: computed in double, once, so that no kernel needs sines. */
#include <math.h>
#include "ops/ops.h"

void wn_rope_table(float *table, int64_t P, int64_t D, double theta) {
  for (int64_t p = 0; p < P; p++) {
    for (int64_t i = 0; i < D / 2; i++) {
      const double angle = (double)p * pow(theta, -2.0 * (double)i / (double)D);
      table[(p * (D / 2) + i) * 2] = (float)cos(angle);
      table[(p * (D / 2) + i) * 2 + 1] = (float)sin(angle);
    }
  }
}
