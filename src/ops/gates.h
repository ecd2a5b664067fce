/* What a gate keeps of its key (wn_gate_share), its logarithm (wn_sigmoid) and its noise, on the host and on a device
 * alike. */
#ifndef WN_OPS_GATES_H
#define WN_OPS_GATES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/both.h"

/* The sum of e^(a c) over a < n, and its slope in c: a geometric series, by its first terms where c is so small that
 * the quotient of differences loses its digits. */
WN_BOTH double wn_gate_ages(double c, double n, double *slope) {
  if (fabs(n * c) < 1e-4) {
    const double ages = n * (n - 1) / 2, squares = ages * (2 * n - 1) / 3;
    *slope = ages + c * squares;
    return n + c * ages + c * c / 2 * squares;
  }
  const double whole = expm1(n * c), one = expm1(c);
  *slope = (n * (whole + 1) * one - whole * (one + 1)) / (one * one);
  return whole / one;
}

/* What a key with this log of a gate counts that `rows` rows of its document see, itself among them. */
WN_BOTH double wn_gate_kept(bool ages, double c, int64_t rows, double *slope) {
  if (ages) return wn_gate_ages(c, (double)rows, slope);
  return *slope = exp(c);
}

/* The logarithm of a gate, as wn_sigmoid rounds it; a gate's own from its logit. */
WN_BOTH double wn_gate_rounded(double c, bool doubles) {
  const double unit = doubles ? 0x1p-46 : 0x1p-26;
  return nearbyint(c / unit) * unit;
}
WN_BOTH double wn_gate_log(double logit, double floor, bool doubles) {
  const double c = fmin(logit, 0.0) - log1p(exp(-fabs(logit))), least = log(floor);
  return wn_gate_rounded(c < least ? least : c, doubles);
}

/* Noise of a gate's logit from a random word: the logarithm of odds, distributed logistically (wn_noise). */
WN_BOTH double wn_gate_noise(uint32_t word) {
  const double u = ((double)word + 0.5) / 4294967296.0;
  return log(u / (1 - u));
}

#endif
