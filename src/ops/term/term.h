/* What the headers of terms share. A header in this folder has a term's mathematics, forward and backward, in plain C
 * that compiles into the reference (double), the CPU kernels of every instruction set, and CUDA. */
#ifndef WN_OPS_TERM_TERM_H
#define WN_OPS_TERM_TERM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/both.h"

/* Inline also in functions for an instruction set. */
#define WN_TERM WN_BOTH_INLINE

/* Whole numbers from first to last; none if last < first. */
struct wn_interval {
  int64_t first, last;
};

/* exp(x) for -87 <= x <= 20. */
WN_TERM float wn_term_exp(float x) {
  const float round = 12582912.0f, k = x * 1.44269504f + round - round;
  const float r = x - k * 0.693359375f + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union {
    uint32_t bits;
    float value;
  } power;
  power.bits = (uint32_t)((int32_t)k + 127) << 23;
  return p * power.value;
}

#endif
