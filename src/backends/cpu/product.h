/* Products of floats by our own kernels: in builds without oneDNN and libxsmm all, in others those with AVX2 that
 * are not of few rows. 2MNK operations each.
 *
 * An element of the result is one sum over k in order (in stretches of some hundred, where K is large): it depends
 * neither on its place in a block nor on how a product is divided, so a row has the same bits alone and among others.
 */
#ifndef WN_BACKENDS_CPU_PRODUCT_H
#define WN_BACKENDS_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c[M,N] = op(a)[M,K] op(b)[K,N] (+ c). ta: a lies as [K,M]; tb: b as [N,K]. */
struct wn_sgemm {
  bool ta, tb, add;
  int64_t M, N, K;
  const float *a, *b;
  int64_t lda, ldb, ldc;
  float *c;
};

/* c[n,m] = x[n,k] y[k,m] (+ c), m a multiple of 16: element (i,p) of x at x[i x_row + p x_column]. */
struct wn_tile_product {
  int64_t m, n, k;
  int64_t ldy, x_row, x_column, ldc;
  bool add;
};

/* One thread each. room: bytes for sgemm's packed sides, the caller's (WN_ALIGN-aligned; at most 1.3 MB); what is
 * enough for a product is enough for a part of it. */
struct wn_product_ops {
  size_t (*room)(int64_t M, int64_t N, int64_t K);
  void (*sgemm)(const struct wn_sgemm *x, void *room);
  void (*tile)(const struct wn_tile_product *p, const float *y, const float *x, float *c);
};
extern const struct wn_product_ops wn_product_ops_avx2, wn_product_ops_avx512;

#endif
