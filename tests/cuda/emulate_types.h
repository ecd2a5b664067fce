/* CUDA's vector types and 16-bit floats: storage and conversions, which is all that winnow's kernels need. */
#ifndef TESTS_CUDA_EMULATE_TYPES_H
#define TESTS_CUDA_EMULATE_TYPES_H

#include <stdint.h>
#include <string.h>

#define EMULATE_VECTORS(base, type, align2, align4)                                                                    \
  struct alignas(align2) base##2 {                                                                                     \
    type x, y;                                                                                                         \
  };                                                                                                                   \
  struct base##3 {                                                                                                     \
    type x, y, z;                                                                                                      \
  };                                                                                                                   \
  struct alignas(align4) base##4 {                                                                                     \
    type x, y, z, w;                                                                                                   \
  };                                                                                                                   \
  inline base##2 make_##base##2(type x, type y) {                                                                      \
    return {x, y};                                                                                                     \
  }                                                                                                                    \
  inline base##4 make_##base##4(type x, type y, type z, type w) {                                                      \
    return {x, y, z, w};                                                                                               \
  }
EMULATE_VECTORS(float, float, 8, 16)
EMULATE_VECTORS(int, int, 8, 16)
EMULATE_VECTORS(uint, uint32_t, 8, 16)
EMULATE_VECTORS(short, short, 4, 8)
EMULATE_VECTORS(ushort, unsigned short, 4, 8)
EMULATE_VECTORS(char, signed char, 2, 4)
EMULATE_VECTORS(uchar, unsigned char, 2, 4)
struct alignas(16) double2 {
  double x, y;
};

namespace emulate {
uint16_t half_bits(float x); /* to nearest, ties to even */
float half_value(uint16_t bits);
inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* the GPU's own NaN */
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
inline float bf16_value(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
} // namespace emulate

struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __half __float2half_rn(float x) {
  return {emulate::half_bits(x)};
}
inline __half __float2half(float x) {
  return {emulate::half_bits(x)};
}
inline float __half2float(__half x) {
  return emulate::half_value(x.bits);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {emulate::bf16_bits(x)};
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return {emulate::bf16_bits(x)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return emulate::bf16_value(x.bits);
}
inline uint16_t __half_as_ushort(__half x) {
  return x.bits;
}
inline __half __ushort_as_half(uint16_t bits) {
  return {bits};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) {
  return {bits};
}

inline uint32_t wn_pack_bf16(float low, float high) {
  return emulate::bf16_bits(low) | (uint32_t)emulate::bf16_bits(high) << 16;
}
inline uint32_t wn_pack_f16(float low, float high) {
  return emulate::half_bits(low) | (uint32_t)emulate::half_bits(high) << 16;
}
inline uint16_t wn_relu_f16(float x) {
  return x > 0 ? emulate::half_bits(x < 65504.0f ? x : 65504.0f) : x != x ? (uint16_t)0x7fff : (uint16_t)0;
}
inline uint32_t wn_pack_relu_f16(float low, float high) {
  return wn_relu_f16(low) | (uint32_t)wn_relu_f16(high) << 16;
}
inline float2 wn_unpack_bf16(uint32_t x) {
  return {emulate::bf16_value((uint16_t)x), emulate::bf16_value((uint16_t)(x >> 16))};
}
inline float2 wn_unpack_f16(uint32_t x) {
  return {emulate::half_value((uint16_t)x), emulate::half_value((uint16_t)(x >> 16))};
}

#endif
