/* Tiles (tiles.h), after Intel's definitions. An instruction ends the program where a processor would fault: tiles not
 * configured, or shapes that do not fit. */
#include "avx512/emulate.h"

_Thread_local struct wide_tiles wide_tiles;

static void demand(bool holds) {
  if (!holds) __builtin_trap();
}

void wide_tiles_configure(const void *config) {
  const uint8_t *bytes = config;
  demand(bytes[0] == 1); /* the palette */
  memset(&wide_tiles, 0, sizeof wide_tiles);
  memcpy(wide_tiles.bytes, bytes + 16, sizeof wide_tiles.bytes);
  memcpy(wide_tiles.rows, bytes + 48, sizeof wide_tiles.rows);
  for (int t = 0; t < 8; t++) demand(wide_tiles.rows[t] <= 16 && wide_tiles.bytes[t] <= 64);
  wide_tiles.on = true;
}
void wide_tiles_release(void) {
  wide_tiles.on = false;
}

static void demand_tile(int t) {
  demand(wide_tiles.on && wide_tiles.rows[t] > 0 && wide_tiles.bytes[t] > 0);
}
void wide_tile_zero(int t) {
  demand_tile(t);
  memset(&wide_tiles.tile[t], 0, sizeof wide_tiles.tile[t]);
}
void wide_tile_load(int t, const void *p, int64_t stride) {
  wide_tile_zero(t);
  for (int r = 0; r < wide_tiles.rows[t]; r++)
    memcpy(wide_tiles.tile[t].u8[r], (const char *)p + r * stride, wide_tiles.bytes[t]);
}
void wide_tile_store(int t, void *p, int64_t stride) {
  demand_tile(t);
  for (int r = 0; r < wide_tiles.rows[t]; r++)
    memcpy((char *)p + r * stride, wide_tiles.tile[t].u8[r], wide_tiles.bytes[t]);
}

/* c [M,N] of 4-byte elements, a [M,K] and b [K,N] of 4-byte groups. */
static void demand_product(int c, int a, int b) {
  demand_tile(a), demand_tile(b), demand_tile(c);
  demand(a != b && a != c && b != c);
  demand(wide_tiles.rows[c] == wide_tiles.rows[a] && wide_tiles.bytes[c] == wide_tiles.bytes[b]);
  demand(wide_tiles.bytes[a] == 4 * wide_tiles.rows[b]);
}
void wide_tile_dpbssd(int c, int a, int b) {
  demand_product(c, a, b);
  for (int m = 0; m < wide_tiles.rows[c]; m++)
    for (int k = 0; k < wide_tiles.rows[b]; k++)
      for (int n = 0; n < wide_tiles.bytes[c] / 4; n++)
        for (int i = 0; i < 4; i++)
          wide_tiles.tile[c].i32[m][n] += wide_tiles.tile[a].i8[m][4 * k + i] * wide_tiles.tile[b].i8[k][4 * n + i];
}
/* Even and odd products are summed separately, then added. */
void wide_tile_dpbf16(int c, int a, int b) {
  float of_a[16][32], of_b[16][32];
  demand_product(c, a, b);
  for (int r = 0; r < 16; r++)
    for (int i = 0; i < 32; i++) {
      of_a[r][i] = wide_float(wide_tiles.tile[a].u16[r][i]);
      of_b[r][i] = wide_float(wide_tiles.tile[b].u16[r][i]);
    }
  const int K = wide_tiles.rows[b];
  for (int m = 0; m < wide_tiles.rows[c]; m++) {
    float sum[32] = {0};
    for (int k = 0; k < K; k++)
      for (int i = 0; i < 32; i++) sum[i] = wide_normal(fmaf(of_a[m][2 * k + i % 2], of_b[k][i], sum[i]));
    float *to = wide_tiles.tile[c].f[m];
    for (int n = 0; n < wide_tiles.bytes[c] / 4; n++)
      to[n] = wide_normal(wide_normal(to[n]) + wide_normal(sum[2 * n] + sum[2 * n + 1]));
  }
}
