// Kernels that test the emulation (emulator_kernels.h).
#include "cuda/emulate.h"

#include "backends/cuda/device.cuh"
#include "cuda/emulator_kernels.h"

static __global__ void sum(const float *x, float *out, unsigned barriers) {
  WN_SHARED_DYNAMIC(float, part);
  const int n = (int)blockDim.x, t = (int)threadIdx.x;
  part[t] = x[blockIdx.x * n + t];
  if (barriers & 1) __syncthreads();
  for (int half = n / 2; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    if (barriers & 2) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = part[0];
}
void kernel_sum(const float *x, float *out, int blocks, int n, unsigned barriers) {
  WN_LAUNCH(blocks, n, n * sizeof(float), nullptr, sum, x, out, barriers);
}

static __global__ void rounds_of(const int *x, int *y, int rounds, bool second_barrier) {
  WN_SHARED(int, place, [64]);
  const int n = (int)blockDim.x, t = (int)threadIdx.x;
  int value = x[t];
  for (int r = 0; r < rounds; r++) {
    place[t] = value;
    __syncthreads();
    value = place[(t + 1) % n];
    if (second_barrier) __syncthreads();
  }
  y[t] = value;
}
void kernel_rounds(const int *x, int *y, int n, int rounds, bool second_barrier) {
  WN_LAUNCH(1, n, 0, nullptr, rounds_of, x, y, rounds, second_barrier);
}

static __global__ void lanes(int32_t *out, int leave) {
  const int lane = (int)threadIdx.x;
  if (lane >= leave) return;
  out[lane * 6] = __shfl_sync(~0u, lane * 10, 3, 8);
  out[lane * 6 + 1] = __shfl_up_sync(~0u, lane * 10, 2, 8);
  out[lane * 6 + 2] = __shfl_down_sync(~0u, lane * 10, 1, 8);
  out[lane * 6 + 3] = (int32_t)__shfl_xor_sync(~0u, (uint64_t)lane << 33, 4, 8) +
                      (int32_t)(__shfl_xor_sync(~0u, (uint64_t)lane << 33, 4, 8) >> 33);
  out[lane * 6 + 4] = (int32_t)__ballot_sync(~0u, lane % 3 == 0);
  out[lane * 6 + 5] = __any_sync(~0u, lane == 5) * 2 + __all_sync(~0u, lane < 31);
}
void kernel_lanes(int32_t *out, int leave) {
  WN_LAUNCH(1, 32, 0, nullptr, lanes, out, leave);
}

static __global__ void product(const uint16_t *a, const uint16_t *bt, float *d, int k, bool half) {
  WN_SHARED(uint16_t, sa, [16][16]);
  WN_SHARED(uint16_t, sb, [8][16]);
  const int lane = (int)threadIdx.x;
  for (int i = lane; i < 256; i += 32) sa[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) sb[i / 16][i % 16] = bt[i];
  __syncwarp();
  float sum[4] = {0, 0, 0, 0};
  uint32_t fa[4], fb[2];
  wn_ldmatrix_x4(fa, &sa[lane % 8 + lane / 8 % 2 * 8][lane / 16 * 8]);
  wn_ldmatrix_x2(fb, &sb[lane % 8][lane / 8 % 2 * 8]);
  if (k == 16) {
    if (half)
      wn_mma_f16_k16(sum, fa, fb[0], fb[1]);
    else
      wn_mma_bf16_k16(sum, fa, fb[0], fb[1]);
  } else {
    for (int i = 0; i < 2; i++) {
      if (half)
        wn_mma_f16_k8(sum, fa[2 * i], fa[2 * i + 1], fb[i]);
      else
        wn_mma_bf16_k8(sum, fa[2 * i], fa[2 * i + 1], fb[i]);
    }
  }
  for (int e = 0; e < 4; e++) d[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sum[e];
}
void kernel_product(const uint16_t *a, const uint16_t *bt, float *d, int k, bool half) {
  WN_LAUNCH(1, 32, 0, nullptr, product, a, bt, d, k, half);
}

static __global__ void transpose(const uint16_t *x, uint16_t *y, bool move) {
  WN_SHARED(uint16_t, place, [4][8][8]);
  const int lane = (int)threadIdx.x;
  for (int i = lane; i < 256; i += 32) place[i / 64][i / 8 % 8][i % 8] = (uint16_t)(i < 64 ? x[i] : 0);
  __syncwarp();
  uint32_t r[4];
  if (move) {
    wn_ldmatrix_x4(r, &place[lane / 8][lane % 8][0]);
    r[0] = wn_movmatrix(r[0]);
  } else {
    wn_ldmatrix_x4_trans(r, &place[lane / 8][lane % 8][0]);
  }
  y[lane / 4 * 8 + lane % 4 * 2] = (uint16_t)r[0];
  y[lane / 4 * 8 + lane % 4 * 2 + 1] = (uint16_t)(r[0] >> 16);
}
void kernel_transpose(const uint16_t *x, uint16_t *y, bool move) {
  WN_LAUNCH(1, 32, 0, nullptr, transpose, x, y, move);
}

static __global__ void copies(const float *x, float *y, int n, int valid, bool wait) {
  WN_SHARED(float, place, [2][64]);
  const int t = (int)threadIdx.x, steps = n / 64;
  wn_copy_async<4>(&place[0][t], x + t, t < valid);
  wn_copy_commit();
  for (int s = 0; s < steps; s++) {
    const int next = (s + 1) * 64 + t;
    if (s + 1 < steps) wn_copy_async<4>(&place[(s + 1) % 2][t], x + next, next < valid);
    wn_copy_commit();
    if (wait) wn_copy_wait<1>();
    __syncthreads();
    y[s * 64 + t] = place[s % 2][63 - t];
    __syncthreads();
  }
  wn_copy_wait<0>();
}
void kernel_copy(const float *x, float *y, int n, int valid, bool wait) {
  WN_LAUNCH(1, 64, 0, nullptr, copies, x, y, n, valid, wait);
}

// Warp 0 produces and warp 1 consumes. Barrier 1 means full, barrier 2 empty.
static __global__ void handshake(const float *x, float *y, int steps) {
  WN_SHARED(float, place, [32]);
  const int lane = (int)threadIdx.x % 32;
  for (int s = 0; s < steps; s++) {
    if (threadIdx.x < 32) {
      if (s > 0) wn_barrier_sync(2, 64);
      place[lane] = 2 * x[s * 32 + lane];
      wn_barrier_arrive(1, 64);
    } else {
      wn_barrier_sync(1, 64);
      y[s * 32 + lane] = place[31 - lane];
      if (s + 1 < steps) wn_barrier_arrive(2, 64);
    }
  }
}
void kernel_handshake(const float *x, float *y, int steps) {
  WN_LAUNCH(1, 64, 0, nullptr, handshake, x, y, steps);
}

static __global__ void faulty(fault what, float *x, int n) {
  const int t = (int)threadIdx.x;
  if (what == FAULT_SHARED_WRITE || what == FAULT_SHARED_READ) {
    WN_SHARED(float, place, [32]);
    if (what == FAULT_SHARED_WRITE)
      place[t + 1] = 1;
    else
      x[t] = place[t + 1];
  } else if (what == FAULT_DYNAMIC_WRITE) {
    WN_SHARED_DYNAMIC(float, place);
    place[t + 1] = 1;
  } else if (what == FAULT_GLOBAL_READ) {
    x[0] += x[n - 31 + t];
  } else if (what == FAULT_GLOBAL_WRITE) {
    x[n - 31 + t] = 1;
  } else if (what == FAULT_ENDLESS) {
    if (t < 32) wn_barrier_sync(3, 64);
  } else if (what == FAULT_DIVERGED) {
    if (t < 16)
      __shfl_sync(~0u, t, 0);
    else
      __ballot_sync(~0u, t);
  } else if (what == FAULT_BARRIERS) {
    if (t < 16)
      __syncthreads();
    else
      __syncthreads();
  } else if (what == FAULT_NAMED_TOO_MUCH) {
    WN_SHARED(float, place, [49 * 256]);
    place[t] = 1;
  } else if (what == FAULT_ALIGNMENT) {
    WN_SHARED(float4, place, [32]);
    wn_copy_async<16>(&place[t], x + 1, true);
    wn_copy_commit();
    wn_copy_wait<0>();
  }
}
void kernel_fault(enum fault what, float *x, int n) {
  if (what == FAULT_TOO_MUCH) (void)wn_shared_limit(faulty, 228 << 10);
  const size_t bytes = what == FAULT_NOT_ASKED ? 64 << 10 : what == FAULT_DYNAMIC_WRITE ? 32 * sizeof(float) : 0;
  const int threads = what == FAULT_THREADS ? 1025 : what == FAULT_ENDLESS ? 64 : 32;
  WN_LAUNCH(1, threads, bytes, nullptr, faulty, what, x, n);
}

uint16_t emulated_half(float x) {
  return __half_as_ushort(__float2half_rn(x));
}
float emulated_half_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
uint32_t emulated_relu_halves(float low, float high) {
  return wn_pack_relu_f16(low, high);
}
