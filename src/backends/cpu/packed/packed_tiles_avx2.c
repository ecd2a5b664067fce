/* Many rows of x (a prompt) times weights in blocks, in AVX2: panels of 16 rows of w in bytes, and tiles of 16 rows of
 * x.
 *
 * A panel is like that of packed_tiles_vnni.c, but with unsigned bytes (Q8_0: signed) and without sums. A tile's block
 * has 32 signed bytes of each row of x, in the order of k; the rows' scales; and the sums of both halves of their
 * bytes, in 16 bits each, which correct for w's zero point and minima.
 *
 * The float operations are those of the kernels for few rows, in the same order. A block's sum is an exact integer, is
 * multiplied by scale * d, and is added to one of two sums, depending on whether the block's number is even or odd; at
 * the end the second is added to the first. So a row of y has the same bits whatever the number of rows of x.
 *
 * Cost of 16 x 4 x 32 products of 4-bit weights: 64 vpmaddubsw, 56 additions, 8 vpmaddwd, 8 conversions, and 8 to 24
 * products and FMAs; 32 loads that broadcast x, and 16 of w. The same product in floats takes 256 FMAs. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_round.inc"
#include "backends/cpu/packed/packed_rows.inc"
#include "backends/cpu/packed/packed_pairs.inc"

enum { CLASSES = BLOCKS, AT_ONCE = 4 };

/* Layout of a tile: bytes, then d and the sums of halves. */
enum { X_D = 32 * ROWS, X_N = X_D + 4 * ROWS, X_BLOCK = X_N + 4 * ROWS };

_Static_assert(X_BLOCK == WN_CPU_PACKED_TILE_BYTES(32), "the tile's block");

/* ---- x ---- */

/* The sum of 16 signed bytes. */
V_INLINE int bytes_sum(const int8_t *q) {
  const __m128i raised = _mm_xor_si128(_mm_load_si128((const void *)q), _mm_set1_epi8((char)128));
  const __m128i two = _mm_sad_epu8(raised, _mm_setzero_si128());
  return _mm_cvtsi128_si32(two) + _mm_extract_epi16(two, 4) - 16 * 128;
}

void wn_cpu_packed_tile_row_avx2(const float *x, int64_t K, int m, char *tile) {
  const int64_t blocks = K / 32, first = (blocks + 1) / 2; /* first block of the second class */
  for (int64_t b = 0; b < blocks; b += CLASSES) {
    const int64_t have = blocks - b < CLASSES ? blocks - b : CLASSES;
    const struct rounded r = have == CLASSES ? round_step(x + b * 32) : round_rest(x + b * 32, have);
    _Alignas(32) int8_t q[2][32];
    float d[4];
    b_store(q[0], r.q[0]);
    b_store(q[1], r.q[1]);
    _mm_storeu_ps(d, r.d);
    for (int c = 0; c < have; c++) {
      char *at = tile + (c * first + b / CLASSES) * X_BLOCK;
      const int16_t n[2] = {(int16_t)bytes_sum(q[0] + 16 * c), (int16_t)bytes_sum(q[1] + 16 * c)};
      memcpy(at + 32 * m, q[0] + 16 * c, 16);
      memcpy(at + 32 * m + 16, q[1] + 16 * c, 16);
      memcpy(at + X_D + 4 * m, d + c, 4);
      memcpy(at + X_N + 4 * m, n, 4);
    }
  }
}

/* ---- panels ---- */

void wn_cpu_packed_panel_avx2(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel) {
  panel_make(type, w, rows, K, panel);
}

/* ---- products ---- */

/* What a block needs from x: d n for the minima; w's zero point times n. */
struct sums_of_x {
  float s[ROWS];
  int32_t zero[2][ROWS]; /* Q6_K: for both halves */
};
V_INLINE void sums_of_tile(wn_gguf_type type, const char *x, struct sums_of_x *to) {
  const int zero = type_zero(type);
  for (int h = 0; h < HALVES; h++) {
    const vb n = b_load(x + X_N + BYTES * h);
    if (tile_kind(type) == WITH_MIN)
      v_store(to->s + VL * h, v_mul(v_load((const float *)(const void *)(x + X_D) + VL * h),
                                    b_float(_mm256_madd_epi16(n, _mm256_set1_epi16(1)))));
    else if (tile_kind(type) == SIX)
      for (int i = 0; i < 2; i++) b_store(to->zero[i] + VL * h, _mm256_madd_epi16(n, w_set(i ? zero << 16 : zero)));
    else if (zero)
      b_store(to->zero[0] + VL * h, _mm256_madd_epi16(n, _mm256_set1_epi16((int16_t)zero)));
  }
}

