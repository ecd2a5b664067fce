/* Products of bf16 rows in AMX tiles: bf16.h for D that is a multiple of a tile. One instruction multiplies a 16 by 32
 * tile with a 32 by 16 tile and adds to 16 by 16 sums: 16,384 operations in 16 cycles. Four tiles of sums stay in
 * registers over the whole inner dimension.
 *
 * Rows that do not fill a tile are copied and padded with zeros, so that a row gives the same bits alone and among
 * others. Sums over rows (`columns`) are stored transposed, [Dp][64]: then the rows are packed once for all tiles, and
 * the tile of attention weights only needs rounding in pairs and no transposition. */
#include "backends/cpu/attention/bf16.h"

#include <string.h>
#include "backends/cpu/attention/impl.h"
#include "backends/cpu/cpu.h"
#include "backends/cpu/vec.h"

#include "backends/cpu/attention/transpose.inc"

enum {
  ROWS = 16,                     /* of a tile; each has 64 bytes */
  STEP = 32,                     /* how much of the inner dimension a tile holds */
  MOST = 256,                    /* largest D */
  LINE = WN_TILE * sizeof(float) /* bytes in a row of a tile of floats or pairs */
};

static void tiles_begin(void) {
  struct wn_cpu_amx_shape shapes[WN_CPU_AMX_TILES];
  for (int i = 0; i < WN_CPU_AMX_TILES; i++) shapes[i] = (struct wn_cpu_amx_shape){ROWS, 64};
  wn_cpu_amx_begin(shapes);
}

/* C[m,n] (+)= X[m,k] Y[k,n]; strides of rows and of lines of pairs are in bytes. */
struct tiles {
  const char *x, *y;
  char *c;
  int64_t x_row, y_row, c_row, steps;
};

