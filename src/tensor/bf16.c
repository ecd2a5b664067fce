/* Conversions of whole arrays: bound by memory, 6 bytes an element. */
#include "tensor/bf16.h"

#include <string.h>

static uint16_t round_to_bf16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u; /* rounding must not turn a NaN into an infinity */
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

void wn_bf16_from_f32(int threads, int64_t n, const float *x, uint16_t *y) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    y[i] = round_to_bf16(bits);
  }
}

void wn_bf16_to_f32(int threads, int64_t n, const uint16_t *x, float *y) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = (uint32_t)x[i] << 16;
    memcpy(&y[i], &bits, sizeof bits);
  }
}
