/* Kernels that show what the emulation of sm_90 sees, for test_sm90.c. */
#ifndef TESTS_CUDA_SM90_KERNELS_H
#define TESTS_CUDA_SM90_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sm90_fault {
  SM90_RIGHT,
  SM90_NO_COPY_WAIT,    /* products before the copies have arrived */
  SM90_WRONG_PHASE,     /* the copies' mbarrier waited for with the other parity */
  SM90_NO_EMPTY_WAIT,   /* a stage is filled again while it is read */
  SM90_EARLY_RELEASE,   /* a stage is given back before the products that read it are waited for */
  SM90_NO_PRODUCT_WAIT, /* accumulators read before wait_group */
  SM90_NO_WGMMA_FENCE,  /* accumulators written by the threads, then a product without wgmma.fence */
  SM90_NO_PROXY_FENCE,  /* a tile written by the threads is read by products */
  SM90_NO_INIT_FENCE,   /* copies on mbarriers that were not fenced */
  SM90_WRONG_STRIDE,    /* groups of 8 rows 512 bytes apart */
  SM90_WRONG_SWIZZLE,   /* a descriptor of 64-byte swizzles */
  SM90_WRONG_LEAD,      /* the second 64 columns at the wrong place */
  SM90_MISSING_BYTES,   /* more bytes announced than copied */
  SM90_MORE_ARRIVALS,   /* than the mbarrier's count */
  SM90_HALF_GROUP       /* two of the four warps multiply */
};

/* d[64,n] = start + a[64,64 steps] b^T, n 64 or 128, rows of bf16: b[n,64 steps], or turned b[64 steps,n]; from rows
 * row0 on, zeros behind `rows`. a from registers or from shared memory; `copied`: by a tensor copy, else by the
 * threads. */
struct sm90_product {
  const uint16_t *a, *b;
  float *d, start;
  int n, steps, row0, rows;
  bool turned, from_registers, copied;
  enum sm90_fault fault;
};
void kernel_sm90_product(const struct sm90_product *p);
/* y = x through a bulk copy of n floats, `offset` bytes into shared memory. */
void kernel_sm90_bulk(const float *x, float *y, int n, int offset);
/* Two groups of warps that ask for so many registers a thread. */
void kernel_sm90_registers(bool more);

#ifdef __cplusplus
}
#endif

#endif
