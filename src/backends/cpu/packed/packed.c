/* linear with quantised weights: chooses kernels and divides rows among threads. packed.h has the arithmetic.
 *
 * Decoding reads the blocks once, N K weights of 0.5625 to 4 bytes. A prompt's panels cost one pass over the blocks in
 * addition to 2MNK operations. */
#include "backends/cpu/packed/packed.h"
#include <string.h>
#include "base/alloc.h"

/* Floats in a panel for sgemm: fits the L2 caches of two cores. */
enum { PANEL_FLOATS = 1 << 19 };
/* Rows of x in tiles at a time; bytes of panels that a thread multiplies with each tile. */
enum { TILED_ROWS = 512, TILED_BYTES = 128 * 1024, TILED_PANELS = 8 };

/* How the forward products are computed. */
enum method {
  FEW,      /* integers; weights are read in place: at most FEW_ROWS rows */
  TILES,    /* the same integers, from panels: more rows */
  BFLOAT16, /* weights and x in bfloat16 */
  FLOATS    /* panels of floats */
};
/* Rows of x in bfloat16: processed in multiples of BFLOAT16_ROWS; at most this many bytes are multiplied with all of a
 * thread's weights. */
enum { BFLOAT16_ROWS = 6, BFLOAT16_BYTES = 1 << 18 };
enum { FEW_ROWS = 32, FEW_ROWS_BESIDE_TILES = 12, TILED_K = 1 << 24 };

static const struct wn_cpu_packed_kernels *packed_kernels_for(bool wide) {
#if defined(__aarch64__)
  (void)wide;
  return wn_cpu_has_dot() ? wn_cpu_packed_kernels_dot() : wn_cpu_packed_kernels_avx2();
#elif WN_HAS_KERNELS
  if (!wide) return wn_cpu_packed_kernels_avx2();
  if (wn_cpu_has_amx_int8()) return wn_cpu_packed_kernels_amx();
  return __builtin_cpu_supports("avx512vnni") ? wn_cpu_packed_kernels_vnni() : wn_cpu_packed_kernels_avx512();
#else
  (void)wide;
  return NULL; /* not reached: ref's slots are used */
#endif
}

static int64_t packed_whole(int64_t n, int64_t of) {
  return (n + of - 1) / of * of;
}

static int64_t panel_rows(const struct wn_linear *a) {
  int64_t rows = PANEL_FLOATS / a->K / 16 * 16;
  if (rows < 64) rows = 64;
  return rows < a->N ? rows : a->N;
}

static size_t panel_bytes(const struct wn_linear *a) {
  return (size_t)packed_whole(panel_rows(a) * a->K * (int64_t)sizeof(float), WN_ALIGN);
}
/* Scratch for the product with a panel. */
static size_t panel_product_bytes(const struct wn_exec *exec, const struct wn_linear *a, bool backward) {
  struct wn_linear part = *a;
  part.N = panel_rows(a);
  return wn_cpu_linear_scratch(exec, &part, backward);
}

/* Can tiles be used? They need the instructions, and all weights in blocks. */
static bool has_tiles(const struct wn_cpu_packed_kernels *k, const struct wn_linear *a) {
  if (!k->tile || a->K > TILED_K) return false;
  for (int p = 0; p < a->packed->count; p++)
    if (a->packed->part[p].type < WN_GGUF_Q8_0) return false;
  return true;
}

/* Are all weights in bfloat16, and are there instructions for it? */
static bool has_bfloat16(const struct wn_linear *a, bool wide) {
  bool serves = wide;
#if defined(__x86_64__)
  serves = serves && __builtin_cpu_supports("avx512bf16");
#endif
  for (int p = 0; p < a->packed->count; p++) serves = serves && a->packed->part[p].type == WN_GGUF_BF16;
  return serves;
}

static enum method packed_method(const struct wn_exec *exec, const struct wn_cpu_packed_kernels *k,
                                 const struct wn_linear *a, bool wide) {
  const int64_t exact = exec->exact_rows;
  if (exact && (a->rows_apart ? 1 : a->M) >= exact) return FLOATS;
  if (has_bfloat16(a, wide)) return BFLOAT16;
  if (has_tiles(k, a)) return a->M <= FEW_ROWS_BESIDE_TILES ? FEW : TILES;
  return a->rows_apart || a->M <= FEW_ROWS ? FEW : FLOATS;
}

