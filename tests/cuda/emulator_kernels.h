/* Kernels that show what the emulation sees, for test_emulator.c; each launches one. */
#ifndef TESTS_CUDA_EMULATOR_KERNELS_H
#define TESTS_CUDA_EMULATOR_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[block]: the sum of the block's n numbers of x, by a tree in shared memory; n a power of 2. Which barriers are
 * there: bit 0 the one after the numbers are in, bit 1 those of the tree. */
void kernel_sum(const float *x, float *out, int blocks, int n, unsigned barriers);
/* y = x of the neighbour, around the warp; without the second barrier the next round overwrites it. */
void kernel_rounds(const int *x, int *y, int n, int rounds, bool second_barrier);
/* out[32][6]: shfl, up, down, xor in groups of 8, ballot, any, of lane numbers; lanes from `leave` on have gone. */
void kernel_lanes(int32_t *out, int leave);
/* d[16,8] = a[16,16] bt[8,16]^T by mma of k 16 or 8, fragments by ldmatrix. */
void kernel_product(const uint16_t *a, const uint16_t *bt, float *d, int k, bool half);
/* y[8,8] = x transposed, by movmatrix or by ldmatrix. */
void kernel_transpose(const uint16_t *x, uint16_t *y, bool move);
/* y = x through cp.async; without the wait what arrives is not there yet. `valid` numbers of n. */
void kernel_copy(const float *x, float *y, int n, int valid, bool wait);
/* Producer and consumer warps with barriers by name. y = 2 x. */
void kernel_handshake(const float *x, float *y, int steps);
/* Things that must be refused or found. */
enum fault {
  FAULT_SHARED_WRITE,   /* behind the last of 32 floats */
  FAULT_SHARED_READ,    /* the same */
  FAULT_DYNAMIC_WRITE,  /* behind dynamic shared memory */
  FAULT_GLOBAL_READ,    /* behind x */
  FAULT_GLOBAL_WRITE,   /* behind x */
  FAULT_ENDLESS,        /* a barrier for 64 threads that 32 come to */
  FAULT_DIVERGED,       /* half a warp shuffles, half votes, each with all lanes' mask */
  FAULT_BARRIERS,       /* lanes of a warp at barriers of two lines */
  FAULT_NOT_ASKED,      /* 64 KB that no limit was asked for */
  FAULT_TOO_MUCH,       /* 228 KB */
  FAULT_NAMED_TOO_MUCH, /* 49 KB by name */
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
