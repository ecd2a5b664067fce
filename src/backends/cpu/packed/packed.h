/* Products with weights in a file's blocks (ops/packed.h). Private to the cpu backend.
 *
 * x is rounded to 8 bits in blocks of 32, x ~ d q with d = max|x| / 127, and multiplied as integers with the weights'
 * own; each block's sum is scaled in float. That is llama.cpp's way, with blocks of 32 for the K types as well.
 * |x - d q| is at most d/2, so y is off by at most sum over blocks of max|x| / 254 * sum|w|. Weights of F32, F16 and
 * BF16 are multiplied with x as it is; but a matrix that is all BF16, where the processor has AVX512_BF16, with x
 * rounded to bfloat16: y is off by at most sum|w x| / 256.
 *
 * Few rows of x (decoding) read the blocks as they lie, or, with AVX-512 VNNI or AVX2, in strips of 16 rows that were
 * laid out when the model was loaded, which takes a fourth of the instructions. More rows (a prompt) are multiplied in
 * tiles with panels of w by the same instructions, in the processor's tiles where it has AMX: the same integers, scaled
 * in the same order, so that a row of y has the same bits alone, in a prompt and in any batch. Rows in bfloat16 have
 * the same bits so, too. Without those instructions, where a part of w is in single floats, and from
 * wn_context_options.exact_rows on, rows of w are turned into floats, a panel that stays in the cache at a time, and
 * multiplied by sgemm: nothing is rounded then. Rows that are to be apart (wn_linear) go as a row alone goes, however
 * many they are. */
#ifndef WN_BACKENDS_CPU_PACKED_PACKED_H
#define WN_BACKENDS_CPU_PACKED_PACKED_H

#include "backends/cpu/cpu.h"

/* Rows of x that a kernel for few rows takes at a time, and rows of w: those of its output. */
#define WN_CPU_PACKED_TILE 8
#define WN_CPU_PACKED_AT_ONCE 32
/* Blocks of x are padded to whole steps of at most this many elements; the rest of the last step is zero. */
#define WN_CPU_PACKED_STEP 128
/* Rows of x in a tile, and of w in a panel. */
#define WN_CPU_PACKED_TILED 16

/* Rows of x in 8 bits. A step has the first halves of its blocks side by side and then the second ones. */
struct wn_cpu_packed_x {
  int64_t K, ld, ldd; /* elements per row; the same in whole steps; blocks in whole steps */
  int8_t *q;          /* [M,ld] */
  float *d, *s;       /* [M,ldd] a block's scale, and its sum d * n */
  int32_t *n;         /* [M,ldd] the sum of q */
  const float *x;     /* [M,K], as it was */
  int64_t ldx;
};

/* Where the products of a panel and a tile go. */
struct wn_cpu_packed_out {
  float *y; /* [M,rows] */
  int64_t ldy;
  const float *b; /* [rows] or NULL */
  int rows;       /* 1..TILED */
  bool accumulate;
};

struct wn_cpu_packed_kernels {
  /* Row m of x into `out`. */
  void (*quantize)(const struct wn_cpu_packed_x *out, int64_t m);
  /* to[m*AT_ONCE + r] = w's row r times x's row first+m, for M <= TILE rows of x and rows <= AT_ONCE. */
  void (*product)(wn_gguf_type type, const char *w, int64_t rows, const struct wn_cpu_packed_x *x, int64_t first, int M,
                  float *to);
  /* K weights of a row as floats. */
  void (*decode)(wn_gguf_type type, const char *w, int64_t K, float *to);

  /* Many rows of x, for the types in blocks alone; NULL: the instruction set has no kernel for them. Row m of a tile
   * of WN_CPU_PACKED_TILE_BYTES; a panel of up to TILED rows of w, in WN_CPU_PACKED_PANEL_BYTES; its first rows times
   * the first M rows of the tile. */
  void (*begin)(void); /* a thread, before its tiles, and after them; NULL: nothing */
  void (*end)(void);
  void (*tile_row)(const float *x, int64_t K, int m, char *tile);
  void (*panel)(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *panel);
  void (*tile)(wn_gguf_type type, const char *panel, const char *tile, int64_t K, int M,
               const struct wn_cpu_packed_out *out);

  /* Strips (ops/packed.h), for the types in blocks alone; NULL likewise. Bytes of one, 0: the type has none; up to
   * TILED rows of w as one; its panel; its rows times x's rows first .. first+M-1, M <= TILE. */
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

/* A block of 16 rows of x with scales and sums; of 16 rows of w with five numbers each, the most that a type needs. */
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

/* packed_avx512bf16.c, for weights in bfloat16 on AVX-512 with BF16: elements of a row of x; x rounded, zeros behind
 * it; any number of rows of w, [rows,K] at w, times M of x. */
int64_t wn_cpu_packed_bf16_ld(int64_t K);
void wn_cpu_packed_bf16_round(const float *x, int64_t K, uint16_t *to);
void wn_cpu_packed_bf16_rows(const char *w, int64_t rows, int64_t K, const uint16_t *x, int64_t M,
                             const struct wn_cpu_packed_out *out);

/* struct wn_backend's slots for strips. */
size_t wn_cpu_packed_strips_bytes(wn_gguf_type type, int64_t rows, int64_t K, bool wide);
void wn_cpu_packed_strips_make(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t K, void *to,
                               bool wide);

/* linear with packed weights; `wide`: the AVX-512 kernels. */
wn_status wn_cpu_packed_forward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
/* dx alone. */
wn_status wn_cpu_packed_backward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
size_t wn_cpu_packed_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward, bool wide);

#endif
