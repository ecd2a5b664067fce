/* Finds NaN and infinity in tensors in their storage type. A number of 16 or 32 bits is not finite if all bits of its
 * exponent are 1. In a quantised block only the scales are checked: whole numbers times finite scales are finite. Cost:
 * one pass over the numbers, or over the scales of every block, in loops that compilers vectorise: about as fast as
 * memory (docs/real-models.md has the figures). */
#include "io/finite.h"

#include <string.h>

enum { RUN = 4096 }; /* numbers checked before looking at the result */

/* Byte offsets of the scales, which are half floats, in a block. */
static const struct {
  int count, at[2];
} finite_scales[WN_GGUF_TYPE_COUNT] = {
    [WN_GGUF_Q8_0] = {1, {0}},    [WN_GGUF_Q4_0] = {1, {0}},    [WN_GGUF_Q4_1] = {2, {0, 2}},
    [WN_GGUF_Q5_0] = {1, {0}},    [WN_GGUF_Q5_1] = {2, {0, 2}}, [WN_GGUF_Q4_K] = {2, {0, 2}},
    [WN_GGUF_Q5_K] = {2, {0, 2}}, [WN_GGUF_Q6_K] = {1, {208}},
};

/* Adding the lowest exponent bit overflows into the cleared sign bit exactly if all exponent bits are 1. */
static bool finite_run16(const uint8_t *p, size_t count, uint16_t exponent) {
  const uint16_t lowest = (uint16_t)(exponent & -exponent);
  uint16_t carry = 0;
  for (size_t i = 0; i < count; i++) {
    uint16_t x;
    memcpy(&x, p + i * sizeof x, sizeof x);
    carry |= (uint16_t)((x & exponent) + lowest);
  }
  return !(carry & 0x8000);
}

static bool finite_run32(const uint8_t *p, size_t count) {
  const uint32_t exponent = 0x7f800000, lowest = 0x00800000;
  uint32_t carry = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t x;
    memcpy(&x, p + i * sizeof x, sizeof x);
    carry |= (x & exponent) + lowest;
  }
  return !(carry & 0x80000000);
}

static bool finite_blocks(const uint8_t *p, size_t count, size_t bytes, int at) {
  uint16_t carry = 0;
  for (size_t i = 0; i < count; i++) {
    uint16_t x;
    memcpy(&x, p + i * bytes + at, sizeof x);
    carry |= (uint16_t)((x & 0x7c00) + 0x0400);
  }
  return !(carry & 0x8000);
}

static bool finite_run(wn_gguf_type type, const uint8_t *p, size_t count) {
  switch (type) {
  case WN_GGUF_F32:
    return finite_run32(p, count);
  case WN_GGUF_F16:
    return finite_run16(p, count, 0x7c00);
  case WN_GGUF_BF16:
    return finite_run16(p, count, 0x7f80);
  default:
    for (int s = 0; s < finite_scales[type].count; s++)
      if (!finite_blocks(p, count, wn_gguf_block_bytes(type), finite_scales[type].at[s])) return false;
    return true;
  }
}

int64_t wn_finite_scan(wn_gguf_type type, const void *data, size_t bytes) {
  const size_t block = wn_gguf_block_bytes(type), count = bytes / block;
  for (size_t i = 0; i < count; i += RUN) {
    const uint8_t *p = (const uint8_t *)data + i * block;
    const size_t n = count - i < RUN ? count - i : RUN;
    if (finite_run(type, p, n)) continue;
    for (size_t k = 0; k < n; k++)
      if (!finite_run(type, p + k * block, 1)) return (int64_t)(i + k) * wn_gguf_block_weights(type);
  }
  return -1;
}
