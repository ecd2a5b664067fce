/* Products on tiles of floats: libxsmm's kernels, created for a call's shapes (plan.c), or our own (product.h) in a
 * build without libxsmm. Arguments: number of rows of x, `width` of the sums. All tiles have row length WN_TILE, packed
 * rows Dp. */
#ifndef WN_BACKENDS_CPU_ATTENTION_PRODUCTS_H
#define WN_BACKENDS_CPU_ATTENTION_PRODUCTS_H

#include "backends/cpu/attention/impl.h"

#define WN_PRODUCT_OF(name, of, ...)                                                                                   \
  do {                                                                                                                 \
    const wn_tile_kernel kernel = p->kernels.name[(of) / 16][rows];                                                    \
    if (kernel)                                                                                                        \
      kernel(y, x, c);                                                                                                 \
    else                                                                                                               \
      p->ops->products->tile(&(struct wn_tile_product){__VA_ARGS__}, y, x, c);                                         \
  } while (0)

/* c[rows,width] = x[rows,D] y[D,width] */
static inline void wn_tile_logits(const struct wn_attention_plan *p, int64_t rows, int64_t width, const float *y,
                                  const float *x, float *c) {
  WN_PRODUCT_OF(logits, width, .m = width, .n = rows, .k = p->a->D, .ldy = WN_TILE, .x_row = p->Dp, .x_column = 1,
                .ldc = WN_TILE);
}
/* c[rows,Dp] += x[rows,width] y[width,Dp] */
static inline void wn_tile_values(const struct wn_attention_plan *p, int64_t rows, int64_t width, const float *y,
                                  const float *x, float *c) {
  WN_PRODUCT_OF(values, width, .m = p->Dp, .n = rows, .k = width, .ldy = p->Dp, .x_row = WN_TILE, .x_column = 1,
                .ldc = p->Dp, .add = true);
}
/* c[width,Dp] += x[rows,width]^T y[rows,Dp] */
static inline void wn_tile_columns(const struct wn_attention_plan *p, int64_t rows, int64_t width, const float *y,
                                   const float *x, float *c) {
  WN_PRODUCT_OF(columns, width, .m = p->Dp, .n = width, .k = rows, .ldy = p->Dp, .x_row = 1, .x_column = WN_TILE,
                .ldc = p->Dp, .add = true);
}

/* The same on the distances of at most WN_SKEW_ROWS rows: tiles of width + WN_SKEW_ROWS columns, with stride `stride`
 * in y of the logits. */
static inline void wn_skew_logits(const struct wn_attention_plan *p, int64_t rows, int64_t width, int64_t stride,
                                  const float *y, const float *x, float *c) {
  const int64_t all = width + WN_SKEW_ROWS;
  WN_PRODUCT_OF(skew_logits, width, .m = all, .n = rows, .k = p->a->D, .ldy = stride, .x_row = p->Dp, .x_column = 1,
                .ldc = all);
}
static inline void wn_skew_values(const struct wn_attention_plan *p, int64_t rows, int64_t width, const float *y,
                                  const float *x, float *c) {
  const int64_t all = width + WN_SKEW_ROWS;
  WN_PRODUCT_OF(skew_values, width, .m = p->Dp, .n = rows, .k = all, .ldy = p->Dp, .x_row = all, .x_column = 1,
                .ldc = p->Dp, .add = true);
}
static inline void wn_skew_columns(const struct wn_attention_plan *p, int64_t rows, int64_t width, const float *y,
                                   const float *x, float *c) {
  const int64_t all = width + WN_SKEW_ROWS;
  WN_PRODUCT_OF(skew_columns, width, .m = p->Dp, .n = all, .k = rows, .ldy = p->Dp, .x_row = 1, .x_column = all,
                .ldc = p->Dp, .add = true);
}
#undef WN_PRODUCT_OF

#endif
