/* Many rows of x (a prompt) with weights in blocks: panels of 16 rows of w whose bytes are laid out for vpdpbusd, and
 * tiles of 16 rows of x.
 *
 * A panel has block by block, each vector with one lane per row of w: four weights of each row in the order of k (8
 * vectors of signed bytes), the blocks' sums times -128, their scales, and what the type needs beside. A tile's block
 * has 32 bytes of each row of x, in k's order and raised by 128 to be unsigned, and the rows' scales and sums.
 *
 * The floats are those of the kernels for few rows (packed_kernels.inc), in the same order: a block's sum is an exact
 * integer, is scaled by scale * d, and goes to one of four sums, that of its place among four blocks; the four are
 * added from the first on. So a row of y has the same bits whatever the number of rows of x.
 *
 * Cost of 16 x 1 x 32 products: 8 vpdpbusd, a conversion, a product and one or two FMAs. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_round.inc"

enum { ROWS = WN_CPU_PACKED_TILED, CLASSES = BLOCKS };

/* What a block of a panel has after its bytes: vectors of 16. */
enum { BYTES_OF_Q = 32 * ROWS, SUMS = 0, SCALE, MIN, SUMS_2 = MIN, SIXTEEN, SIXTEEN_2, MOST };
/* Of a tile: bytes, and behind them d and s. */
enum { X_D = 32 * ROWS, X_S = X_D + 4 * ROWS, X_BLOCK = X_S + 4 * ROWS };

enum kind { WITH_MIN, WITHOUT, SIX };
V_INLINE enum kind tile_kind(wn_gguf_type type) {
  switch (type) {
  case WN_GGUF_Q6_K:
    return SIX;
  case WN_GGUF_Q4_0:
  case WN_GGUF_Q5_0:
  case WN_GGUF_Q8_0:
    return WITHOUT;
  default:
    return WITH_MIN;
  }
}
V_INLINE int64_t panel_block(enum kind kind) {
  return BYTES_OF_Q + 64 * (kind == SIX ? MOST : kind == WITH_MIN ? MIN + 1 : SCALE + 1);
}

/* wn_gguf_block_bytes() where the type is a constant. */
V_INLINE int64_t block_bytes(wn_gguf_type type) {
  switch (type) {
  case WN_GGUF_Q4_0:
    return 18;
  case WN_GGUF_Q4_1:
    return 20;
  case WN_GGUF_Q5_0:
    return 22;
  case WN_GGUF_Q5_1:
    return 24;
  case WN_GGUF_Q8_0:
    return 34;
  case WN_GGUF_Q4_K:
    return 144;
  case WN_GGUF_Q5_K:
    return 176;
  default:
    return 210;
  }
}

_Static_assert(X_BLOCK == WN_CPU_PACKED_TILE_BYTES(32), "the tile's block");
_Static_assert(BYTES_OF_Q + 64 * MOST == WN_CPU_PACKED_PANEL_BYTES(32), "the panel's block");

/* ---- x ---- */

void wn_cpu_packed_tile_row(const float *x, int64_t K, int m, char *tile) {
  const int64_t blocks = K / 32;
  const __m512i top = _mm512_set1_epi8((char)128);
  int64_t first[CLASSES]; /* block of each class */
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

/* ---- panels ---- */

/* 16 rows of w: where each begins; the last one is repeated. */
struct rows {
  const char *w, *row[ROWS];
  __m512i from; /* bytes from w */
};

/* 16 bytes of rows i, i+4, i+8, i+12. */
V_INLINE __m512i rows_bytes(const struct rows *r, int i, int64_t at) {
  const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)(r->row[i] + at))),
                                            _mm_loadu_si128((const void *)(r->row[i + 4] + at)), 1);
  const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)(r->row[i + 8] + at))),
                                            _mm_loadu_si128((const void *)(r->row[i + 12] + at)), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
/* 32 bits of each row. */
V_INLINE __m512i rows_words(const struct rows *r, int64_t at) {
  return _mm512_i32gather_epi32(r->from, (const void *)(r->w + at), 1);
}
/* Bits from `by` on. */
V_INLINE __m512i bits(__m512i a, int by, int mask) {
  return _mm512_and_si512(_mm512_srl_epi32(a, _mm_cvtsi32_si128(by)), _mm512_set1_epi32(mask));
}
V_INLINE __m512i nibbles(__m512i a, int by) {
  return bits(a, by, 0x0f0f0f0f);
}
/* 16 where bit 16 half + i is set in the words of rows r, r+4, r+8, r+12. */
V_INLINE __m512i fifths(const struct rows *r, int i, int64_t at, int half) {
  uint64_t set = 0;
  for (int k = 0; k < 4; k++) {
    uint16_t word;
    memcpy(&word, r->row[i + 4 * k] + at + 2 * half, sizeof word);
    set |= (uint64_t)word << (16 * k);
  }
  return _mm512_maskz_set1_epi8(set, 16);
}

