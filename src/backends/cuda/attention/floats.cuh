/* Tiles of 32-bit floats, without tensor cores: the operations that attention kernels need for a type of rows (bf16.cuh
 * has those for bf16). Products are sums of fused multiply-adds; nothing is rounded to fewer bits.
 *
 * A warp has 16 rows of a tile, a lane four of them: element e of chunk t is row 4 (lane / 8) + e, column 8 t + lane %
 * 8. In an output (16 x WIDTH), chunk t is column 32 (t / 4) + 4 (lane % 8) + t % 4. Blocks of F and X are plain [row,
 * key]. 12 reads of 16 bytes for 128 multiply-adds. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_FLOATS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_FLOATS_CUH

#include "backends/cuda/attention/args.cuh"

namespace wn_cuda {

template <int WIDTH_> struct floats {
  typedef float element;
  typedef float block; /* the element type of blocks of X; a block has BLOCK of them */
  static constexpr int WIDTH = WIDTH_, TILE = WIDTH > 64 ? 32 : 64, WARPS = TILE / 16, THREADS = 32 * WARPS;
  static constexpr int LD = WIDTH + 4, BLOCK = TILE * TILE;
  static constexpr int CHUNKS = TILE / 8, OUT = WIDTH / 8;
  static constexpr int ROWS = 4, LANES = 8, EACH = 1; /* rows per lane, lanes per row, columns per lane in a chunk */
  static constexpr int STAGES = 1, BACK_STAGES = 1;   /* stages of prefetching */
  static constexpr int WEIGHTS_LD = TILE + 4, WEIGHTS = TILE * WEIGHTS_LD; /* floats of scratch for product_out */

  static __device__ __forceinline__ int row(int lane, int r) { return (lane >> 3) * 4 + r; }
  static __device__ __forceinline__ int row_of(int e) { return e; }
  static __device__ __forceinline__ int column(int lane, int t, int) { return t * 8 + (lane & 7); }
  static __device__ __forceinline__ int out_column(int lane, int t, int) { return t / 4 * 32 + (lane & 7) * 4 + t % 4; }
  /* The element for the n-th column of a row in a chunk. */
  static __device__ __forceinline__ int element_of(int r, int) { return r; }

  static __device__ __forceinline__ float exp2(float x) { return exp2f(x); }
  static __device__ __forceinline__ float get(const void *x, int64_t i) { return static_cast<const float *>(x)[i]; }
  static __device__ __forceinline__ void put(void *x, int64_t i, float y) { static_cast<float *>(x)[i] = y; }

  /* s += the warp's 16 rows of x times the rows of z: s = X Z^T. */
  static __device__ __forceinline__ void product(float (&s)[CHUNKS][4], const float *x, const float *z, int warp,
                                                 int lane) {
    const float *mine = x + (warp * 16 + (lane >> 3) * 4) * LD, *theirs = z + (lane & 7) * LD;
#pragma unroll 1
    for (int d = 0; d < WIDTH; d += 4) {
      float4 u[4];
#pragma unroll
      for (int e = 0; e < 4; e++) u[e] = *reinterpret_cast<const float4 *>(mine + e * LD + d);
#pragma unroll
      for (int t = 0; t < CHUNKS; t++) {
        const float4 w = *reinterpret_cast<const float4 *>(theirs + t * 8 * LD + d);
#pragma unroll
        for (int e = 0; e < 4; e++)
          s[t][e] = fmaf(u[e].w, w.w, fmaf(u[e].z, w.z, fmaf(u[e].y, w.y, fmaf(u[e].x, w.x, s[t][e]))));
      }
    }
  }

  /* o += P Z: P has the warp's 16 rows of attention weights, Z the tile's rows. With POSITIVE, negative attention
   * weights count as 0. room: [TILE][WEIGHTS_LD]. */
  template <bool POSITIVE = false>
  static __device__ __forceinline__ void product_out(float (&o)[OUT][4], const float (&p)[CHUNKS][4], const float *z,
                                                     float *room, int warp, int lane) {
    float *mine = room + (warp * 16 + (lane >> 3) * 4) * WEIGHTS_LD;
    __syncwarp();
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) mine[e * WEIGHTS_LD + t * 8 + (lane & 7)] = POSITIVE ? fmaxf(p[t][e], 0.0f) : p[t][e];
    __syncwarp();
