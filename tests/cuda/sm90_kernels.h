/* Kernels that test the emulation of sm_90, for test_sm90.c. */
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
  SM90_WRONG_PHASE,     /* waiting for the copies' mbarrier with the wrong parity */
  SM90_NO_EMPTY_WAIT,   /* refilling a stage while it is read */
  SM90_EARLY_RELEASE,   /* releasing a stage before waiting for the products that read it */
  SM90_NO_PRODUCT_WAIT, /* reading accumulators before wait_group */
  SM90_NO_WGMMA_FENCE,  /* writing accumulators, then a product without wgmma.fence */
  SM90_NO_PROXY_FENCE,  /* a product reads a tile that threads wrote */
  SM90_NO_INIT_FENCE,   /* copies to mbarriers that were not fenced */
  SM90_WRONG_STRIDE,    /* groups of 8 rows 512 bytes apart */
  SM90_WRONG_SWIZZLE,   /* a descriptor of 64-byte swizzles */
  SM90_WRONG_LEAD,      /* the second 64 columns in the wrong place */
  SM90_MISSING_BYTES,   /* more bytes announced than copied */
  SM90_MORE_ARRIVALS,   /* than the mbarrier's count */
  SM90_HALF_GROUP       /* only two of the four warps multiply */
};

/* d[64,n] = start + a[64,64 steps] b^T with n = 64 or 128, in bf16. b is [n,64 steps], or transposed [64 steps,n]. Its
 * rows start at row0; those from `rows` on are zeros. a comes from registers or shared memory. `copied`: tiles are
 * loaded by a tensor copy, else by the threads. */
struct sm90_product {
  const uint16_t *a, *b;
  float *d, start;
  int n, steps, row0, rows;
  bool turned, from_registers, copied;
  enum sm90_fault fault;
};
void kernel_sm90_product(const struct sm90_product *p);
/* y = x by a bulk copy of n floats, `offset` bytes into shared memory. */
void kernel_sm90_bulk(const float *x, float *y, int n, int offset);
/* Two groups of warps that request these numbers of registers for a thread. */
void kernel_sm90_registers(bool more);

#ifdef __cplusplus
}
#endif

#endif
