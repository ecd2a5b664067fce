/* Decodes the block formats of GGUF tensors. d and m are half floats; q are unsigned unless noted.
 *   Q8_0  32: d, 32 signed bytes                       w = d q
 *   Q4_0  32: d, 16 bytes of two q: i and i+16         w = d (q - 8)
 *   Q4_1  32: d, m, the same                           w = d q + m
 *   Q5_0  32: d, 32 fifth bits, as Q4_0                w = d (q - 16)
 *   Q5_1  32: d, m, fifth bits, the same               w = d q + m
 *   Q4_K 256: d, m, 8 scales s and minima n of 6 bits, 4 x 32 bytes of two q (groups 2k and 2k+1)  w = d s q - m n
 *   Q5_K 256: d, m, scales, 32 bytes of fifth bits (bit g: group g), the same                      w = d s q - m n
 *   Q6_K 256: lower four bits, upper two bits, 16 signed scales s, d                               w = d s (q - 32) */
#include <string.h>

#include "base/misuse.h"
#include "io/gguf_types.h"
#include "io/stored.h"
#include "tensor/bf16.h"

static float half(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return wn_stored_half(h);
}

static uint32_t word(const uint8_t *p) {
  uint32_t w;
  memcpy(&w, p, sizeof w);
  return w;
}

static void decode_f32(const uint8_t *p, float *y) {
  memcpy(y, p, sizeof *y);
}

static void decode_f16(const uint8_t *p, float *y) {
  *y = half(p);
}

static void decode_bf16(const uint8_t *p, float *y) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  *y = wn_bf16_value(h);
}

static void decode_q8_0(const uint8_t *p, float *y) {
  const float d = half(p);
  for (int i = 0; i < 32; i++) y[i] = d * (float)(int8_t)p[2 + i];
}

/* 32 weights of four or five bits. p: the lower four bits; fifth: the fifth bits, or 0. */
static void nibbles(const uint8_t *p, uint32_t fifth, float d, float m, int zero, float *y) {
  for (int i = 0; i < 16; i++) {
    y[i] = d * (float)((int)((p[i] & 15) | (fifth >> i & 1) << 4) - zero) + m;
    y[i + 16] = d * (float)((int)(p[i] >> 4 | (fifth >> (i + 16) & 1) << 4) - zero) + m;
  }
}

static void decode_q4_0(const uint8_t *p, float *y) {
  nibbles(p + 2, 0, half(p), 0, 8, y);
}
static void decode_q4_1(const uint8_t *p, float *y) {
  nibbles(p + 4, 0, half(p), half(p + 2), 0, y);
}
static void decode_q5_0(const uint8_t *p, float *y) {
  nibbles(p + 6, word(p + 2), half(p), 0, 16, y);
}
static void decode_q5_1(const uint8_t *p, float *y) {
  nibbles(p + 8, word(p + 4), half(p), half(p + 2), 0, y);
}