/* Lays out the rows of x in 8 bits, from base on (NULL: only computes the size). */
static size_t plan_x(const struct wn_linear *a, char *base, struct wn_cpu_packed_x *out) {
  const int64_t rows = a->rows_apart || a->M < FEW_ROWS ? a->M : FEW_ROWS;
  const int64_t M = packed_whole(rows, WN_CPU_PACKED_TILE);
  *out = (struct wn_cpu_packed_x){.K = a->K,
                                  .ld = packed_whole(a->K, WN_CPU_PACKED_STEP),
                                  .ldd = packed_whole(a->K, WN_CPU_PACKED_STEP) / 32,
                                  .x = a->x,
                                  .ldx = a->ldx};
  const size_t bytes = (size_t)(M * out->ld), scales = (size_t)(M * out->ldd) * sizeof(float);
  if (base) {
    out->q = (int8_t *)base;
    out->d = (float *)(void *)(base + bytes);
    out->s = (float *)(void *)(base + bytes + scales);
    out->n = (int32_t *)(void *)(base + bytes + 2 * scales);
  }
  return bytes + 3 * scales;
}

/* How many panels a thread has at a time. */
static int64_t tiled_panels(int64_t K) {
  const int64_t fit = TILED_BYTES / WN_CPU_PACKED_PANEL_BYTES(K);
  return fit < 1 ? 1 : fit > TILED_PANELS ? TILED_PANELS : fit;
}

/* Scratch for tiles of x, and for each thread's panels. */
static size_t tiles_bytes(const struct wn_linear *a) {
  const int64_t rows = a->M < TILED_ROWS ? a->M : TILED_ROWS;
  return (size_t)(packed_whole(rows, WN_CPU_PACKED_TILED) / WN_CPU_PACKED_TILED * WN_CPU_PACKED_TILE_BYTES(a->K));
}

/* Scratch for rows of x in bfloat16. */
static size_t bfloat16_bytes(const struct wn_linear *a) {
  return (size_t)((a->M < TILED_ROWS ? a->M : TILED_ROWS) * wn_cpu_packed_bf16_ld(a->K)) * sizeof(uint16_t);
}

/* Includes what fewer rows need, which may use another method. */
size_t wn_cpu_packed_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  const size_t panel = panel_bytes(a) + panel_product_bytes(exec, a, backward);
  if (backward) return panel;
  const enum method how = packed_method(exec, k, a, wide);
  if (how == BFLOAT16) return bfloat16_bytes(a);
  struct wn_cpu_packed_x x;
  const bool tiles = has_tiles(k, a) && a->M > FEW_ROWS_BESIDE_TILES;
  struct wn_linear few = *a;
  if (tiles) few.M = FEW_ROWS_BESIDE_TILES;
  const size_t rows = plan_x(&few, NULL, &x), floats = how == FLOATS ? panel : 0;
  size_t more = 0; /* rows shorter than a block have no panels */
  if (tiles) more = tiles_bytes(a) + (size_t)(exec->threads * tiled_panels(a->K) * WN_CPU_PACKED_PANEL_BYTES(a->K));
  const size_t most = rows > floats ? rows : floats;
  return more > most ? more : most;
}

/* The strips of a part whose first row is in n0..n1-1. */
struct strips {
  int64_t first, end;
};
static struct strips strips_of(int64_t start, int64_t rows, int64_t n0, int64_t n1) {
  const int64_t T = WN_CPU_PACKED_TILED, all = (rows + T - 1) / T;
  const int64_t first = n0 > start ? (n0 - start + T - 1) / T : 0, end = n1 > start ? (n1 - start + T - 1) / T : 0;
  return (struct strips){.first = first, .end = end < all ? end : all};
}

