/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * Ten rounds of two 32x32->64 multiplications; the constants are the paper's. */
#include "base/rng.h"

#include <math.h>

void wn_philox(uint64_t seed, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]) {
  uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
  uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* The stream is mixed into the key, so that all 128 counter bits are left for (a, b). The mixing (splitmix64's
 * finaliser) is a bijection: within a stream, different seeds never share a key. */
static uint64_t rng_stream_key(uint64_t seed, uint32_t stream) {
  uint64_t z = seed + (uint64_t)stream * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static void rng_draw(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t out[2]) {
  uint32_t w[4];
  wn_philox(rng_stream_key(seed, stream), a, b, w);
  out[0] = (uint64_t)w[1] << 32 | w[0];
  out[1] = (uint64_t)w[3] << 32 | w[2];
}

uint64_t wn_random_u64(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  uint64_t r[2];
  rng_draw(seed, stream, a, b, r);
  return r[0];
}

double wn_random_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  return (double)(wn_random_u64(seed, stream, a, b) >> 11) * 0x1p-53;
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
