/* Kernels that test the emulation, for test_emulator.c. Each function launches one. */
#ifndef TESTS_CUDA_EMULATOR_KERNELS_H
#define TESTS_CUDA_EMULATOR_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[block]: the sum of the block's n numbers, by a tree in shared memory; n is a power of 2. barriers: bit 0 for the
 * one after the numbers are stored, bit 1 for those in the tree. */
void kernel_sum(const float *x, float *out, int blocks, int n, unsigned barriers);
/* y = x of the neighbour, around the warp. Without the second barrier the next round overwrites x too early. */
void kernel_rounds(const int *x, int *y, int n, int rounds, bool second_barrier);
/* out[32][6]: shfl, up, down, xor in groups of 8, ballot and any, of the lanes' numbers. Lanes from `leave` on have
 * ended. */
void kernel_lanes(int32_t *out, int leave);
/* d[16,8] = a[16,16] bt[8,16]^T by mma with k = 16 or 8; fragments are loaded by ldmatrix. */
void kernel_product(const uint16_t *a, const uint16_t *bt, float *d, int k, bool half);
/* y[8,8] = x transposed, by movmatrix or by ldmatrix. */
void kernel_transpose(const uint16_t *x, uint16_t *y, bool move);
/* y = x by cp.async. Without the wait, nothing has arrived. Copies `valid` of n numbers. */
void kernel_copy(const float *x, float *y, int n, int valid, bool wait);
/* Producer and consumer warps with named barriers. y = 2 x. */
void kernel_handshake(const float *x, float *y, int steps);
/* Faults that must be refused or detected. */
enum fault {
  FAULT_SHARED_WRITE,   /* after the last of 32 floats */
  FAULT_SHARED_READ,    /* likewise */
  FAULT_DYNAMIC_WRITE,  /* after the end of dynamic shared memory */
  FAULT_GLOBAL_READ,    /* after the end of x */
  FAULT_GLOBAL_WRITE,   /* after the end of x */
  FAULT_ENDLESS,        /* a barrier for 64 threads that only 32 reach */
  FAULT_DIVERGED,       /* half a warp shuffles, half votes, both with the full mask */
  FAULT_BARRIERS,       /* lanes of one warp at barriers on two lines */
  FAULT_NOT_ASKED,      /* 64 KB without raising the limit */
  FAULT_TOO_MUCH,       /* 228 KB */
  FAULT_NAMED_TOO_MUCH, /* 49 KB of static shared memory */
  FAULT_THREADS,        /* 1025 threads */
  FAULT_ALIGNMENT       /* cp.async of 16 bytes from an odd place */
};
void kernel_fault(enum fault fault, float *x, int n);

uint16_t emulated_half(float x);
float emulated_half_value(uint16_t bits);
uint32_t emulated_relu_halves(float low, float high);

#ifdef __cplusplus
}
#endif

#endif
