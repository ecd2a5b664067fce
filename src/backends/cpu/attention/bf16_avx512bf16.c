/* Products of bf16 rows with AVX512_BF16 (bf16.h). One instruction multiplies 16 pairs of columns by one broadcast pair
 * and adds both products to 16 sums: 64 operations, twice those of an FMA on floats. Blocks of up to 24 sums stay in
 * registers over the whole inner dimension. */
#include "backends/cpu/attention/bf16.h"

#include <string.h>
#include "backends/cpu/attention/impl.h"
#include "backends/cpu/vec.h"

#include "backends/cpu/attention/transpose.inc"

/* X: pair k of row m at x[m * row + k * step]; Y: pair k of column n at y[k * ldy + n]; C at c[m * ldc + n]. */
struct operands {
  const uint32_t *x, *y;
  float *c;
  int64_t row, step, ldy, ldc, pairs;
  float factor; /* for products that are not added to c */
};

V_INLINE __m512bh as_bf16(__m512i x) {
  return (__m512bh)x;
}

/* M rows from row m on, N vectors of columns. */
V_INLINE void product_block(const struct operands *o, int64_t m, const int M, const int N, const bool add) {
  const uint32_t *x = o->x + m * o->row, *y = o->y;
  const int64_t row = o->row, step = o->step, ldy = o->ldy, ldc = o->ldc, pairs = o->pairs;
  float *c = o->c + m * ldc;
  vf sum[12][4];
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sum[i][n] = add ? v_load(c + i * ldc + n * VL) : v_zero();
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh columns[4];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) columns[n] = as_bf16(_mm512_loadu_si512(y + k * ldy + n * VL));
#pragma GCC unroll 12
    for (int i = 0; i < M; i++) {
      const __m512bh pair = as_bf16(_mm512_set1_epi32((int)x[i * row + k * step]));
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) sum[i][n] = _mm512_dpbf16_ps(sum[i][n], pair, columns[n]);
    }
  }
  const vf factor = v_set1(o->factor);
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) v_store(c + i * ldc + n * VL, add ? sum[i][n] : v_mul(sum[i][n], factor));
}

/* All rows, N vectors of columns. */
#define PRODUCT_REST(M, N, add)                                                                                        \
  case M:                                                                                                              \
    product_block(o, m, M, N, add);                                                                                    \
    break;
#define PRODUCT_PANEL(name, M, N, add, REST)                                                                           \
  static void name(const struct operands *o, int64_t rows) {                                                           \
    int64_t m = 0;                                                                                                     \
    for (; m + M <= rows; m += M) product_block(o, m, M, N, add);                                                      \
    switch (rows - m) { REST(N, add) }                                                                                 \
  }
#define REST_5(N, add)                                                                                                 \
  PRODUCT_REST(1, N, add)                                                                                              \
  PRODUCT_REST(2, N, add) PRODUCT_REST(3, N, add) PRODUCT_REST(4, N, add) PRODUCT_REST(5, N, add)
#define REST_7(N, add) REST_5(N, add) PRODUCT_REST(6, N, add) PRODUCT_REST(7, N, add)
#define REST_11(N, add)                                                                                                \
  REST_7(N, add)                                                                                                       \
  PRODUCT_REST(8, N, add) PRODUCT_REST(9, N, add) PRODUCT_REST(10, N, add) PRODUCT_REST(11, N, add)
PRODUCT_PANEL(set_1, 12, 1, false, REST_11)
PRODUCT_PANEL(set_2, 12, 2, false, REST_11)
PRODUCT_PANEL(set_3, 8, 3, false, REST_7)
PRODUCT_PANEL(set_4, 6, 4, false, REST_5)
PRODUCT_PANEL(add_1, 12, 1, true, REST_11)
PRODUCT_PANEL(add_2, 12, 2, true, REST_11)
PRODUCT_PANEL(add_3, 8, 3, true, REST_7)
PRODUCT_PANEL(add_4, 6, 4, true, REST_5)

/* C += X Y on `width` columns, a multiple of 16. */
static void product_add(struct operands o, int64_t rows, int64_t width) {
  static void (*const panels[])(const struct operands *, int64_t) = {add_1, add_2, add_3, add_4};
  for (int64_t n = 0; n < width; n += 4 * VL) {
    panels[wn_min_i64(4, (width - n) / VL) - 1](&o, rows);
    o.y += 4 * VL, o.c += 4 * VL;
  }
}

static void bf16_logits(float *c, const uint16_t *x, const uint32_t *y, int64_t rows, int64_t width, int64_t D,
                        int64_t Dp, float factor) {
  static void (*const panels[])(const struct operands *, int64_t) = {set_1, set_2, set_3, set_4};
  panels[width / VL - 1](&(struct operands){.x = (const uint32_t *)(const void *)x,
                                            .row = Dp / 2,
                                            .step = 1,
                                            .y = y,
                                            .ldy = WN_TILE,
                                            .c = c,
                                            .ldc = WN_TILE,
                                            .pairs = D / 2,
                                            .factor = factor},
                         rows);
}

