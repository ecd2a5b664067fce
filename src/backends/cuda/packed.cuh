// Decodes weights of a file's blocks (formats in io/gguf_types.c) one at a time, to bitwise the same floats as on the
// CPU, so multiplications and additions are not fused. Blocks need no alignment.
#ifndef WN_BACKENDS_CUDA_PACKED_CUH
#define WN_BACKENDS_CUDA_PACKED_CUH

#include "backends/cuda/device.cuh"

extern "C" {
#include "ops/packed.h"
}

static __device__ __forceinline__ float wn_packed_half(const uint8_t *p) {
  return __half2float(__ushort_as_half((uint16_t)(p[0] | p[1] << 8)));
}
static __device__ __forceinline__ uint32_t wn_packed_word(const uint8_t *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

// A weight of a block of 32 with four or five bits; q: the low four bits, fifth: the fifth bits.
static __device__ __forceinline__ int wn_packed_nibble(const uint8_t *q, uint32_t fifth, int i) {
  return (i < 16 ? q[i] & 15 : q[i - 16] >> 4) | (int)(fifth >> i & 1) << 4;
}
// Scale and minimum of group g, from the twelve bytes that hold eight of each.
static __device__ __forceinline__ void wn_packed_scales(const uint8_t *p, int g, int *scale, int *minimum) {
  if (g < 4) {
    *scale = p[g] & 63;
    *minimum = p[g + 4] & 63;
  } else {
    *scale = (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
    *minimum = p[g + 4] >> 4 | (p[g] >> 6) << 4;
  }
}

struct wn_packed_shape {
  int weights, bytes; // in a block
};
static __host__ __device__ __forceinline__ wn_packed_shape wn_packed_shape_of(int type) {
  switch (type) {
  case WN_GGUF_F32:
    return {1, 4};
  case WN_GGUF_F16:
  case WN_GGUF_BF16:
    return {1, 2};
  case WN_GGUF_Q8_0:
    return {32, 34};
  case WN_GGUF_Q4_0:
    return {32, 18};
  case WN_GGUF_Q4_1:
    return {32, 20};
  case WN_GGUF_Q5_0:
    return {32, 22};
  case WN_GGUF_Q5_1:
    return {32, 24};
  case WN_GGUF_Q4_K:
    return {256, 144};
  case WN_GGUF_Q5_K:
    return {256, 176};
  default:
    return {256, 210}; // Q6_K
  }
}

// Weight i of the block at p.
static __device__ __forceinline__ float wn_packed_weight(int type, const uint8_t *p, int i) {
  switch (type) {
  case WN_GGUF_F32:
    return __uint_as_float(wn_packed_word(p));
  case WN_GGUF_F16:
    return wn_packed_half(p);
  case WN_GGUF_BF16:
    return __uint_as_float((uint32_t)(p[0] | p[1] << 8) << 16);
  case WN_GGUF_Q8_0:
    return __fmul_rn(wn_packed_half(p), (float)(int8_t)p[2 + i]);
  case WN_GGUF_Q4_0: // avoids -0
    return __fadd_rn(__fmul_rn(wn_packed_half(p), (float)(wn_packed_nibble(p + 2, 0, i) - 8)), 0.0f);
  case WN_GGUF_Q4_1:
    return __fadd_rn(__fmul_rn(wn_packed_half(p), (float)wn_packed_nibble(p + 4, 0, i)), wn_packed_half(p + 2));
  case WN_GGUF_Q5_0:
    return __fadd_rn(__fmul_rn(wn_packed_half(p), (float)(wn_packed_nibble(p + 6, wn_packed_word(p + 2), i) - 16)),
                     0.0f);
  case WN_GGUF_Q5_1:
    return __fadd_rn(__fmul_rn(wn_packed_half(p), (float)wn_packed_nibble(p + 8, wn_packed_word(p + 4), i)),
                     wn_packed_half(p + 2));
  case WN_GGUF_Q4_K:
  case WN_GGUF_Q5_K: {
    const int g = i / 32, at = i % 32, five = type == WN_GGUF_Q5_K;
    const uint8_t *q = p + (five ? 48 : 16);
    int scale, minimum;
    wn_packed_scales(p + 4, g, &scale, &minimum);
    const int low = q[g / 2 * 32 + at] >> (g % 2 * 4) & 15, high = five ? (p[16 + at] >> g & 1) << 4 : 0;
    const float ds = __fmul_rn(wn_packed_half(p), (float)scale), mn = __fmul_rn(wn_packed_half(p + 2), (float)minimum);
    return __fadd_rn(__fmul_rn(ds, (float)(low | high)), -mn);
  }
  default: { // Q6_K
    const int part = i / 128, run = i / 32 % 4, at = i % 32;
    const int low = p[part * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
    const int high = p[128 + part * 32 + at] >> (run * 2) & 3;
    return __fmul_rn(__fmul_rn(wn_packed_half(p + 208), (float)(int8_t)p[192 + i / 16]),
                     (float)((low | high << 4) - 32));
  }
  }
}

// A matrix of up to three runs of rows, each with its own type, as an argument of kernels.
struct wn_packed_matrix {
  int count, type[WN_PACKED_PARTS];
  int64_t rows[WN_PACKED_PARTS];
  const uint8_t *data[WN_PACKED_PARTS];
};
static inline wn_packed_matrix wn_packed_matrix_of(const struct wn_packed *p) {
  wn_packed_matrix m;
  m.count = p->count;
  for (int i = 0; i < WN_PACKED_PARTS; i++) {
    m.type[i] = i < p->count ? (int)p->part[i].type : 0;
    m.rows[i] = i < p->count ? p->part[i].rows : 0;
    m.data[i] = i < p->count ? static_cast<const uint8_t *>(p->part[i].data) : nullptr;
  }
  return m;
}
// Row n of K weights: its type and its address.
static __device__ __forceinline__ const uint8_t *wn_packed_at(const wn_packed_matrix &m, int64_t K, int64_t n,
                                                              int *type) {
  int i = 0;
  while (i < m.count - 1 && n >= m.rows[i]) n -= m.rows[i++];
  *type = m.type[i];
  const wn_packed_shape s = wn_packed_shape_of(m.type[i]);
  return m.data[i] + n * (K / s.weights * s.bytes);
}
static __device__ __forceinline__ float wn_packed_element(int type, const uint8_t *row, int64_t k) {
  const wn_packed_shape s = wn_packed_shape_of(type);
  return wn_packed_weight(type, row + k / s.weights * s.bytes, (int)(k % s.weights));
}

#endif
