/* Many rows of x (a prompt) times weights in blocks: panels of 16 rows of w, with bytes laid out for vpdpbusd, and
 * tiles of 16 rows of x.
 *
 * A panel has for each block, in vectors with one lane per row of w: four weights of each row at a time, in the order
 * of k (8 vectors of signed bytes); the blocks' sums times -128; their scales; and what else the type needs. A tile's
 * block has 32 bytes of each row of x, in the order of k, raised by 128 to be unsigned; and the rows' scales and sums.
 *
 * The float operations are those of the kernels for few rows (packed_kernels.inc), in the same order. A block's sum is
 * an exact integer, is multiplied by scale * d, and is added to one of four sums, chosen by the block's number modulo
 * four; at the end the four are added from the first on. So a row of y has the same bits whatever the number of rows of
 * x.
 *
 * Cost of 16 x 1 x 32 products: 8 vpdpbusd, a conversion, a product and one or two FMAs. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_round.inc"
#include "backends/cpu/packed/packed_rows.inc"

enum { CLASSES = BLOCKS };

/* Layout of a tile: bytes, then d and s. */
enum { X_D = 32 * ROWS, X_S = X_D + 4 * ROWS, X_BLOCK = X_S + 4 * ROWS };

_Static_assert(X_BLOCK == WN_CPU_PACKED_TILE_BYTES(32), "the tile's block");

/* ---- x ---- */

V_INLINE void tile_row(const float *x, int64_t K, int m, char raise, char *tile) {
  const int64_t blocks = K / 32;
  const __m512i top = _mm512_set1_epi8(raise);
  int64_t first[CLASSES]; /* first block of each class */
  first[0] = 0;
  for (int c = 1; c < CLASSES; c++) first[c] = first[c - 1] + (blocks - c + CLASSES) / CLASSES;
  for (int64_t b = 0; b < blocks; b += CLASSES) {
    const int64_t have = blocks - b < CLASSES ? blocks - b : CLASSES;
    const struct rounded r = have == CLASSES ? round_step(x + b * 32) : round_rest(x + b * 32, have);
    _Alignas(64) int8_t q[2][64];
    float d[CLASSES], s[CLASSES];
    _mm512_store_si512(q[0], _mm512_xor_si512(r.q[0], top));
    _mm512_store_si512(q[1], _mm512_xor_si512(r.q[1], top));
    _mm_storeu_ps(d, r.d);
    _mm_storeu_ps(s, r.s);
    for (int c = 0; c < have; c++) {
      char *at = tile + (first[c] + b / CLASSES) * X_BLOCK;
      memcpy(at + 32 * m, q[0] + 16 * c, 16);
      memcpy(at + 32 * m + 16, q[1] + 16 * c, 16);
      memcpy(at + X_D + 4 * m, d + c, 4);
      memcpy(at + X_S + 4 * m, s + c, 4);
    }
  }
}

void wn_cpu_packed_tile_row(const float *x, int64_t K, int m, char *tile) {
  tile_row(x, K, m, (char)128, tile);
}
void wn_cpu_packed_tile_row_signed(const float *x, int64_t K, int m, char *tile) {
  tile_row(x, K, m, 0, tile);
}

void wn_cpu_packed_panel(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel) {
  panel_make(type, w, rows, K, panel);
}

/* ---- products ---- */

/* One block of a panel times M rows of a tile. */
V_INLINE void tile_block(enum kind kind, int M, const char *w, const char *x, vf *sum) {
  const float *v = (const float *)(const void *)(w + BYTES_OF_Q);
  const float *d = (const float *)(const void *)(x + X_D), *s = (const float *)(const void *)(x + X_S);
  __m512i q[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) q[j] = _mm512_load_si512(w + 64 * j);
  const __m512i start = _mm512_load_si512(v + ROWS * SUMS);
  const vf scale = v_load(v + ROWS * SCALE);
#pragma GCC unroll 16
  for (int m = 0; m < M; m++) {
    const int32_t *four = (const int32_t *)(const void *)(x + 32 * m);
    __m512i a = start;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) a = _mm512_dpbusd_epi32(a, _mm512_set1_epi32(four[j]), q[j]);
    __m512i b = kind == SIX ? _mm512_load_si512(v + ROWS * SUMS_2) : a;
#pragma GCC unroll 4
    for (int j = 4; j < 8; j++) b = _mm512_dpbusd_epi32(b, _mm512_set1_epi32(four[j]), q[j]);
    vf f = _mm512_cvtepi32_ps(b);
    if (kind == SIX) /* below 2^24: no rounding */
      f = v_fma(f, v_load(v + ROWS * SIXTEEN_2), v_mul(_mm512_cvtepi32_ps(a), v_load(v + ROWS * SIXTEEN)));
    sum[m] = v_fma(f, v_mul(scale, v_set1(d[m])), sum[m]);
    if (kind == WITH_MIN) sum[m] = v_fma(v_load(v + ROWS * MIN), v_set1(s[m]), sum[m]);
  }
}

V_INLINE void tile_of(enum kind kind, int M, const char *panel, const char *x, int64_t blocks, vf *all) {
  for (int c = 0; c < CLASSES; c++) {
    vf sum[ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) sum[m] = v_zero();
    for (int64_t b = c; b < blocks; b += CLASSES, panel += panel_block(kind), x += X_BLOCK)
      tile_block(kind, M, panel, x, sum);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) all[m] = c == 0 ? sum[m] : v_add(all[m], sum[m]);
  }
}

V_INLINE void tile_rows(enum kind kind, int M, const char *panel, const char *x, int64_t blocks, vf *all) {
  if (M > 12)
    tile_of(kind, 16, panel, x, blocks, all);
  else if (M > 8)
    tile_of(kind, 12, panel, x, blocks, all);
  else if (M > 4)
    tile_of(kind, 8, panel, x, blocks, all);
  else
    tile_of(kind, 4, panel, x, blocks, all);
}

void wn_cpu_packed_tile(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                        const struct wn_cpu_packed_out *out) {
  vf all[ROWS];
  const enum kind kind = tile_kind(type);
  if (kind == WITH_MIN)
    tile_rows(WITH_MIN, M, panel, tile, K / 32, all);
  else if (kind == WITHOUT)
    tile_rows(WITHOUT, M, panel, tile, K / 32, all);
  else
    tile_rows(SIX, M, panel, tile, K / 32, all);
  rows_out(all, M, out);
}
