/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A number is a pure function of (seed, stream,
 * counter), so the number of threads, resuming and the backend cannot change it. */
#ifndef WN_BASE_RNG_H
#define WN_BASE_RNG_H

#include <stdint.h>
#include "base/both.h"

/* Streams: what the numbers are for. Each stream has its own counters. */
enum wn_stream {
  WN_STREAM_INIT = 1,
  WN_STREAM_DATA = 2,
  WN_STREAM_DROPOUT = 3,
  WN_STREAM_SAMPLE = 4,
  WN_STREAM_TASK = 5,
  WN_STREAM_SPLIT = 6,
  WN_STREAM_TEST = 7,
  WN_STREAM_EVICT = 8,
  WN_STREAM_NOISE = 9,
  WN_STREAM_BUDGET = 10,
  WN_STREAM_SAMPLE_ROWS = 11,
  WN_STREAM_SKETCH = 12
};

WN_BOTH void wn_philox(uint64_t seed, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]) {
  uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
  uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1, c3 = (uint32_t)p0;
    c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
/* The stream is mixed into the key, so that all 128 counter bits are left for (a, b). The mixing (splitmix64's
 * finaliser) is a bijection: within a stream, different seeds never share a key. */
WN_BOTH uint64_t wn_random_key(uint64_t seed, uint32_t stream) {
  uint64_t z = seed + (uint64_t)stream * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
/* One 64-bit number for (seed, stream, a, b). */
uint64_t wn_random_u64(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);
/* [0,1), 53 bits. */
WN_BOTH double wn_random_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  uint32_t w[4];
  wn_philox(wn_random_key(seed, stream), a, b, w);
  return (double)(((uint64_t)w[1] << 32 | w[0]) >> 11) * 0x1p-53;
}
uint64_t wn_random_below(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t n); /* [0,n), n >= 1 */
double wn_random_normal(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);              /* Box-Muller */
/* Element i of a seeded permutation of [0,n): a Feistel network with cycle walking, O(1) memory. */
uint64_t wn_random_permute(uint64_t seed, uint32_t stream, uint64_t a, uint64_t n, uint64_t i);

#endif
