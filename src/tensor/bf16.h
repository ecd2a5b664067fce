/* bf16 as a storage type: the upper half of a float, rounded to nearest even. */
#ifndef WN_TENSOR_BF16_H
#define WN_TENSOR_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t wn_bf16_round(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u; /* rounding must not turn a NaN into an infinity */
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
static inline float wn_bf16_value(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

void wn_bf16_from_f32(int threads, int64_t n, const float *x, uint16_t *y); /* [n] each */
void wn_bf16_to_f32(int threads, int64_t n, const uint16_t *x, float *y);

#endif