/* Few rows of x times strips of the part that begins at row `start`. */
static void packed_share_strips(const struct wn_cpu_packed_kernels *k, const struct wn_linear *a,
                                const struct wn_cpu_packed_x *x, const struct wn_packed_part *part, int64_t start,
                                struct strips of) {
  const int64_t T = WN_CPU_PACKED_TILED, bytes = k->strip_bytes(part->type, a->K);
  for (int64_t i = of.first; i < of.end; i++) {
    const int64_t n = start + i * T, rows = part->rows - i * T;
    for (int64_t m = 0; m < a->M; m += WN_CPU_PACKED_TILE) {
      const struct wn_cpu_packed_out out = {.y = (float *)a->y + m * a->ldy + n,
                                            .ldy = a->ldy,
                                            .b = a->b ? (const float *)a->b + n : NULL,
                                            .rows = (int)(rows < T ? rows : T),
                                            .accumulate = a->accumulate};
      k->strip(part->type, (const char *)part->strips + i * bytes, x, m,
               (int)(a->M - m < WN_CPU_PACKED_TILE ? a->M - m : WN_CPU_PACKED_TILE), &out);
    }
  }
}

/* Few rows of x times rows n0..n1-1 of w. */
static void packed_share(const struct wn_cpu_packed_kernels *k, const struct wn_linear *a,
                         const struct wn_cpu_packed_x *x, int64_t n0, int64_t n1) {
  const float *bias = a->b; /* [N] */
  float *y = a->y;          /* [M,N] */
  float to[WN_CPU_PACKED_AT_ONCE * WN_CPU_PACKED_TILE];
  int64_t start = 0; /* first row of the part */
  for (int p = 0; p < a->packed->count; start += a->packed->part[p++].rows) {
    const struct wn_packed_part *part = &a->packed->part[p];
    const size_t bytes = wn_packed_row_bytes(part->type, a->K);
    const int64_t end = start + part->rows < n1 ? start + part->rows : n1;
    int64_t rows;
    if (part->strips) {
      packed_share_strips(k, a, x, part, start, strips_of(start, part->rows, n0, n1));
      continue;
    }
    for (int64_t n = n0 > start ? n0 : start; n < end; n += rows) {
      rows = end - n < WN_CPU_PACKED_AT_ONCE ? end - n : WN_CPU_PACKED_AT_ONCE;
      const char *w = (const char *)part->data + (size_t)(n - start) * bytes;
      for (int64_t m0 = 0; m0 < a->M; m0 += WN_CPU_PACKED_TILE) {
        const int M = (int)(a->M - m0 < WN_CPU_PACKED_TILE ? a->M - m0 : WN_CPU_PACKED_TILE);
        k->product(part->type, w, rows, x, m0, M, to);
        for (int m = 0; m < M; m++) {
          float *row = y + (m0 + m) * a->ldy + n;
          for (int64_t r = 0; r < rows; r++) {
            const float v = to[m * WN_CPU_PACKED_AT_ONCE + r] + (bias ? bias[n + r] : 0.0f);
            row[r] = a->accumulate ? row[r] + v : v;
          }
        }
      }
    }
  }
}

/* Kernels take 1, 2, 4 or 8 rows of x at a time. Those behind the last are computed and not used: zeros, as sums of
 * what stands in scratch could overflow. */
static int64_t packed_rows_taken(int64_t M) {
  const int64_t last = M % WN_CPU_PACKED_TILE;
  return last == 3 ? M + 1 : last > 4 ? M + WN_CPU_PACKED_TILE - last : M;
}
static void packed_clear_row(const struct wn_cpu_packed_x *x, int64_t m) {
  memset(x->q + m * x->ld, 0, (size_t)x->ld);
  memset(x->d + m * x->ldd, 0, (size_t)x->ldd * sizeof *x->d);
  memset(x->s + m * x->ldd, 0, (size_t)x->ldd * sizeof *x->s);
  memset(x->n + m * x->ldd, 0, (size_t)x->ldd * sizeof *x->n);
}

/* What threads share. A row's sum does not depend on where a thread's columns begin. */
struct packed_run {
  const struct wn_cpu_packed_kernels *k;
  const struct wn_linear *a;
  struct wn_cpu_packed_x x; /* few rows */
  int64_t m0, M;            /* of many rows: those that are multiplied now */
  char *tiles, *rooms;      /* of x; for panels, a hand's after the other's */
  uint16_t *rounded;        /* x in bfloat16 */
  float *panel;             /* rows n0 on of w in floats */
  int64_t n0;
};

