/* Products of bf16 rows with sums in float (AVX512_BF16, or AMX tiles), and the packing that they need. They correspond
 * to libxsmm's kernels for floats.
 *
 * One operand of a product is rows of bf16, of which two neighbouring numbers are broadcast at a time. The other
 * operand is stored in pairs, as the instruction requires: pair k of column n has rows 2k and 2k+1. Tiles of attention
 * weights and of their gradients are floats and are rounded to the nearest bf16 inside the product. Each element of a
 * result is summed in the order of k, however many rows a call has, so results do not depend on how rows are divided
 * into strips. */
#ifndef WN_BACKENDS_CPU_ATTENTION_BF16_H
#define WN_BACKENDS_CPU_ATTENTION_BF16_H

#include <stdbool.h>
#include <stdint.h>

struct wn_attention;
struct wn_exec;

struct wn_bf16_ops {
  void (*begin)(void), (*end)(void); /* called around a thread's products; or NULL */
  /* C[rows,width] (row stride 64) = factor * X[rows,D] Y[D,width]: row stride of x is Dp; y [D/2][64] pairs, D even */
  void (*logits)(float *c, const uint16_t *x, const uint32_t *y, int64_t rows, int64_t width, int64_t D, int64_t Dp,
                 float factor);
  /* C[rows,Dp] += X[rows,width] Y[width,Dp]: x a tile of floats, y [32][Dp] pairs */
  void (*values)(float *c, const float *x, const uint32_t *y, int64_t rows, int64_t width, int64_t Dp);
  /* C[width,Dp] += X[rows,width]^T Y[rows,Dp]: x a tile of floats, rows row..row+rows-1 of a block; y [32][Dp] pairs of
   * all rows of the block. With pack_turned: C is transposed, [Dp][64], and y was packed by pack_turned */
  void (*columns)(float *c, const float *x, const void *y, int64_t row, int64_t rows, int64_t width, int64_t Dp);
  /* dst[rows,Dp] = src[rows,D] with row stride `stride`; zeros elsewhere */
  void (*pack)(uint16_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp);
  /* dst [32][Dp] pairs of src[rows,D], zeros elsewhere */
  void (*pack_pairs)(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp);
  /* dst [(D+1)/2][64] pairs of src[rows,D]^T, zeros elsewhere */
  void (*pack_transposed)(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D);
  /* dst [Dp][64] = src[rows,D]^T, zeros elsewhere; or NULL */
  void (*pack_turned)(uint16_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D);
  /* dst[rows,D] (row stride `stride`) = factor * the transpose of src [Dp][64], from its column `first` on; with
   * pack_turned */
  void (*unpack_turned)(uint16_t *dst, int64_t stride, const float *src, int64_t first, int64_t rows, int64_t D,
                        float factor);
  /* dst[rows,D] (row stride `stride`) = src[rows,Dp], rounded */
  void (*round)(uint16_t *dst, int64_t stride, const float *src, int64_t rows, int64_t D, int64_t Dp);
  /* out[i] = sum_d x[i,d] y[i,d] */
  void (*row_dot)(float *out, const uint16_t *x, int64_t x_stride, const uint16_t *y, int64_t y_stride, int64_t rows,
                  int64_t D);
};
extern const struct wn_bf16_ops wn_bf16_ops_avx512, wn_bf16_ops_amx;

/* Used by both instruction sets. */
void wn_bf16_rows_pack(uint16_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp);
void wn_bf16_rows_pairs(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D, int64_t Dp);
void wn_bf16_rows_transposed(uint32_t *dst, const uint16_t *src, int64_t stride, int64_t rows, int64_t D);
void wn_bf16_rows_round(uint16_t *dst, int64_t stride, const float *src, int64_t rows, int64_t D, int64_t Dp);
void wn_bf16_rows_dot(float *out, const uint16_t *x, int64_t x_stride, const uint16_t *y, int64_t y_stride,
                      int64_t rows, int64_t D);

/* Does the processor have AMX tiles, and is D a multiple of a tile? */
bool wn_bf16_tiles_serve(int64_t D);

/* Does this CPU have AVX512_BF16? */
bool wn_bf16_products(void);

/* Is a forward call's attention computed in bf16, of rows of floats? */
bool wn_bf16_rounds(const struct wn_exec *exec, const struct wn_attention *a);
/* Is a call on bf16 rows? */
bool wn_bf16_serves(const struct wn_exec *exec, const struct wn_attention *a, bool backward);

#endif
