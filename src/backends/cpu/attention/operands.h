/* Packs the operands of a call's products from its rows: as floats (products.h) or bf16 (bf16.h). The loops of forward
 * and backward are the same for both: tiles of logits, attention weights and gradients, and all sums, are floats. */
#ifndef WN_BACKENDS_CPU_ATTENTION_OPERANDS_H
#define WN_BACKENDS_CPU_ATTENTION_OPERANDS_H

#include "backends/cpu/attention/products.h"

/* Bytes of an element of the call's operands, and of its rows. */
static inline size_t wn_operand_size(const struct wn_attention_plan *p) {
  return p->bf16 ? sizeof(uint16_t) : sizeof(float);
}
/* Elements in a tile of 64 columns of D; in bf16, D is rounded up to a pair. */
static inline int64_t wn_operand_columns(const struct wn_attention_plan *p) {
  return WN_TILE * (p->bf16 ? (p->a->D + 1) / 2 * 2 : p->a->D);
}
static inline void *wn_operand_at(const struct wn_attention_plan *p, const void *operand, int64_t n) {
  return (char *)(uintptr_t)operand + n * (int64_t)wn_operand_size(p);
}
static inline size_t wn_row_size(const struct wn_attention_plan *p) {
  return p->bf16 && !p->rounds ? sizeof(uint16_t) : sizeof(float);
}
/* Row t of head h in a strided array of the call's rows. */
static inline void *wn_row_at(const struct wn_attention_plan *p, const void *x, struct wn_stride s, int64_t b,
                              int64_t t, int64_t h) {
  return (char *)(uintptr_t)x + (b * s.b + t * s.t + h * s.h) * (int64_t)wn_row_size(p);
}

/* --- packing: the caller's [rows,D], with row stride `stride` --- */

/* To [rows][Dp], as left operand. */
static inline void wn_pack_rows(const struct wn_attention_plan *p, void *to, const void *from, int64_t stride,
                                int64_t rows) {
  if (p->rounds)
    p->bf16->round(to, p->Dp, from, rows, p->a->D, stride);
  else if (p->bf16)
    p->bf16->pack(to, from, stride, rows, p->a->D, p->Dp);
  else
    p->ops->pack(to, rows, p->Dp, from, stride, rows, p->a->D, 1.0f);
}
/* To [64][Dp], as right operand. */
static inline void wn_pack_values(const struct wn_attention_plan *p, void *to, const void *from, int64_t stride,
                                  int64_t rows) {
  if (p->bf16)
    p->bf16->pack_pairs(to, from, stride, rows, p->a->D, p->Dp);
  else
    p->ops->pack(to, WN_TILE, p->Dp, from, stride, rows, p->a->D, 1.0f);
}
/* The same, for sums over rows. */
static inline void wn_pack_rows_right(const struct wn_attention_plan *p, void *to, const void *from, int64_t stride,
                                      int64_t rows) {
  if (p->bf16 && p->bf16->pack_turned)
    p->bf16->pack_turned(to, from, stride, rows, p->a->D);
  else
    wn_pack_values(p, to, from, stride, rows);
}
/* To [D][64], as right operand; floats are multiplied by `factor`. */
static inline void wn_pack_columns(const struct wn_attention_plan *p, void *to, const void *from, int64_t stride,
                                   int64_t rows, double factor) {
  if (p->bf16)
    p->bf16->pack_transposed(to, from, stride, rows, p->a->D);
  else
    p->ops->pack_transposed(to, from, stride, rows, p->a->D, (float)factor);
}
/* out[rows] = x . y for the caller's rows. */
static inline void wn_rows_dot(const struct wn_attention_plan *p, float *out, const void *x, const void *y,
                               int64_t stride, int64_t rows) {
  if (p->bf16)
    p->bf16->row_dot(out, x, stride, y, stride, rows, p->a->D);
  else
    p->ops->row_dot(out, x, stride, y, stride, rows, p->a->D);
}
/* How sums [rows][Dp] are stored: `parts` of them, `step` apart, are added, times factor[row] (or `all` if factor is
 * NULL). The sums may be overwritten. */
struct wn_unpack {
  float *from;
  int64_t parts, step, rows;
  const float *factor;
  float all;
};
static inline void wn_unpack_rows(const struct wn_attention_plan *p, void *to, int64_t stride,
                                  const struct wn_unpack *x) {
  const bool round = p->bf16 && !p->rounds;
  float *sum = round ? x->from : to;
  p->ops->unpack(sum, round ? p->Dp : stride, x->from, p->Dp, x->parts, x->step, x->rows, p->a->D, x->factor, x->all);
  if (round) p->bf16->round(to, stride, sum, x->rows, p->a->D, p->Dp);
}

/* Stores the sums of wn_product_columns, from row `first` on, times `factor`. The sums may be overwritten. */
static inline void wn_unpack_columns(const struct wn_attention_plan *p, void *to, int64_t stride, float *from,
                                     int64_t first, int64_t rows, double factor) {
  if (p->bf16 && p->bf16->unpack_turned)
    p->bf16->unpack_turned(to, stride, from, first, rows, p->a->D, (float)factor);
  else
    wn_unpack_rows(p, to, stride,
                   &(struct wn_unpack){.from = from + first * p->Dp, .parts = 1, .rows = rows, .all = (float)factor});
}

/* --- products --- */

/* Called around a thread's products. */
static inline void wn_products_begin(const struct wn_attention_plan *p) {
  if (p->bf16 && p->bf16->begin) p->bf16->begin();
}
static inline void wn_products_end(const struct wn_attention_plan *p) {
  if (p->bf16 && p->bf16->end) p->bf16->end();
}

/* c[rows,width], a tile, = x[rows,D] y[D,width]. y was packed by wn_pack_columns with this factor. */
static inline void wn_product_logits(const struct wn_attention_plan *p, int64_t rows, int64_t width, const void *y,
                                     const void *x, float *c, double factor) {
  if (p->bf16)
    p->bf16->logits(c, x, y, rows, width, (p->a->D + 1) / 2 * 2, p->Dp, (float)factor);
  else
    wn_tile_logits(p, rows, width, y, x, c);
}
/* c[rows,Dp] += x[rows,width] y[width,Dp]. x is a tile; y was packed by wn_pack_values. */
static inline void wn_product_values(const struct wn_attention_plan *p, int64_t rows, int64_t width, const void *y,
                                     const float *x, float *c) {
  if (p->bf16)
    p->bf16->values(c, x, y, rows, width, p->Dp);
  else
    wn_tile_values(p, rows, width, y, x, c);
}
/* c[width,Dp] += x[rows,width]^T y[rows,Dp], to be read by wn_unpack_columns. x: rows of a block's tile from `row` on;
 * y: the whole block, packed by wn_pack_rows_right. */
static inline void wn_product_columns(const struct wn_attention_plan *p, int64_t row, int64_t rows, int64_t width,
                                      const void *y, const float *x, float *c) {
  if (p->bf16)
    p->bf16->columns(c, x, y, row, rows, width, p->Dp);
  else
    wn_tile_columns(p, rows, width, (const float *)y + row * p->Dp, x, c);
}

#endif