/* Scale and minimum of group g, from the twelve bytes that hold eight of each. */
static void scale_and_minimum(const uint8_t *p, int g, int *scale, int *minimum) {
  if (g < 4) {
    *scale = p[g] & 63;
    *minimum = p[g + 4] & 63;
  } else {
    *scale = (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
    *minimum = p[g + 4] >> 4 | (p[g] >> 6) << 4;
  }
}

static void groups_of_32(const uint8_t *p, const uint8_t *fifth, const uint8_t *q, float *y) {
  const float d = half(p), m = half(p + 2);
  for (int g = 0; g < 8; g++) {
    int scale, minimum;
    scale_and_minimum(p + 4, g, &scale, &minimum);
    const float ds = d * (float)scale, mn = m * (float)minimum;
    for (int i = 0; i < 32; i++) {
      const int low = q[g / 2 * 32 + i] >> (g % 2 * 4) & 15, high = fifth ? (fifth[i] >> g & 1) << 4 : 0;
      y[g * 32 + i] = ds * (float)(low | high) - mn;
    }
  }
}

static void decode_q4_k(const uint8_t *p, float *y) {
  groups_of_32(p, NULL, p + 16, y);
}
static void decode_q5_k(const uint8_t *p, float *y) {
  groups_of_32(p, p + 16, p + 48, y);
}

static void decode_q6_k(const uint8_t *p, float *y) {
  const float d = half(p + 208);
  for (int i = 0; i < 256; i++) {
    /* A block has two halves of 128, each with four runs of 32. A half's low bits are in two sets of 32 bytes, its high
     * bits in one. */
    const int part = i / 128, run = i / 32 % 4, at = i % 32;
    const int low = p[part * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
    const int high = p[128 + part * 32 + at] >> (run * 2) & 3;
    y[i] = d * (float)(int8_t)p[192 + i / 16] * (float)((low | high << 4) - 32);
  }
}

static const struct {
  const char *name;
  uint32_t number; /* in a file */
  int weights, bytes;
  void (*decode)(const uint8_t *block, float *out);
} types[WN_GGUF_TYPE_COUNT] = {
    [WN_GGUF_F32] = {.name = "F32", .number = 0, .weights = 1, .bytes = 4, .decode = decode_f32},
    [WN_GGUF_F16] = {.name = "F16", .number = 1, .weights = 1, .bytes = 2, .decode = decode_f16},
    [WN_GGUF_BF16] = {.name = "BF16", .number = 30, .weights = 1, .bytes = 2, .decode = decode_bf16},
    [WN_GGUF_Q8_0] = {.name = "Q8_0", .number = 8, .weights = 32, .bytes = 34, .decode = decode_q8_0},
    [WN_GGUF_Q4_0] = {.name = "Q4_0", .number = 2, .weights = 32, .bytes = 18, .decode = decode_q4_0},
    [WN_GGUF_Q4_1] = {.name = "Q4_1", .number = 3, .weights = 32, .bytes = 20, .decode = decode_q4_1},
    [WN_GGUF_Q5_0] = {.name = "Q5_0", .number = 6, .weights = 32, .bytes = 22, .decode = decode_q5_0},
    [WN_GGUF_Q5_1] = {.name = "Q5_1", .number = 7, .weights = 32, .bytes = 24, .decode = decode_q5_1},
    [WN_GGUF_Q4_K] = {.name = "Q4_K", .number = 12, .weights = 256, .bytes = 144, .decode = decode_q4_k},
    [WN_GGUF_Q5_K] = {.name = "Q5_K", .number = 13, .weights = 256, .bytes = 176, .decode = decode_q5_k},
    [WN_GGUF_Q6_K] = {.name = "Q6_K", .number = 14, .weights = 256, .bytes = 210, .decode = decode_q6_k},
};

const char *wn_gguf_type_name(wn_gguf_type type) {
  WN_CHECK_OR("?", WN_ENUM(type, WN_GGUF_TYPE_COUNT));
  return types[type].name;
}

uint32_t wn_gguf_type_number(wn_gguf_type type) {
  return types[type].number;
}

bool wn_gguf_type_find(uint32_t number, wn_gguf_type *out) {
  int i = 0;
  while (i < WN_GGUF_TYPE_COUNT && types[i].number != number) i++;
  *out = (wn_gguf_type)i;
  return i < WN_GGUF_TYPE_COUNT;
}

int64_t wn_gguf_block_weights(wn_gguf_type type) {
  WN_CHECK_OR(0, WN_ENUM(type, WN_GGUF_TYPE_COUNT));
  return types[type].weights;
}

size_t wn_gguf_block_bytes(wn_gguf_type type) {
  WN_CHECK_OR(0, WN_ENUM(type, WN_GGUF_TYPE_COUNT));
  return (size_t)types[type].bytes;
}

enum { MOST_WEIGHTS = 256 }; /* in a block */

void wn_gguf_decode(wn_gguf_type type, const void *data, int64_t first, int64_t count, float *out) {
  const int64_t weights = types[type].weights;
  if (type == WN_GGUF_F32) {
    memcpy(out, (const uint8_t *)data + (size_t)first * sizeof *out, (size_t)count * sizeof *out);
    return;
  }
  const uint8_t *block = (const uint8_t *)data + (size_t)(first / weights) * (size_t)types[type].bytes;
  for (int64_t skip = first % weights; count > 0; skip = 0, block += types[type].bytes) {
    const int64_t n = count < weights - skip ? count : weights - skip;
    if (n == weights) {
      types[type].decode(block, out);
    } else { /* only a part of the block is asked for */
      float whole[MOST_WEIGHTS];
      types[type].decode(block, whole);
      memcpy(out, whole + skip, (size_t)n * sizeof *out);
    }
    out += n;
    count -= n;
  }
}

wn_status wn_gguf_dequantize(wn_context *ctx, const wn_gguf_tensor *t, int64_t first, int64_t rows, float *out) {
  WN_CHECK_CALL(WN_POINTER_AS("tensor", t), WN_ARRAY(out, rows));
  if (t->ndim < 1 || t->ndim > WN_GGUF_MAX_DIMS)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_gguf_dequantize: tensor has %d dimensions, expected 1 to %d", t->ndim,
                   WN_GGUF_MAX_DIMS);
  WN_CHECK_CALL(WN_ENUM(t->type, WN_GGUF_TYPE_COUNT), WN_POINTER(t->name), WN_POINTER(t->data));
  const int64_t width = t->shape[t->ndim - 1];
  int64_t all = 1; /* cannot overflow: the file has that many bytes */
  for (int d = 0; d < t->ndim - 1; d++) all *= t->shape[d];
  if (first < 0 || rows < 0 || first > all || rows > all - first)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "tensor \"%s\": rows %lld to %lld of %lld", t->name, (long long)first,
                   (long long)first + (long long)rows, (long long)all);
  if (width % types[t->type].weights != 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "tensor \"%s\": rows of %lld are not whole blocks of %d (%s)", t->name,
                   (long long)width, types[t->type].weights, types[t->type].name);
  wn_gguf_decode(t->type, t->data, first * width, rows * width, out);
  return WN_OK;
}
