/* Products with weights in a file's blocks (ops/packed.h). Private to the cpu backend.
 *
 * x is rounded to 8 bits in blocks of 32, x ~ d q with d = max|x| / 127, and multiplied with the weights' integers;
 * each block's sum is scaled in float. llama.cpp does the same, and for K types too the blocks have 32 numbers here. |x
 * - d q| is at most d/2, so the error of y is at most sum over blocks of max|x| / 254 * sum|w|. F32, F16 and BF16
 * weights are multiplied with the unrounded x. Exception: if the whole matrix is BF16 and the processor has
 * AVX512_BF16, x is rounded to bfloat16; the error of y is then at most sum|w x| / 256.
 *
 * Few rows of x (decoding) read the blocks in place, or, with AVX-512 VNNI or AVX2, from strips of 16 rows that are
 * laid out when the model is loaded, which take a fourth of the instructions. More rows (a prompt) are multiplied in
 * tiles with panels of w by the same instructions, or in AMX tiles if there are any: the same integers, scaled in the
 * same order, so a row of y has the same bits alone, in a prompt and in any batch. This also holds for rows in
 * bfloat16.
 *
 * In three cases rows of w are converted to floats, one panel in cache at a time, and multiplied by sgemm, without any
 * rounding: without those instructions, if a part of w is not in blocks, and from wn_context_options.exact_rows rows
 * on. With rows_apart (wn_linear) each row takes the path of a single row, however many rows there are. */
#ifndef WN_BACKENDS_CPU_PACKED_PACKED_H
#define WN_BACKENDS_CPU_PACKED_PACKED_H

#include "backends/cpu/cpu.h"

/* Most rows of x that a kernel for few rows takes at a time, and most rows of w, which are those of its output. */
#define WN_CPU_PACKED_TILE 8
#define WN_CPU_PACKED_AT_ONCE 32
/* Blocks of x are padded to whole steps of at most this many elements; the rest of the last step is zero. */
#define WN_CPU_PACKED_STEP 128
/* Rows of x in a tile, and rows of w in a panel. */
#define WN_CPU_PACKED_TILED 16

/* Rows of x in 8 bits. A step stores the first halves of its blocks contiguously, then the second halves. */
struct wn_cpu_packed_x {
  int64_t K, ld, ldd; /* elements per row; the same rounded up to steps; blocks per row, rounded up to steps */
  int8_t *q;          /* [M,ld] */
  float *d, *s;       /* [M,ldd] a block's scale, and its sum d * n */
  int32_t *n;         /* [M,ldd] the sum of q */
  const float *x;     /* [M,K], unrounded */
  int64_t ldx;
};

/* Where the products of a panel and a tile are stored. */
struct wn_cpu_packed_out {
  float *y; /* [M,rows] */
  int64_t ldy;
  const float *b; /* [rows] or NULL */
  int rows;       /* 1..TILED */
  bool accumulate;
};

struct wn_cpu_packed_kernels {
  /* Rounds row m of x into `out`. */
  void (*quantize)(const struct wn_cpu_packed_x *out, int64_t m);
  /* to[m*AT_ONCE + r] = row r of w times row first+m of x, for M <= TILE rows of x and rows <= AT_ONCE. */
  void (*product)(wn_gguf_type type, const char *w, int64_t rows, const struct wn_cpu_packed_x *x, int64_t first, int M,
                  float *to);
  /* Converts K weights of a row to floats. */
  void (*decode)(wn_gguf_type type, const char *w, int64_t K, float *to);

  /* Many rows of x; only for block types. NULL: the instruction set has no such kernel. tile_row: row m of a tile,
   * which takes WN_CPU_PACKED_TILE_BYTES. panel: up to TILED rows of w, in WN_CPU_PACKED_PANEL_BYTES. The product: the
   * panel's first rows times the first M rows of the tile. */
  void (*begin)(void); /* before and after a thread's tiles; NULL: nothing to do */
  void (*end)(void);
  void (*tile_row)(const float *x, int64_t K, int m, char *tile);
  void (*panel)(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel);
  void (*tile)(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
               const struct wn_cpu_packed_out *out);