/* One block of a panel times rows m to m + AT_ONCE - 1 of a tile. Sums stay in memory. */
V_INLINE void tile_block(wn_gguf_type type, const char *w, const char *x, int m, const struct sums_of_x *n, vf *sum) {
  enum { WIDE = AT_ONCE * HALVES };
  const float *v = (const float *)(const void *)(w + BYTES_OF_Q), *d = (const float *)(const void *)(x + X_D) + m;
  const int fit = pairs_fit(type);
  vb all[WIDE], first[WIDE]; /* Q6_K: of the first half */
#pragma GCC unroll 8
  for (int i = 0; i < WIDE; i++) all[i] = first[i] = b_zero();
#pragma GCC unroll 8
  for (int j = 0; j < 8; j += fit) {
    vb some[WIDE];
#pragma GCC unroll 8
    for (int k = j; k < j + fit; k++) {
      __asm__ volatile("" ::: "memory"); /* as in pairs_add: loads weights only where they are needed */
      const vb w0 = b_load(w + 64 * k), w1 = b_load(w + 64 * k + BYTES);
#pragma GCC unroll 4
      for (int i = 0; i < AT_ONCE; i++) {
        const vb of_x = pairs_x((const int8_t *)x + 32 * (m + i) + 4 * k), p0 = pairs(type, w0, of_x),
                 p1 = pairs(type, w1, of_x);
        some[2 * i] = k == j ? p0 : pairs_add(some[2 * i], p0);
        some[2 * i + 1] = k == j ? p1 : pairs_add(some[2 * i + 1], p1);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < WIDE; i++) {
      const vb wide = pairs_wide(some[i]);
      all[i] = j == 0 || (type == WN_GGUF_Q6_K && j == 4) ? wide : b_add32(all[i], wide);
      if (type == WN_GGUF_Q6_K && j == 2) first[i] = all[i];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < AT_ONCE; i++) {
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
      const vb a = all[2 * i + h];
      const float *u = v + VL * h;
      vf f, *to = &sum[(m + i) * HALVES + h];
      if (type == WN_GGUF_Q6_K) { /* below 2^24: no rounding */
        const vf one = b_float(b_sub32(first[2 * i + h], w_set(n->zero[0][m + i])));
        const vf two = b_float(b_sub32(a, w_set(n->zero[1][m + i])));
        f = v_fma(two, v_load(u + ROWS * SIXTEEN_2), v_mul(one, v_load(u + ROWS * SIXTEEN)));
      } else {
        f = b_float(type_zero(type) ? b_sub32(a, w_set(n->zero[0][m + i])) : a);
      }
      *to = v_fma(f, v_mul(v_load(u + ROWS * SCALE), v_set1(d[i])), *to);
      if (tile_kind(type) == WITH_MIN) *to = v_fma(v_load(u + ROWS * MIN), v_set1(n->s[m + i]), *to);
    }
  }
}

/* The first M rows of x; M is a multiple of AT_ONCE. */
V_INLINE void tile_of(wn_gguf_type type, int M, const char *panel, const char *x, int64_t blocks, vf *all) {
  for (int c = 0; c < CLASSES; c++) {
    vf sum[ROWS * HALVES];
    for (int i = 0; i < M * HALVES; i++) sum[i] = v_zero();
    for (int64_t b = c; b < blocks; b += CLASSES, panel += panel_block(tile_kind(type)), x += X_BLOCK) {
      struct sums_of_x n;
      sums_of_tile(type, x, &n);
      for (int m = 0; m < M; m += AT_ONCE) tile_block(type, panel, x, m, &n, sum);
    }
    for (int i = 0; i < M * HALVES; i++) all[i] = c == 0 ? sum[i] : v_add(all[i], sum[i]);
  }
}

void wn_cpu_packed_tile_avx2(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                             const struct wn_cpu_packed_out *out) {
  vf all[ROWS * HALVES];
  const int rows = (M + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
  switch (type) {
#define TILE(type)                                                                                                     \
  case type:                                                                                                           \
    tile_of(type, rows, panel, tile, K / 32, all);                                                                     \
    break
    ROWS_TYPES(TILE);
#undef TILE
  default:
    return; /* not reached, as for panels */
  }
  rows_out(all, M, out);
}
