// Counter-based random numbers, the same numbers as on the CPU (base/rng.c): Philox4x32-10, and draws from a stream.
#ifndef WN_BACKENDS_CUDA_PHILOX_CUH
#define WN_BACKENDS_CUDA_PHILOX_CUH

#include "backends/cuda/device.cuh"

static __device__ __forceinline__ void wn_cuda_philox(uint64_t seed, uint64_t counter_hi, uint64_t counter_lo,
                                                      uint32_t (&out)[4]) {
  uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
  uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// Like wn_random_uniform.
static __device__ __forceinline__ double wn_cuda_uniform(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b) {
  uint64_t z = seed + (uint64_t)stream * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  uint32_t word[4];
  wn_cuda_philox(z ^ (z >> 31), a, b, word);
  return (double)(((uint64_t)word[1] << 32 | word[0]) >> 11) * 0x1p-53;
}

#endif
