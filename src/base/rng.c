/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * Ten rounds of two 32x32->64 multiplications; the constants are the paper's. */
#include "base/rng.h"

#include <math.h>

static void rng_draw(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t out[2]) {
  uint32_t w[4];
  wn_philox(wn_random_key(seed, stream), a, b, w);
  out[0] = (uint64_t)w[1] << 32 | w[0];
  out[1] = (uint64_t)w[3] << 32 | w[2];
}

uint64_t wn_random_u64(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  uint64_t r[2];
  rng_draw(seed, stream, a, b, r);
  return r[0];
}

uint64_t wn_random_below(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t n) {
  /* The high half of the product with a 64-bit number: the bias is below n / 2^64. */
  unsigned __int128 product = (unsigned __int128)wn_random_u64(seed, stream, a, b) * n;
  return (uint64_t)(product >> 64);
}

double wn_random_normal(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  uint64_t r[2];
  rng_draw(seed, stream, a, b, r);
  double u = (double)((r[0] >> 11) + 1) * 0x1p-53; /* in (0,1]: its logarithm is finite */
  double angle = 6.283185307179586476925 * ((double)(r[1] >> 11) * 0x1p-53);
  return sqrt(-2.0 * log(u)) * cos(angle);
}

uint64_t wn_random_permute(uint64_t seed, uint32_t stream, uint64_t a, uint64_t n, uint64_t i) {
  if (n <= 1) return 0;
  int half = 1; /* the network permutes [0, 4^half), which has at most 4n values */
  while (half < 32 && (uint64_t)1 << (2 * half) < n) half++;
  uint64_t mask = ((uint64_t)1 << half) - 1;
  do { /* follow the cycle until the value is below n: this keeps it a permutation of [0,n) */
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < 8; round++) {
      uint64_t next = left ^ (wn_random_u64(seed, stream | 0x80000000u, a, round << 32 | right) & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
