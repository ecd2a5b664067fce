/* The products of packed_tiles_vnni.c in AMX tiles: the same panels, and tiles of x with signed bytes. One instruction
 * multiplies a block of 16 rows of x with one of 16 rows of w; vpdpbusd needs 128 instructions for that.
 *
 * A block's sums are exact integers either way, and are scaled and added in the same order: the same bits.
 *
 * Cost of 16 x 16 x 32 products: 16 cycles of the AMX unit and 16 stores, then 4 vector operations for each row of x, 3
 * without minima. */
#include <immintrin.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_rows.inc"

/* How many tiles of sums are computed before they are scaled: next to a tile instruction, vector multiplications run at
 * half their rate. */
enum { AHEAD = 16 };
/* Layout of a tile of x: bytes, then d and s. */
enum { CLASSES = BLOCKS, AREA = ROWS * ROWS, X_D = 32 * ROWS, X_S = X_D + 4 * ROWS, X_BLOCK = X_S + 4 * ROWS };
_Static_assert(X_BLOCK == WN_CPU_PACKED_TILE_BYTES(32), "the tile's block");

/* Tiles 0 and 1 are sums, 2 and 3 blocks of x, 4 and 5 blocks of w; 6 and 7 half a block of each. */
void wn_cpu_packed_amx_begin(void) {
  static const struct wn_cpu_amx_shape tiles[WN_CPU_AMX_TILES] = {{16, 64}, {16, 64}, {16, 32}, {16, 32},
                                                                  {8, 64},  {8, 64},  {16, 16}, {4, 64}};
  wn_cpu_amx_begin(tiles);
}

/* A macro, since tile numbers are part of the instructions. */
#define MULTIPLY(sums, of_x, of_w, w, x)                                                                               \
  do {                                                                                                                 \
    _tile_zero(sums);                                                                                                  \
    _tile_loadd(of_x, x, 32);                                                                                          \
    _tile_loadd(of_w, w, 64);                                                                                          \
    _tile_dpbssd(sums, of_x, of_w);                                                                                    \
  } while (0)

/* Adds a block's sums, scaled, to those of its class: the same floats as tile_block (packed_tiles_vnni.c). */
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

/* A class's blocks are consecutive, up to `end`. */
struct classes {
  int64_t blocks, end;
  int now;
};

/* Adds a class's sums to those of the classes before; a class may have no blocks. */
V_INLINE void end_class(struct classes *k, vf *sum, vf *all) {
  do {
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++) {
      all[m] = k->now == 0 ? sum[m] : v_add(all[m], sum[m]);
      sum[m] = v_zero();
    }
    const int c = ++k->now;
    if (c == CLASSES) return;
    const int64_t of = (k->blocks - c + CLASSES - 1) / CLASSES;
    k->end += of;
    if (of > 0) return;
  } while (true);
}

/* The sums of blocks [0,count): each product is started as soon as its tiles are free. */
#define SUM(tile, of_x, of_w, i)                                                                                       \
  do {                                                                                                                 \
    if ((i) < count) _tile_stored(tile, sums + (i)*AREA, 64);                                                          \
    if ((i) + 2 < count) MULTIPLY(tile, of_x, of_w, w + ((i) + 2) * each, x + ((i) + 2) * X_BLOCK);                    \
  } while (0)
static void sum_blocks(const char *w, int64_t each, const char *x, int64_t count, int32_t *sums) {
  MULTIPLY(0, 2, 4, w, x);
  if (count > 1) MULTIPLY(1, 3, 5, w + each, x + X_BLOCK);
  for (int64_t i = 0; i < count; i += 2) {
    SUM(0, 2, 4, i);
    SUM(1, 3, 5, i + 1);
  }
}

/* Separate sums for the two halves, since each half has its own scale. */
static void sum_halves(const char *w, int64_t each, const char *x, int64_t count, int32_t *sums) {
  for (int64_t i = 0; i < count; i++, w += each, x += X_BLOCK, sums += 2 * AREA) {
    MULTIPLY(0, 6, 7, w, x);
    MULTIPLY(1, 6, 7, w + BYTES_OF_Q / 2, x + 16);
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + AREA, 64);
  }
}

V_INLINE void tile_of(enum kind kind, const char *panel, const char *tile, int64_t blocks, vf *all) {
  _Alignas(64) int32_t sums[AHEAD * AREA];
  const int64_t each = panel_block(kind), at_once = kind == SIX ? AHEAD / 2 : AHEAD;
  struct classes k = {.blocks = blocks, .end = (blocks + CLASSES - 1) / CLASSES};
  vf sum[ROWS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) sum[m] = v_zero();
  for (int64_t i = 0; i < blocks; i += at_once) {
    const int64_t count = blocks - i < at_once ? blocks - i : at_once;
    const char *w = panel + i * each, *x = tile + i * X_BLOCK;
    (kind == SIX ? sum_halves : sum_blocks)(w, each, x, count, sums);
    for (int64_t j = 0; j < count; j++) {
      add_block(kind, w + j * each, x + j * X_BLOCK, sums + j * AREA * (kind == SIX ? 2 : 1), sum);
      if (i + j + 1 == k.end) end_class(&k, sum, all);
    }
  }
}

void wn_cpu_packed_tile_amx(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                            const struct wn_cpu_packed_out *out) {
  vf all[ROWS];
  const enum kind kind = tile_kind(type);
  if (kind == WITH_MIN)
    tile_of(WITH_MIN, panel, tile, K / 32, all);
  else if (kind == WITHOUT)
    tile_of(WITHOUT, panel, tile, K / 32, all);
  else
    tile_of(SIX, panel, tile, K / 32, all);
  rows_out(all, M, out);
}
