/* The products of packed_tiles_vnni.c in the processor's tiles (AMX): the same panels, tiles of x whose bytes are
 * signed. An instruction multiplies a block of 16 rows of x with one of 16 rows of w, where vpdpbusd takes 128.
 *
 * A block's sums are exact integers either way, and are scaled and added up in the same order: the same bits.
 *
 * Cost of 16 x 16 x 32 products: 18 cycles of the tiles' unit, beside which the block before is stored and, a row at a
 * time, converted and scaled (64 operations of vectors with minima, 48 without). */
#include <immintrin.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_rows.inc"

/* Of a tile of x: bytes, and behind them d and s. */
enum { CLASSES = BLOCKS, X_D = 32 * ROWS, X_S = X_D + 4 * ROWS, X_BLOCK = X_S + 4 * ROWS };
_Static_assert(X_BLOCK == WN_CPU_PACKED_TILE_BYTES(32), "the tile's block");

/* Tiles 0 to 3 are sums; 4 and 6 a block of x and of w; 5 and 7 half of one. */
void wn_cpu_packed_amx_begin(void) {
  static const struct wn_cpu_amx_shape tiles[WN_CPU_AMX_TILES] = {{16, 64}, {16, 64}, {16, 64}, {16, 64},
                                                                  {16, 32}, {16, 16}, {8, 64},  {4, 64}};
  wn_cpu_amx_begin(tiles);
}

/* The numbers of tiles are parts of the instructions' names. */
#define MULTIPLY(t, w, x)                                                                                              \
  do {                                                                                                                 \
    _tile_zero(t);                                                                                                     \
    _tile_loadd(4, x, 32);                                                                                             \
    _tile_loadd(6, w, 64);                                                                                             \
    _tile_dpbssd(t, 4, 6);                                                                                             \
  } while (0)
#define MULTIPLY_HALF(t, w, x)                                                                                         \
  do {                                                                                                                 \
    _tile_zero(t);                                                                                                     \
    _tile_loadd(5, x, 32);                                                                                             \
    _tile_loadd(7, w, 64);                                                                                             \
    _tile_dpbssd(t, 5, 7);                                                                                             \
  } while (0)

/* A block's sums, scaled, to those of its class. tile_block's (packed_tiles_vnni.c) floats. */
V_INLINE void add_block(enum kind kind, const char *w, const char *x, const int32_t *sums, vf *sum) {
  const float *v = (const float *)(const void *)(w + BYTES_OF_Q);
  const float *d = (const float *)(const void *)(x + X_D), *s = (const float *)(const void *)(x + X_S);
  const vf scale = v_load(v + ROWS * SCALE);
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) {
    vf f = _mm512_cvtepi32_ps(_mm512_load_si512(sums + ROWS * m));
    if (kind == SIX) { /* below 2^24: no rounding */
      const vf second = _mm512_cvtepi32_ps(_mm512_load_si512(sums + ROWS * (ROWS + m)));
      f = v_fma(second, v_load(v + ROWS * SIXTEEN_2), v_mul(f, v_load(v + ROWS * SIXTEEN)));
    }
    sum[m] = v_fma(f, v_mul(scale, v_set1(d[m])), sum[m]);
    if (kind == WITH_MIN) sum[m] = v_fma(v_load(v + ROWS * MIN), v_set1(s[m]), sum[m]);
  }
}

struct walk {
  const char *w, *x;
  int64_t each, blocks, end; /* of the class: its blocks lie one after the other */
  int class;
};

/* The class's sums to those of the classes before; a class may have no block. */
V_INLINE void end_class(struct walk *k, vf *sum, vf *all) {
  do {
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++) {
      all[m] = k->class == 0 ? sum[m] : v_add(all[m], sum[m]);
      sum[m] = v_zero();
    }
    const int c = ++k->class;
    if (c == CLASSES) return;
    const int64_t of = (k->blocks - c + CLASSES - 1) / CLASSES;
    k->end += of;
    if (of > 0) return;
  } while (true);
}

