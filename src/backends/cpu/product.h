/* Our own products of floats. Builds without oneDNN and libxsmm use them for all products; other builds use them with
 * AVX2, except for few rows. 2MNK operations each.
 *
 * An element of the result is one sum over k in order (in pieces of some hundred if K is large). It does not depend on
 * its place in a block or on how a product is divided, so a row has the same bits alone and among others. */
#ifndef WN_BACKENDS_CPU_PRODUCT_H
#define WN_BACKENDS_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c[M,N] = op(a)[M,K] op(b)[K,N] (+ c). ta: a is stored as [K,M]; tb: b as [N,K]. */
struct wn_sgemm {
  bool ta, tb, add;
  int64_t M, N, K;
  const float *a, *b;
  int64_t lda, ldb, ldc;
  float *c;
};

/* c[n,m] = x[n,k] y[k,m] (+ c), m a multiple of 16; element (i,p) of x is at x[i x_row + p x_column]. */
struct wn_tile_product {
  int64_t m, n, k;
  int64_t ldy, x_row, x_column, ldc;
  bool add;
};

/* Each call runs on one thread. room: the caller's scratch for packed operands of sgemm (aligned to WN_ALIGN; at most
 * 1.3 MB). Scratch for a product suffices for any part of it. */
struct wn_product_ops {
  size_t (*room)(int64_t M, int64_t N, int64_t K);
  void (*sgemm)(const struct wn_sgemm *x, void *room);
  void (*tile)(const struct wn_tile_product *p, const float *y, const float *x, float *c);
};
extern const struct wn_product_ops wn_product_ops_avx2, wn_product_ops_avx512;

#endif
