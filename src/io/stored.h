/* How a cache stores rows of keys or values: as the computation has them (WN_GGUF_F32, 0), or in F16, Q8_0 or Q4_0 as
 * GGUF's tensors have them (io/gguf_types.c). A row has whole blocks. Here is what the host and devices read alike:
 * bytes, and a single number; wn_gguf_store and wn_gguf_decode write and read rows. */
#ifndef WN_IO_STORED_H
#define WN_IO_STORED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/both.h"
#include "winnow/gguf.h"
#include "winnow/tensor.h"

/* The types in blocks: 32 numbers with one half float in front, their scale. */
enum { WN_STORED_BLOCK = 32, WN_STORED_Q8_0 = 34, WN_STORED_Q4_0 = 18 };

WN_BOTH_INLINE bool wn_stored_blocks(wn_gguf_type type) {
  return type == WN_GGUF_Q8_0 || type == WN_GGUF_Q4_0;
}

/* Bytes of n numbers; dtype: what F32 (0) stands for. */
WN_BOTH_INLINE size_t wn_stored_bytes(wn_gguf_type type, wn_dtype dtype, int64_t n) {
  const size_t blocks = (size_t)(n / WN_STORED_BLOCK);
  switch (type) {
  case WN_GGUF_F16:
    return (size_t)n * sizeof(uint16_t);
  case WN_GGUF_Q8_0:
    return blocks * WN_STORED_Q8_0;
  case WN_GGUF_Q4_0:
    return blocks * WN_STORED_Q4_0;
  default:
    return (size_t)n * (dtype == WN_F64 ? sizeof(double) : sizeof(float));
  }
}

WN_BOTH_INLINE float wn_stored_half(uint16_t x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x));
#else
  /* the exponent's offset is corrected by a product, which also makes subnormal numbers right */
  uint32_t bits = (uint32_t)(x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  memcpy(&bits, &value, sizeof bits);
  if ((x & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u; /* infinity, NaN */
  bits |= sign;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

/* Number i of rows that begin with a block. */
WN_BOTH_INLINE double wn_stored_number(wn_gguf_type type, wn_dtype dtype, const void *data, int64_t i) {
  const int64_t at = i % WN_STORED_BLOCK;
  const uint8_t *block = (const uint8_t *)data + wn_stored_bytes(type, dtype, i - at);
  uint16_t d;
  switch (type) {
  case WN_GGUF_F16:
    return (double)wn_stored_half(((const uint16_t *)data)[i]);
  case WN_GGUF_Q8_0:
    memcpy(&d, block, sizeof d);
    return (double)(wn_stored_half(d) * (float)(int8_t)block[2 + at]);
  case WN_GGUF_Q4_0:
    memcpy(&d, block, sizeof d);
    return (double)(wn_stored_half(d) * (float)((block[2 + at % 16] >> at / 16 * 4 & 15) - 8));
  default:
    return dtype == WN_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
  }
}

/* Numbers first..first+n-1 of such rows, to out [n]. */
WN_BOTH_INLINE void wn_stored_numbers(wn_gguf_type type, wn_dtype dtype, const void *data, int64_t first, int64_t n,
                                      double *out) {
  if (type == WN_GGUF_F16) {
    const uint16_t *x = (const uint16_t *)data + first;
    for (int64_t i = 0; i < n; i++) out[i] = (double)wn_stored_half(x[i]);
  } else if (!wn_stored_blocks(type) && dtype == WN_F32) {
    const float *x = (const float *)data + first;
    for (int64_t i = 0; i < n; i++) out[i] = (double)x[i];
  } else {
    for (int64_t i = 0; i < n; i++) out[i] = wn_stored_number(type, dtype, data, first + i);
  }
}

#endif