V_INLINE void tiles_block(const struct tiles *t, int64_t m, int64_t n, const int M, const int N, const bool add) {
  const int64_t x_row = t->x_row, y_row = t->y_row, c_row = t->c_row;
  const char *x = t->x + m * x_row, *y = t->y + n * (int64_t)sizeof(uint32_t);
  char *c = t->c + m * c_row + n * (int64_t)sizeof(float), *low = c + ROWS * c_row;
  if (add) {
    _tile_loadd(0, c, c_row);
    if (N > 1) _tile_loadd(1, c + 64, c_row);
    if (M > 1) _tile_loadd(2, low, c_row);
    if (M > 1 && N > 1) _tile_loadd(3, low + 64, c_row);
  } else {
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (M > 1) _tile_zero(2);
    if (M > 1 && N > 1) _tile_zero(3);
  }
  for (int64_t s = 0; s < t->steps; s++) {
    _tile_loadd(4, x, x_row);
    _tile_loadd(6, y, y_row);
    _tile_dpbf16ps(0, 4, 6);
    if (N > 1) {
      _tile_loadd(7, y + 64, y_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (M > 1) {
      _tile_loadd(5, x + ROWS * x_row, x_row);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (M > 1 && N > 1) _tile_dpbf16ps(3, 5, 7);
    x += 64, y += ROWS * y_row;
  }
  _tile_stored(0, c, c_row);
  if (N > 1) _tile_stored(1, c + 64, c_row);
  if (M > 1) _tile_stored(2, low, c_row);
  if (M > 1 && N > 1) _tile_stored(3, low + 64, c_row);
}

/* rows and columns must be multiples of 16. */
V_INLINE void tiles_product(const struct tiles *t, int64_t rows, int64_t columns, const bool add) {
  __asm__ volatile(""
                   :
                   : "r"(t->x), "r"(t->y), "r"(t->c)
                   : "memory"); /* GCC 12's tile loads do not declare that they read memory */
  for (int64_t n = 0; n < columns; n += 2 * ROWS) {
    const bool wide = n + ROWS < columns;
    int64_t m = 0;
    for (; m + ROWS < rows; m += 2 * ROWS) wide ? tiles_block(t, m, n, 2, 2, add) : tiles_block(t, m, n, 2, 1, add);
    if (m < rows) wide ? tiles_block(t, m, n, 1, 2, add) : tiles_block(t, m, n, 1, 1, add);
  }
}

static void scale(float *to, const float *from, int64_t rows, int64_t width, float factor) {
  const vf f = v_set1(factor);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j += VL) v_store(to + i * WN_TILE + j, v_mul(f, v_load(from + i * WN_TILE + j)));
}

static void amx_logits(float *c, const uint16_t *x, const uint32_t *y, int64_t rows, int64_t width, int64_t D,
                       int64_t Dp, float factor) {
  const int64_t whole = rows / ROWS * ROWS, rest = rows - whole;
  struct tiles t = {.x = (const char *)x,
                    .y = (const char *)y,
                    .c = (char *)c,
                    .x_row = Dp * (int64_t)sizeof *x,
                    .y_row = LINE,
                    .c_row = LINE,
                    .steps = D / STEP};
  tiles_product(&t, whole, width, false);
  if (factor != 1) scale(c, c, whole, width, factor);
  if (rest == 0) return;
  _Alignas(64) uint16_t last[ROWS * MOST];
  _Alignas(64) float sums[ROWS * WN_TILE];
  memcpy(last, x + whole * Dp, (size_t)(rest * Dp) * sizeof *last);
  memset(last + rest * Dp, 0, (size_t)((ROWS - rest) * Dp) * sizeof *last);
  t.x = (const char *)last, t.c = (char *)sums;
  tiles_product(&t, ROWS, width, false);
  scale(c + whole * WN_TILE, sums, rest, width, factor);
}

/* Rounds rows [rows,width] of floats to bf16; zeros from `width` to the end of the last step. */
static void round_rows(uint16_t *to, const float *x, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j += STEP) {
      const vf low = v_load(x + i * WN_TILE + j), high = j + VL < width ? v_load(x + i * WN_TILE + j + VL) : v_zero();
      _mm512_store_si512(to + i * WN_TILE + j, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

static void amx_values(float *c, const float *x, const uint32_t *y, int64_t rows, int64_t width, int64_t Dp) {
  _Alignas(64) uint16_t rounded[WN_TILE_AREA];
  const int64_t whole = rows / ROWS * ROWS, rest = rows - whole, line = Dp * (int64_t)sizeof *c;
  round_rows(rounded, x, rows, width);
  struct tiles t = {.x = (const char *)rounded,
                    .y = (const char *)y,
                    .c = (char *)c,
                    .x_row = WN_TILE * sizeof *rounded,
                    .y_row = line,
                    .c_row = line,
                    .steps = wn_div_up(width, STEP)};
  tiles_product(&t, whole, Dp, true);
  if (rest == 0) return;
  _Alignas(64) float sums[ROWS * MOST];
  memset(rounded + rows * WN_TILE, 0, (size_t)((ROWS - rest) * WN_TILE) * sizeof *rounded);
  memcpy(sums, c + whole * Dp, (size_t)(rest * Dp) * sizeof *sums);
  memset(sums + rest * Dp, 0, (size_t)((ROWS - rest) * Dp) * sizeof *sums);
  t.x = (const char *)(rounded + whole * WN_TILE), t.c = (char *)sums;
  tiles_product(&t, ROWS, Dp, true);
  memcpy(c + whole * Dp, sums, (size_t)(rest * Dp) * sizeof *sums);
}

/* Takes whole steps of the block's rows; rows outside the strip count as 0. */
static void amx_columns(float *c, const float *x, const void *y, int64_t row, int64_t rows, int64_t width, int64_t Dp) {
  _Alignas(64) uint32_t pairs[WN_TILE_AREA / 2];
  _Alignas(64) static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(order);
  const int64_t first = row / STEP, steps = wn_div_up(row + rows, STEP) - first;
  for (int64_t k = 0; k < steps * STEP / 2; k++) {
    const int64_t even = first * STEP + 2 * k - row;
    const bool low_there = even >= 0 && even < rows, high_there = even + 1 >= 0 && even + 1 < rows;
    for (int64_t j = 0; j < width; j += VL) {
      const vf low = low_there ? v_load(x + even * WN_TILE + j) : v_zero();
      const vf high = high_there ? v_load(x + (even + 1) * WN_TILE + j) : v_zero();
      _mm512_store_si512(pairs + k * WN_TILE + j,
                         _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(high, low)));
    }
  }
  const struct tiles t = {.x = (const char *)y + first * 64,
                          .y = (const char *)pairs,
                          .c = (char *)c,
                          .x_row = WN_TILE * sizeof(uint16_t),
                          .y_row = LINE,
                          .c_row = LINE,
                          .steps = steps};
  tiles_product(&t, Dp, width, true);
}

/* --- packing --- */

/* Loads 32 numbers of 16 rows from row r on; zeros for missing rows. */
V_INLINE void load_block(vf x[VL], const uint16_t *src, int64_t stride, int64_t r, int64_t rows) {
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++)
    x[i] = r + i < rows ? _mm512_castsi512_ps(_mm512_loadu_si512(src + (r + i) * stride)) : v_zero();
}

/* dst [Dp][64]: 16 rows of 16 pairs, transposed, are 16 pairs of 16 rows; the halves of a pair go to two rows of
 * dst. */
static void amx_pack_turned(uint16_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D) {
  for (int64_t d = 0; d < D; d += 2 * VL)
    for (int64_t r = 0; r < WN_TILE; r += VL) {
      vf x[VL];
      load_block(x, src + d, stride, r, rows);
      transpose_block(x);
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) {
        const __m512i pairs = _mm512_castps_si512(x[i]);
        uint16_t *even = dst + (d + 2 * i) * WN_TILE + r;
        _mm256_store_si256((__m256i *)(void *)even, _mm512_cvtepi32_epi16(pairs));
        _mm256_store_si256((__m256i *)(void *)(even + WN_TILE), _mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
      }
    }
}

/* Rows of dst are columns of src [Dp][64], from column `first` on. */
static void amx_unpack_turned(uint16_t *dst, int64_t stride, const float *src, int64_t first, int64_t rows, int64_t D,
                              float factor) {
  const vf f = v_set1(factor);
  for (int64_t d = 0; d < D; d += VL)
    for (int64_t r = first / VL * VL; r < first + rows; r += VL) {
      vf x[VL];
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) x[i] = v_mul(f, v_load(src + (d + i) * WN_TILE + r));
      transpose_block(x);
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++)
        if (r + i >= first && r + i < first + rows)
          _mm256_storeu_si256((__m256i *)(void *)(dst + (r + i - first) * stride + d),
                              (__m256i)_mm512_cvtneps_pbh(x[i]));
    }
}

bool wn_bf16_tiles_serve(int64_t D) {
  return D % STEP == 0 && D <= MOST && wn_cpu_has_amx();
}

const struct wn_bf16_ops wn_bf16_ops_amx = {
    .begin = tiles_begin,
    .end = wn_cpu_amx_end,
    .logits = amx_logits,
    .values = amx_values,
    .columns = amx_columns,
    .pack = wn_bf16_rows_pack,
    .pack_pairs = wn_bf16_rows_pairs,
    .pack_transposed = wn_bf16_rows_transposed,
    .pack_turned = amx_pack_turned,
    .round = wn_bf16_rows_round,
    .unpack_turned = amx_unpack_turned,
    .row_dot = wn_bf16_rows_dot,
};