#pragma unroll 1
    for (int j = 0; j < TILE; j += 4) {
      float w[4][4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float4 x = *reinterpret_cast<const float4 *>(mine + e * WEIGHTS_LD + j);
        w[e][0] = x.x, w[e][1] = x.y, w[e][2] = x.z, w[e][3] = x.w;
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int t = 0; t < OUT; t += 4) {
          const float4 x = *reinterpret_cast<const float4 *>(z + (j + i) * LD + t * 8 + (lane & 7) * 4);
#pragma unroll
          for (int e = 0; e < 4; e++) {
            o[t][e] = fmaf(w[e][i], x.x, o[t][e]);
            o[t + 1][e] = fmaf(w[e][i], x.y, o[t + 1][e]);
            o[t + 2][e] = fmaf(w[e][i], x.z, o[t + 2][e]);
            o[t + 3][e] = fmaf(w[e][i], x.w, o[t + 3][e]);
          }
        }
    }
  }

  /* F is added after the product: a single rounding, however large it is. */
  static __device__ __forceinline__ void start(float (&s)[CHUNKS][4], const float *, int, int) {
    clear(s);
  }
  static __device__ __forceinline__ void finish(float (&s)[CHUNKS][4], const float *f, int warp, int lane) {
    if (f) add(s, f, warp, lane);
  }
  static __device__ __forceinline__ void start_turned(float (&s)[CHUNKS][4], const float *, int, int) {
    start(s, nullptr, 0, 0);
  }
  static __device__ __forceinline__ void finish_turned(float (&s)[CHUNKS][4], const float *f, int warp, int lane) {
    if (f) add_turned(s, f, warp, lane);
  }

  /* Adds a block [row, key]; transposed, the warp's 16 rows are keys and its columns are rows of the block. */
  static __device__ __forceinline__ void add(float (&s)[CHUNKS][4], const float *x, int warp, int lane) {
    x += (warp * 16 + (lane >> 3) * 4) * TILE + (lane & 7);
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[t][e] += x[e * TILE + t * 8];
  }
  static __device__ __forceinline__ void add_turned(float (&s)[CHUNKS][4], const float *x, int warp, int lane) {
    x += (lane & 7) * TILE + warp * 16 + (lane >> 3) * 4;
#pragma unroll
    for (int t = 0; t < CHUNKS; t++) {
      const float4 y = *reinterpret_cast<const float4 *>(x + t * 8 * TILE);
      s[t][0] += y.x, s[t][1] += y.y, s[t][2] += y.z, s[t][3] += y.w;
    }
  }
  static __device__ __forceinline__ void store(float *x, const float (&s)[CHUNKS][4], int warp, int lane) {
    x += (warp * 16 + (lane >> 3) * 4) * TILE + (lane & 7);
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) x[e * TILE + t * 8] = s[t][e];
  }
  static __device__ __forceinline__ void store_turned(float *x, const float (&s)[CHUNKS][4], int warp, int lane) {
    x += (lane & 7) * TILE + warp * 16 + (lane >> 3) * 4;
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
      *reinterpret_cast<float4 *>(x + t * 8 * TILE) = make_float4(s[t][0], s[t][1], s[t][2], s[t][3]);
  }
  static __device__ __forceinline__ void store_F_turned(float *x, const float (&s)[CHUNKS][4], int warp, int lane) {
    store_turned(x, s, warp, lane);
  }
  static __device__ __forceinline__ void add_F_turned(float (&s)[CHUNKS][4], const float *x, int warp, int lane) {
    add_turned(s, x, warp, lane);
  }
};

} // namespace wn_cuda

#endif
