/* The table of rotary angles: computed once, in double, so that no kernel needs sine and cosine. */
#include <math.h>
#include "ops/ops.h"

static void rope_table_put(float *at, double angle, double magnitude) {
  at[0] = (float)(cos(angle) * magnitude);
  at[1] = (float)(sin(angle) * magnitude);
}

void wn_rope_table(float *table, int64_t P, int64_t D, double theta) {
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < D / 2; i++)
      rope_table_put(table + (p * (D / 2) + i) * 2, (double)p * pow(theta, -2.0 * (double)i / (double)D), 1);
}

void wn_rope_table_frequencies(float *table, int64_t P, int64_t n, const double *frequencies, double magnitude) {
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < n; i++) rope_table_put(table + (p * n + i) * 2, (double)p * frequencies[i], magnitude);
}