static void packed_quantize_row(void *run, int64_t m) {
  const struct packed_run *r = run;
  r->k->quantize(&r->x, m);
}
static void packed_columns(void *run, int64_t n0, int64_t n1) {
  const struct packed_run *r = run;
  packed_share(r->k, r->a, &r->x, n0, n1);
}

static void packed_few_rows(const struct wn_exec *exec, const struct wn_linear *a,
                            const struct wn_cpu_packed_kernels *k) {
  struct packed_run run = {.k = k, .a = a};
  plan_x(a, exec->scratch, &run.x);
  bool blocks_too = false; /* weights of plain types are multiplied with the unrounded x */
  for (int p = 0; p < a->packed->count; p++) blocks_too = blocks_too || a->packed->part[p].type >= WN_GGUF_Q8_0;
  if (blocks_too) {
    wn_parallel_for(a->M * a->K < 16384 ? 1 : exec->threads, a->M, packed_quantize_row, &run);
    for (int64_t m = a->M; m < packed_rows_taken(a->M); m++) packed_clear_row(&run.x, m);
  }
  wn_parallel_blocks(a->M * a->N * a->K < 65536 ? 1 : exec->threads, a->N, 16, packed_columns, &run);
}

/* Converts strip i of a part to a panel. */
static void tiles_panel(const struct wn_cpu_packed_kernels *k, const struct wn_packed_part *part, int64_t K, int64_t i,
                        char *to) {
  const int64_t T = WN_CPU_PACKED_TILED, rows = part->rows - i * T;
  if (part->strips)
    k->strip_panel(part->type, (const char *)part->strips + i * k->strip_bytes(part->type, K), K, to);
  else
    k->panel(part->type, (const char *)part->data + (size_t)(i * T) * wn_packed_row_bytes(part->type, K),
             rows < T ? rows : T, K, to);
}

/* Rows n0..n1-1 of w (a strip belongs to the share of its first row) times rows m0..m0+M-1 of x. room: for the
 * panels. */
static void tiles_share(const struct wn_cpu_packed_kernels *k, const struct wn_linear *a, const char *tiles, int64_t m0,
                        int64_t M, int64_t n0, int64_t n1, char *room) {
  const int64_t K = a->K, T = WN_CPU_PACKED_TILED, tile = WN_CPU_PACKED_TILE_BYTES(K);
  const int64_t panel = WN_CPU_PACKED_PANEL_BYTES(K), most = tiled_panels(K);
  int64_t start = 0; /* first row of the part */
  for (int p = 0; p < a->packed->count; start += a->packed->part[p++].rows) {
    const struct wn_packed_part *part = &a->packed->part[p];
    const struct strips of = strips_of(start, part->rows, n0, n1);
    for (int64_t i = of.first; i < of.end; i += most) {
      const int64_t count = of.end - i < most ? of.end - i : most;
      for (int64_t j = 0; j < count; j++) tiles_panel(k, part, K, i + j, room + j * panel);
      for (int64_t m = 0; m < M; m += T) {
        for (int64_t j = 0; j < count; j++) {
          const int64_t n = start + (i + j) * T, rows = part->rows - (i + j) * T;
          const struct wn_cpu_packed_out out = {.y = (float *)a->y + (m0 + m) * a->ldy + n,
                                                .ldy = a->ldy,
                                                .b = a->b ? (const float *)a->b + n : NULL,
                                                .rows = (int)(rows < T ? rows : T),
                                                .accumulate = a->accumulate};
          k->tile(part->type, room + j * panel, tiles + m / T * tile, K, (int)(M - m < T ? M - m : T), &out);
        }
      }
    }
  }
}

static void tiles_row(void *run, int64_t m) {
  const struct packed_run *r = run;
  const struct wn_linear *a = r->a;
  const int64_t T = WN_CPU_PACKED_TILED;
  r->k->tile_row((const float *)a->x + (r->m0 + m) * a->ldx, a->K, (int)(m % T),
                 r->tiles + m / T * WN_CPU_PACKED_TILE_BYTES(a->K));
}
static void tiles_columns(void *run, int64_t n0, int64_t n1) {
  const struct packed_run *r = run;
  const int64_t own = tiled_panels(r->a->K) * WN_CPU_PACKED_PANEL_BYTES(r->a->K);
  if (r->k->begin) r->k->begin();
  tiles_share(r->k, r->a, r->tiles, r->m0, r->M, n0, n1, r->rooms + wn_hand() * own);
  if (r->k->end) r->k->end();
}

