/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A number is a pure function of (seed, stream,
 * counter), so the number of threads, resuming and the backend cannot change it. */
#ifndef WN_BASE_RNG_H
#define WN_BASE_RNG_H

#include <stdint.h>

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
  WN_STREAM_BUDGET = 10
};

void wn_philox(uint64_t seed, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);
/* One 64-bit number for (seed, stream, a, b). */
uint64_t wn_random_u64(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);
double wn_random_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);             /* [0,1), 53 bits */
uint64_t wn_random_below(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint64_t n); /* [0,n), n >= 1 */
double wn_random_normal(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b);              /* Box-Muller */
/* Element i of a seeded permutation of [0,n): a Feistel network with cycle walking, O(1) memory. */
uint64_t wn_random_permute(uint64_t seed, uint32_t stream, uint64_t a, uint64_t n, uint64_t i);

#endif