/* Half of block b as signed bytes, of rows i, i+4, i+8, i+12. */
V_INLINE __m512i rows_half(wn_gguf_type type, const struct rows *r, int i, int64_t b, int half) {
  const int64_t at = (type >= WN_GGUF_Q4_K ? b / 8 : b) * block_bytes(type);
  const int in = (int)(b % 8);
  switch (type) {
  case WN_GGUF_Q4_0:
    return _mm512_sub_epi8(nibbles(rows_bytes(r, i, at + 2), 4 * half), _mm512_set1_epi8(8));
  case WN_GGUF_Q4_1:
    return nibbles(rows_bytes(r, i, at + 4), 4 * half);
  case WN_GGUF_Q5_0:
    return _mm512_sub_epi8(_mm512_or_si512(nibbles(rows_bytes(r, i, at + 6), 4 * half), fifths(r, i, at + 2, half)),
                           _mm512_set1_epi8(16));
  case WN_GGUF_Q5_1:
    return _mm512_or_si512(nibbles(rows_bytes(r, i, at + 8), 4 * half), fifths(r, i, at + 4, half));
  case WN_GGUF_Q8_0:
    return rows_bytes(r, i, at + 2 + 16 * half);
  case WN_GGUF_Q4_K:
    return nibbles(rows_bytes(r, i, at + 16 + 32 * (in / 2) + 16 * half), 4 * (in % 2));
  case WN_GGUF_Q5_K:
    return _mm512_or_si512(nibbles(rows_bytes(r, i, at + 48 + 32 * (in / 2) + 16 * half), 4 * (in % 2)),
                           _mm512_slli_epi32(bits(rows_bytes(r, i, at + 16 + 16 * half), in, 0x01010101), 4));
  default: /* Q6_K */
    return _mm512_sub_epi8(
        _mm512_or_si512(nibbles(rows_bytes(r, i, at + 64 * (in / 4) + 32 * (in % 2) + 16 * half), 4 * (in / 2 % 2)),
                        _mm512_slli_epi32(
                            bits(rows_bytes(r, i, at + 128 + 32 * (in / 4) + 16 * half), 2 * (in % 4), 0x03030303), 4)),
        _mm512_set1_epi8(32));
  }
}

/* The low and the high half floats of 16 words. */
V_INLINE __m512 low_halves(__m512i a) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}
V_INLINE __m512 high_halves(__m512i a) {
  return low_halves(_mm512_srli_epi32(a, 16));
}

/* Scales and minima of block b, and Q6_K's scales of halves. The products are those of load_256 (packed_blocks.inc). */
V_INLINE void rows_scales(wn_gguf_type type, const struct rows *r, int64_t b, float *to) {
  const int64_t at = (type >= WN_GGUF_Q4_K ? b / 8 : b) * block_bytes(type);
  const int in = (int)(b % 8);
  if (type == WN_GGUF_Q6_K) {
    const __m512i two = rows_words(r, at + 192 + 2 * in);
    _mm512_store_ps(to + ROWS * SCALE, high_halves(rows_words(r, at + 206)));
    _mm512_store_ps(to + ROWS * SIXTEEN, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(two, 24), 24)));
    _mm512_store_ps(to + ROWS * SIXTEEN_2, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(two, 16), 24)));
    return;
  }
  const __m512i dm = rows_words(r, at);
  __m512 scale = low_halves(dm);
  if (tile_kind(type) == WITH_MIN) {
    __m512 min = high_halves(dm);
    if (type == WN_GGUF_Q4_K || type == WN_GGUF_Q5_K) {
      const __m512i u0 = rows_words(r, at + 4), u1 = rows_words(r, at + 8), u2 = rows_words(r, at + 12);
      const int by = 8 * (in % 4);
      __m512i f = bits(u0, by, 63), g = bits(u1, by, 63);
      if (in >= 4) {
        f = _mm512_or_si512(bits(u2, by, 15), _mm512_slli_epi32(bits(u0, by + 6, 3), 4));
        g = _mm512_or_si512(bits(u2, by + 4, 15), _mm512_slli_epi32(bits(u1, by + 6, 3), 4));
      }
      scale = _mm512_mul_ps(_mm512_cvtepi32_ps(f), scale);
      min = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(_mm512_cvtepi32_ps(g), min));
    }
    _mm512_store_ps(to + ROWS * MIN, min);
  }
  _mm512_store_ps(to + ROWS * SCALE, scale);
}

