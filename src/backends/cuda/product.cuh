// c[M,N] = a[M,K] b[N,K]^T with any strides. One tile of 64 x 64 per block of 256 threads. The order over K is the same
// for every M and N, so a row of c does not depend on the others. Two kernels: float products, 4 x 4 per thread; and
// products of numbers rounded to bf16, by mma, 16 x 32 per warp, with sums in float.
//
// cuBLASLt computes what it serves better. These kernels serve everything: odd strides, float arrays with bf16
// products, rows that must not depend on each other.
#ifndef WN_BACKENDS_CUDA_PRODUCT_CUH
#define WN_BACKENDS_CUDA_PRODUCT_CUH

#include "backends/cuda/launch.cuh"

struct wn_product {
  int64_t M, N, K;
  wn_numbers a, b, c;
  int64_t a_row, a_k, b_row, b_k, c_row; // strides
  const float *bias;                     // [N] or NULL
  bool accumulate;
};

static __device__ __forceinline__ void wn_product_store(const wn_product &p, int64_t m, int64_t n, float sum) {
  if (m >= p.M || n >= p.N) return;
  const int64_t at = m * p.c_row + n;
  if (p.bias) sum += p.bias[n];
  p.c.set(at, p.accumulate ? p.c[at] + sum : sum);
}

// b by its strides. Other types provide b(n, k) in another way; b.along_k: neighbours along K are contiguous.
struct wn_product_strided {
  wn_numbers b;
  int64_t row, k;
  bool along_k;
  __device__ __forceinline__ float operator()(int64_t n, int64_t at) const { return b[n * row + at * k]; }
};

// The tile with rows from m0 on and columns from n0 on.
template <class B>
static __device__ __forceinline__ void wn_product_tile(const wn_product &p, const B &b, int64_t m0, int64_t n0) {
  WN_SHARED(float, sa, [16][64 + 4]);
  WN_SHARED(float, sb, [16][64 + 4]);
  const int t = threadIdx.x, row = t / 16 * 4, column = t % 16 * 4;
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += 16) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // neighbouring threads read neighbouring elements, along either index
      const int x = i * 256 + t;
      const int ra = p.a_k == 1 ? x / 16 : x % 64, ka = p.a_k == 1 ? x % 16 : x / 64;
      const int rb = b.along_k ? x / 16 : x % 64, kb = b.along_k ? x % 16 : x / 64;
      sa[ka][ra] = m0 + ra < p.M && k0 + ka < p.K ? p.a[(m0 + ra) * p.a_row + (k0 + ka) * p.a_k] : 0.0f;
      sb[kb][rb] = n0 + rb < p.N && k0 + kb < p.K ? b(n0 + rb, k0 + kb) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; k++) {
      float x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = sa[k][row + i], y[i] = sb[k][column + i];
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) wn_product_store(p, m0 + row + i, n0 + column + j, sum[i][j]);
}

// Eight warps, 4 x 2, each with 16 rows and 32 columns of the tile; K in steps of 32.
template <class B>
static __device__ __forceinline__ void wn_product_bf16_tile(const wn_product &p, const B &b, int64_t m0, int64_t n0) {
  WN_SHARED(__nv_bfloat16, sa, [64][32 + 8]);
  WN_SHARED(__nv_bfloat16, sb, [64][32 + 8]);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, row = warp / 2 * 16, column = warp % 2 * 32;
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += 32) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int x = i * 256 + t;
      const int ra = p.a_k == 1 ? x / 32 : x % 64, ka = p.a_k == 1 ? x % 32 : x / 64;
      const int rb = b.along_k ? x / 32 : x % 64, kb = b.along_k ? x % 32 : x / 64;
      const bool in_a = m0 + ra < p.M && k0 + ka < p.K, in_b = n0 + rb < p.N && k0 + kb < p.K;
      sa[ra][ka] = __float2bfloat16_rn(in_a ? p.a[(m0 + ra) * p.a_row + (k0 + ka) * p.a_k] : 0.0f);
      sb[rb][kb] = __float2bfloat16_rn(in_b ? b(n0 + rb, k0 + kb) : 0.0f);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
      uint32_t a[4];
      wn_ldmatrix_x4(a, &sa[row + lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t w[4]; // columns from n*8 on: k, k + 8, then the same for the next eight columns
        wn_ldmatrix_x4(w, &sb[column + n * 8 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        wn_mma_bf16_k16(sum[n], a, w[0], w[1]);
        wn_mma_bf16_k16(sum[n + 1], a, w[2], w[3]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      wn_product_store(p, m0 + row + lane / 4 + e / 2 * 8, n0 + column + n * 8 + lane % 4 * 2 + e % 2, sum[n][e]);
}

static __device__ __forceinline__ wn_product_strided wn_product_b(const wn_product &p) {
  return {p.b, p.b_row, p.b_k, p.b_k == 1};
}
static __global__ void __launch_bounds__(256) wn_product_kernel(wn_product p) {
  wn_product_tile(p, wn_product_b(p), (int64_t)blockIdx.y * 64, (int64_t)blockIdx.x * 64);
}
static __global__ void __launch_bounds__(256) wn_product_bf16_kernel(wn_product p) {
  wn_product_bf16_tile(p, wn_product_b(p), (int64_t)blockIdx.y * 64, (int64_t)blockIdx.x * 64);
}

static inline void wn_product_launch(const struct wn_exec *exec, const wn_product &p) {
  const dim3 grid((unsigned)wn_cuda_parts(p.N, 64), (unsigned)wn_cuda_parts(p.M, 64));
  if (exec->precision == WN_BF16)
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), wn_product_bf16_kernel, p);
  else
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), wn_product_kernel, p);
}

#endif