static void packed_tiles(const struct wn_exec *exec, const struct wn_linear *a, const struct wn_cpu_packed_kernels *k) {
  const int64_t T = WN_CPU_PACKED_TILED, tile = WN_CPU_PACKED_TILE_BYTES(a->K);
  struct packed_run r = {.k = k, .a = a, .tiles = exec->scratch, .rooms = (char *)exec->scratch + tiles_bytes(a)};
  for (; r.m0 < a->M; r.m0 += TILED_ROWS) {
    r.M = a->M - r.m0 < TILED_ROWS ? a->M - r.m0 : TILED_ROWS;
    if (r.M % T) memset(r.tiles + r.M / T * tile, 0, (size_t)tile); /* rows behind the last are multiplied too */
    wn_parallel_for(exec->threads, r.M, tiles_row, &r);
    wn_parallel_blocks(exec->threads, a->N, T, tiles_columns, &r);
  }
}

/* Rows n0..n1-1 of w times M rows of x in bfloat16; outputs from y on. Takes few rows of w at a time, and as many rows
 * of x as stay in the L2 cache. */
static void bfloat16_share(const struct wn_linear *a, const uint16_t *x, int64_t M, int64_t n0, int64_t n1, float *y) {
  const int64_t ld = wn_cpu_packed_bf16_ld(a->K), fit = BFLOAT16_BYTES / 2 / ld / BFLOAT16_ROWS * BFLOAT16_ROWS;
  const int64_t most = fit < BFLOAT16_ROWS ? BFLOAT16_ROWS : fit;
  int64_t start = 0; /* first row of the part */
  for (int p = 0; p < a->packed->count; start += a->packed->part[p++].rows) {
    const struct wn_packed_part *part = &a->packed->part[p];
    const int64_t first = n0 > start ? n0 : start, end = start + part->rows < n1 ? start + part->rows : n1;
    if (first >= end) continue;
    const char *w = (const char *)part->data + (size_t)((first - start) * a->K) * sizeof(uint16_t);
    for (int64_t m = 0; m < M; m += most) {
      const struct wn_cpu_packed_out out = {.y = y + m * a->ldy + first,
                                            .ldy = a->ldy,
                                            .b = a->b ? (const float *)a->b + first : NULL,
                                            .accumulate = a->accumulate};
      wn_cpu_packed_bf16_rows(w, end - first, a->K, x + m * ld, M - m < most ? M - m : most, &out);
    }
  }
}

static void bfloat16_row(void *run, int64_t m) {
  const struct packed_run *r = run;
  const struct wn_linear *a = r->a;
  wn_cpu_packed_bf16_round((const float *)a->x + (r->m0 + m) * a->ldx, a->K,
                           r->rounded + m * wn_cpu_packed_bf16_ld(a->K));
}
static void bfloat16_columns(void *run, int64_t n0, int64_t n1) {
  const struct packed_run *r = run;
  bfloat16_share(r->a, r->rounded, r->M, n0, n1, (float *)r->a->y + r->m0 * r->a->ldy);
}

static void packed_bfloat16(const struct wn_exec *exec, const struct wn_linear *a) {
  const int threads = a->M * a->N * a->K < 65536 ? 1 : exec->threads;
  struct packed_run r = {.a = a, .rounded = exec->scratch};
  for (; r.m0 < a->M; r.m0 += TILED_ROWS) {
    r.M = a->M - r.m0 < TILED_ROWS ? a->M - r.m0 : TILED_ROWS;
    wn_parallel_for(r.M * a->K < 16384 ? 1 : threads, r.M, bfloat16_row, &r);
    wn_parallel_blocks(threads, a->N, 16, bfloat16_columns, &r);
  }
}