V_INLINE void panel_of(wn_gguf_type type, const struct rows *r, int64_t blocks, char *panel) {
  const enum kind kind = tile_kind(type);
  const __m512i ones = _mm512_set1_epi8((char)128), zero = _mm512_setzero_si512();
  char *to = panel;
  const int64_t each = block_bytes(type) * ROWS / (type >= WN_GGUF_Q4_K ? 8 : 1);
  const char *ahead = r->w + blocks * each; /* the next panel's rows: 16 streams are too many to foresee */
  for (int c = 0; c < CLASSES; c++) {
    for (int64_t b = c; b < blocks; b += CLASSES, to += panel_block(kind), ahead += each) {
      for (int64_t i = 0; i < each; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
      __m512i sums[2] = {zero, zero};
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const __m512i a0 = rows_half(type, r, 0, b, half), a1 = rows_half(type, r, 1, b, half);
        const __m512i a2 = rows_half(type, r, 2, b, half), a3 = rows_half(type, r, 3, b, half);
        const __m512i t0 = _mm512_unpacklo_epi32(a0, a1), t1 = _mm512_unpackhi_epi32(a0, a1);
        const __m512i t2 = _mm512_unpacklo_epi32(a2, a3), t3 = _mm512_unpackhi_epi32(a2, a3);
        const __m512i q[4] = {_mm512_unpacklo_epi64(t0, t2), _mm512_unpackhi_epi64(t0, t2),
                              _mm512_unpacklo_epi64(t1, t3), _mm512_unpackhi_epi64(t1, t3)};
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          _mm512_store_si512(to + 256 * half + 64 * j, q[j]);
          sums[half] = _mm512_dpbusd_epi32(sums[half], ones, q[j]);
        }
      }
      float *scales = (float *)(void *)(to + BYTES_OF_Q);
      const __m512i first = _mm512_sub_epi32(zero, kind == SIX ? sums[0] : _mm512_add_epi32(sums[0], sums[1]));
      _mm512_store_si512(scales + ROWS * SUMS, first);
      if (kind == SIX) _mm512_store_si512(scales + ROWS * SUMS_2, _mm512_sub_epi32(zero, sums[1]));
      rows_scales(type, r, b, scales);
    }
  }
}

void wn_cpu_packed_panel(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel) {
  struct rows r = {.w = w};
  const size_t bytes = wn_packed_row_bytes(type, K);
  _Alignas(64) int32_t from[ROWS];
  for (int i = 0; i < ROWS; i++) {
    from[i] = (int32_t)((size_t)(i < rows ? i : rows - 1) * bytes);
    r.row[i] = w + from[i];
  }
  r.from = _mm512_load_si512(from);
  switch (type) {
#define PANEL(type)                                                                                                    \
  case type:                                                                                                           \
    panel_of(type, &r, K / 32, panel);                                                                                 \
    break
    PANEL(WN_GGUF_Q4_0);
    PANEL(WN_GGUF_Q4_1);
    PANEL(WN_GGUF_Q5_0);
    PANEL(WN_GGUF_Q5_1);
    PANEL(WN_GGUF_Q8_0);
    PANEL(WN_GGUF_Q4_K);
    PANEL(WN_GGUF_Q5_K);
    PANEL(WN_GGUF_Q6_K);
#undef PANEL
  default:
    break; /* not reached: weights of single floats have no panels */
  }
}

/* ---- products ---- */

/* One block of a panel with M rows of a tile. */
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
  const vm here = (vm)((1u << out->rows) - 1);
  const vf b = out->b ? _mm512_maskz_loadu_ps(here, out->b) : v_zero();
  for (int m = 0; m < M; m++) {
    float *y = out->y + m * out->ldy;
    const vf v = v_add(all[m], b);
    _mm512_mask_storeu_ps(y, here, out->accumulate ? v_add(_mm512_maskz_loadu_ps(here, y), v) : v);
  }
}