static void bf16_values(float *c, const float *x, const uint32_t *y, int64_t rows, int64_t width, int64_t Dp) {
  _Alignas(64) uint32_t rounded[WN_TILE_AREA / 2];
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j += VL)
      _mm256_store_si256((__m256i *)(void *)(rounded + (i * WN_TILE + j) / 2),
                         (__m256i)_mm512_cvtneps_pbh(v_load(x + i * WN_TILE + j)));
  product_add(
      (struct operands){
          .x = rounded, .row = WN_TILE / 2, .step = 1, .y = y, .ldy = Dp, .c = c, .ldc = Dp, .pairs = width / 2},
      rows, Dp);
}

/* Takes rows 2k and 2k+1 of the block as pairs; rows outside the strip count as 0. */
static void bf16_columns(float *c, const float *x, const void *y, int64_t row, int64_t rows, int64_t width,
                         int64_t Dp) {
  _Alignas(64) uint32_t pairs[WN_TILE_AREA / 2];
  _Alignas(64) static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(order);
  const int64_t first = row / 2, count = wn_div_up(row + rows, 2) - first;
  for (int64_t k = 0; k < count; k++) {
    const int64_t even = 2 * (first + k) - row;
    for (int64_t j = 0; j < width; j += VL) {
      const vf low = even >= 0 ? v_load(x + even * WN_TILE + j) : v_zero();
      const vf high = even + 1 < rows ? v_load(x + (even + 1) * WN_TILE + j) : v_zero();
      _mm512_store_si512(pairs + k * WN_TILE + j,
                         _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(high, low)));
    }
  }
  product_add((struct operands){.x = pairs,
                                .row = 1,
                                .step = WN_TILE,
                                .y = (const uint32_t *)y + first * Dp,
                                .ldy = Dp,
                                .c = c,
                                .ldc = Dp,
                                .pairs = count},
              width, Dp);
}

/* --- packing --- */

/* Loads up to 32 of the remaining n elements; zeros after them. */
V_INLINE __m512i load_row(const uint16_t *x, int64_t n) {
  return n >= 32 ? _mm512_loadu_si512(x) : n > 0 ? _mm512_maskz_loadu_epi16((1u << n) - 1, x) : _mm512_setzero_si512();
}
/* Loads up to 16 of them, each into the low half of a lane. */
V_INLINE __m512i load_wide(const uint16_t *x, int64_t n) {
  return _mm512_cvtepu16_epi32(n >= 16 ? _mm256_loadu_si256((const __m256i *)(const void *)x)
                               : n > 0 ? _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), x)
                                       : _mm256_setzero_si256());
}
V_INLINE vf load_floats(const uint16_t *x, int64_t n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(load_wide(x, n), 16));
}

void wn_bf16_rows_pack(uint16_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < Dp; d += 16)
      _mm256_storeu_si256((__m256i *)(void *)(dst + r * Dp + d),
                          _mm512_castsi512_si256(load_row(src + r * stride + d, wn_min_i64(16, D - d))));
}

void wn_bf16_rows_pairs(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp) {
  for (int64_t r = 0; r < rows; r += 2)
    for (int64_t d = 0; d < Dp; d += VL) {
      const __m512i low = load_wide(src + r * stride + d, D - d);
      const __m512i high = r + 1 < rows ? load_wide(src + (r + 1) * stride + d, D - d) : _mm512_setzero_si512();
      _mm512_storeu_si512(dst + r / 2 * Dp + d, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  const int64_t done = wn_div_up(rows, 2);
  memset(dst + done * Dp, 0, (size_t)((WN_TILE / 2 - done) * Dp) * sizeof *dst);
}

void wn_bf16_rows_transposed(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D) {
  for (int64_t d = 0; d < D; d += 2 * VL)
    for (int64_t r = 0; r < WN_TILE; r += VL) {
      vf x[VL];
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++)
        x[i] = r + i < rows ? _mm512_castsi512_ps(load_row(src + (r + i) * stride + d, D - d)) : v_zero();
      transpose_block(x);
      const int64_t count = wn_min_i64(VL, wn_div_up(D - d, 2));
      for (int64_t i = 0; i < count; i++) v_store((float *)(void *)dst + (d / 2 + i) * WN_TILE + r, x[i]);
    }
}

void wn_bf16_rows_round(uint16_t *dst, int64_t stride, const float *src, int64_t rows, int64_t D, int64_t Dp) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < D; d += VL) {
      const __m256i x = (__m256i)_mm512_cvtneps_pbh(v_load(src + r * Dp + d));
      const int64_t n = D - d;
      _mm256_mask_storeu_epi16(dst + r * stride + d, (__mmask16)(n >= VL ? 0xffff : (1u << n) - 1), x);
    }
}

void wn_bf16_rows_dot(float *out, const uint16_t *x, int64_t x_stride, const uint16_t *y, int64_t y_stride,
                      int64_t rows, int64_t D) {
  for (int64_t r = 0; r < rows; r++) {
    vf sum = v_zero();
    for (int64_t d = 0; d < D; d += VL)
      sum = v_fma(load_floats(x + r * x_stride + d, D - d), load_floats(y + r * y_stride + d, D - d), sum);
    out[r] = v_hsum(sum);
  }
}

const struct wn_bf16_ops wn_bf16_ops_avx512 = {
    .logits = bf16_logits,
    .values = bf16_values,
    .columns = bf16_columns,
    .pack = wn_bf16_rows_pack,
    .pack_pairs = wn_bf16_rows_pairs,
    .pack_transposed = wn_bf16_rows_transposed,
    .round = wn_bf16_rows_round,
    .row_dot = wn_bf16_rows_dot,
};