static void panel_row(void *run, int64_t i) {
  const struct packed_run *r = run;
  wn_gguf_type type;
  const char *w = wn_packed_row(r->a->packed, r->a->K, r->n0 + i, &type);
  r->k->decode(type, w, r->a->K, r->panel + i * r->a->K);
}

/* The linear call for rows [n, n+rows) only, with a float panel at the start of scratch. */
static struct wn_linear panel_map(const struct wn_exec *exec, const struct wn_linear *a,
                                  const struct wn_cpu_packed_kernels *k, int64_t n, int64_t rows) {
  const struct packed_run run = {.k = k, .a = a, .panel = exec->scratch, .n0 = n};
  wn_parallel_for(exec->threads, rows, panel_row, &run);
  struct wn_linear part = *a;
  part.N = rows;
  part.w = exec->scratch;
  part.packed = NULL;
  return part;
}

wn_status wn_cpu_packed_forward(const struct wn_exec *exec, const struct wn_linear *a, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  if (a->M == 0) return WN_OK;
  const enum method how = packed_method(exec, k, a, wide);
  if (how != FLOATS) {
    if (how == FEW)
      packed_few_rows(exec, a, k);
    else if (how == BFLOAT16)
      packed_bfloat16(exec, a);
    else
      packed_tiles(exec, a, k);
    return WN_OK;
  }
  const int64_t most = panel_rows(a);
  const struct wn_exec behind = wn_exec_behind(exec, panel_bytes(a));
  for (int64_t n = 0; n < a->N; n += most) {
    const int64_t rows = a->N - n < most ? a->N - n : most;
    struct wn_linear part = panel_map(exec, a, k, n, rows);
    part.b = a->b ? (const float *)a->b + n : NULL;
    if (a->rows_apart) part.M = 1; /* a product for each row, as if it were alone */
    for (int64_t m = 0; m < a->M; m += part.M) {
      part.x = (const float *)a->x + m * a->ldx;
      part.y = (float *)a->y + m * a->ldy + n;
      WN_TRY(wn_cpu_linear_forward(&behind, &part));
    }
  }
  return WN_OK;
}

wn_status wn_cpu_packed_backward(const struct wn_exec *exec, const struct wn_linear *a, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  const int64_t most = panel_rows(a);
  const struct wn_exec behind = wn_exec_behind(exec, panel_bytes(a));
  for (int64_t n = 0; n < a->N && a->M > 0; n += most) {
    const int64_t rows = a->N - n < most ? a->N - n : most;
    struct wn_linear part = panel_map(exec, a, k, n, rows);
    part.dy = (const float *)a->dy + n;
    part.accumulate_dx = a->accumulate_dx || n > 0;
    part.db = NULL;
    WN_TRY(wn_cpu_linear_backward(&behind, &part));
  }
  return WN_OK;
}

size_t wn_cpu_packed_strips_bytes(wn_gguf_type type, int64_t rows, int64_t K, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  if (!k->strip || K > TILED_K) return 0;
  return (size_t)((rows + WN_CPU_PACKED_TILED - 1) / WN_CPU_PACKED_TILED * k->strip_bytes(type, K));
}

struct packed_strips {
  const struct wn_cpu_packed_kernels *k;
  const struct wn_packed_part *part;
  int64_t K;
  char *to;
};
static void packed_strips_rows(void *args, int64_t from, int64_t to) {
  const struct packed_strips *s = args;
  const struct wn_packed_part *part = s->part;
  for (int64_t n = from; n < to; n += WN_CPU_PACKED_TILED) {
    const int64_t rows = to - n < WN_CPU_PACKED_TILED ? to - n : WN_CPU_PACKED_TILED;
    s->k->strip_make(part->type, (const char *)part->data + (size_t)n * wn_packed_row_bytes(part->type, s->K), rows,
                     s->K, s->to + n / WN_CPU_PACKED_TILED * s->k->strip_bytes(part->type, s->K));
  }
}

void wn_cpu_packed_strips_make(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t K, void *to,
                               bool wide) {
  wn_parallel_blocks(exec->threads, part->rows, WN_CPU_PACKED_TILED, packed_strips_rows,
                     &(struct packed_strips){packed_kernels_for(wide), part, K, to});
}