/* Block i: the one `ahead` of it is multiplied in tile `next` while this one's sums leave tile t. */
#define STEP(t, next, i, ahead)                                                                                        \
  do {                                                                                                                 \
    const char *w = k.w + (i)*k.each, *x = k.x + (i)*X_BLOCK;                                                          \
    if ((i) + (ahead) < blocks) MULTIPLY(next, w + (ahead)*k.each, x + (ahead)*X_BLOCK);                               \
    _tile_stored(t, sums[t], 64);                                                                                      \
    add_block(kind, w, x, sums[t], sum);                                                                               \
    if ((i) + 1 == k.end) end_class(&k, sum, all);                                                                     \
  } while (0)

V_INLINE void tile_of(enum kind kind, const char *panel, const char *tile, int64_t blocks, vf *all) {
  _Alignas(64) int32_t sums[4][ROWS * ROWS];
  struct walk k = {.w = panel, .x = tile, .each = panel_block(kind), .blocks = blocks};
  k.end = (blocks + CLASSES - 1) / CLASSES;
  vf sum[ROWS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) sum[m] = v_zero();
  MULTIPLY(0, k.w, k.x);
  if (blocks > 1) MULTIPLY(1, k.w + k.each, k.x + X_BLOCK);
  for (int64_t i = 0; i < blocks; i += 4) {
    STEP(0, 2, i, 2);
    if (i + 1 < blocks) STEP(1, 3, i + 1, 2);
    if (i + 2 < blocks) STEP(2, 0, i + 2, 2);
    if (i + 3 < blocks) STEP(3, 1, i + 3, 2);
  }
}

/* Halves in tiles of their own, since each has a scale. */
#define MULTIPLY_SIX(t, u, w, x)                                                                                       \
  do {                                                                                                                 \
    MULTIPLY_HALF(t, w, x);                                                                                            \
    MULTIPLY_HALF(u, (w) + BYTES_OF_Q / 2, (x) + 16);                                                                  \
  } while (0)
#define STEP_SIX(t, u, next, beside, i)                                                                                \
  do {                                                                                                                 \
    const char *w = k.w + (i)*k.each, *x = k.x + (i)*X_BLOCK;                                                          \
    if ((i) + 1 < blocks) MULTIPLY_SIX(next, beside, w + k.each, x + X_BLOCK);                                         \
    _tile_stored(t, sums[t], 64);                                                                                      \
    _tile_stored(u, sums[u], 64);                                                                                      \
    add_block(SIX, w, x, sums[t], sum);                                                                                \
    if ((i) + 1 == k.end) end_class(&k, sum, all);                                                                     \
  } while (0)

static void tile_of_six(const char *panel, const char *tile, int64_t blocks, vf *all) {
  _Alignas(64) int32_t sums[4][ROWS * ROWS];
  struct walk k = {.w = panel, .x = tile, .each = panel_block(SIX), .blocks = blocks};
  k.end = (blocks + CLASSES - 1) / CLASSES;
  vf sum[ROWS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) sum[m] = v_zero();
  MULTIPLY_SIX(0, 1, k.w, k.x);
  for (int64_t i = 0; i < blocks; i += 2) {
    STEP_SIX(0, 1, 2, 3, i);
    if (i + 1 < blocks) STEP_SIX(2, 3, 0, 1, i + 1);
  }
}

static void tile_with_min(const char *panel, const char *tile, int64_t blocks, vf *all) {
  tile_of(WITH_MIN, panel, tile, blocks, all);
}
static void tile_without(const char *panel, const char *tile, int64_t blocks, vf *all) {
  tile_of(WITHOUT, panel, tile, blocks, all);
}

void wn_cpu_packed_tile_amx(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                            const struct wn_cpu_packed_out *out) {
  vf all[ROWS];
  const enum kind kind = tile_kind(type);
  (kind == WITH_MIN ? tile_with_min : kind == WITHOUT ? tile_without : tile_of_six)(panel, tile, K / 32, all);
  rows_out(all, M, out);
}