  /* Strips (ops/packed.h), only for block types; NULL as above. strip_bytes: size of a strip, 0 if the type has none.
   * Then: makes a strip of up to TILED rows of w; makes its panel; multiplies its rows with rows first .. first+M-1 of
   * x, M <= TILE. */
  int64_t (*strip_bytes)(wn_gguf_type type, int64_t K);
  void (*strip_make)(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *strip);
  void (*strip_panel)(wn_gguf_type type, const char *strip, int64_t K, char *panel);
  void (*strip)(wn_gguf_type type, const char *strip, const struct wn_cpu_packed_x *x, int64_t first, int M,
                const struct wn_cpu_packed_out *out);
};
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_avx2(void);
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_dot(void); /* ARM: with sdot */
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_avx512(void);
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_vnni(void); /* AVX-512 with VNNI */
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_amx(void);  /* and with tiles of bytes */

/* Per block: 16 rows of x with scales and sums; 16 rows of w with five numbers each, the most that a type needs. */
#define WN_CPU_PACKED_TILE_BYTES(K) ((K) / 32 * (32 + 8) * WN_CPU_PACKED_TILED)
#define WN_CPU_PACKED_PANEL_BYTES(K) ((K) / 32 * (32 + 20) * WN_CPU_PACKED_TILED)
/* packed_tiles_vnni.c */
void wn_cpu_packed_tile_row(const float *x, int64_t K, int m, char *tile);
void wn_cpu_packed_tile_row_signed(const float *x, int64_t K, int m, char *tile);
void wn_cpu_packed_panel(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel);
void wn_cpu_packed_tile(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                        const struct wn_cpu_packed_out *out);
/* packed_tiles_amx.c */
void wn_cpu_packed_amx_begin(void);
void wn_cpu_packed_tile_amx(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                            const struct wn_cpu_packed_out *out);
/* packed_tiles_avx2.c */
void wn_cpu_packed_tile_row_avx2(const float *x, int64_t K, int m, char *tile);
void wn_cpu_packed_panel_avx2(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel);
void wn_cpu_packed_tile_avx2(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
                             const struct wn_cpu_packed_out *out);
/* packed_strips_vnni.c, packed_strips_avx2.c */
#define WN_CPU_PACKED_STRIPS(isa)                                                                                      \
  int64_t wn_cpu_packed_strip_bytes_##isa(wn_gguf_type type, int64_t K);                                               \
  void wn_cpu_packed_strip_make_##isa(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *strip);         \
  void wn_cpu_packed_strip_panel_##isa(wn_gguf_type type, const char *strip, int64_t K, char *panel);                  \
  void wn_cpu_packed_strip_##isa(wn_gguf_type type, const char *strip, const struct wn_cpu_packed_x *x, int64_t first, \
                                 int M, const struct wn_cpu_packed_out *out)
WN_CPU_PACKED_STRIPS(vnni);
WN_CPU_PACKED_STRIPS(avx2);

/* packed_avx512bf16.c, for bfloat16 weights with AVX512_BF16: padded elements per row of x; rounding x, with zeros
 * after it; multiplying any number of rows of w, [rows,K], with M rows of x. */
int64_t wn_cpu_packed_bf16_ld(int64_t K);
void wn_cpu_packed_bf16_round(const float *x, int64_t K, uint16_t *to);
void wn_cpu_packed_bf16_rows(const char *w, int64_t rows, int64_t K, const uint16_t *x, int64_t M,
                             const struct wn_cpu_packed_out *out);

/* The strips slots of struct wn_backend. */
size_t wn_cpu_packed_strips_bytes(wn_gguf_type type, int64_t rows, int64_t K, bool wide);
void wn_cpu_packed_strips_make(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t K, void *to,
                               bool wide);

/* linear with quantised weights; `wide`: with the AVX-512 kernels. */
wn_status wn_cpu_packed_forward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
/* Computes only dx. */
wn_status wn_cpu_packed_backward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
size_t wn_cpu_packed_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward, bool wide);

#endif
