/* Tiles of bf16 with sums in floats: mma.sync, ldmatrix, movmatrix; sm_80 and later. The same functions as floats.cuh.
 *
 * A warp has 16 rows of a tile of 64; element e of chunk t is row lane / 4 + 8 (e / 2), column 8 t + 2 (lane % 4) + e %
 * 2. This is the accumulator of an m16n8k16 product; two of them, packed, are the operand of the next product. Blocks
 * of F are floats, [row, key]. fp16 would take half the bytes, but lse would be wrong by 3e-4 where the tolerance rule
 * allows 5e-6; y and all gradients would pass. Blocks of X (64 rows x 64 keys, 8 KB) are bf16 as a warp holds them: [4
 * row tiles of 16][4 key tiles of 16][32 lanes][16 bytes], a lane's bytes being {lower 8 keys: its row, the row 8
 * below; upper 8 keys: the same}. One 16-byte read per lane gives 16 keys; movmatrix transposes them. The stride of
 * rows in shared memory is their width plus 8 elements, so that the 8 rows of an ldmatrix are in different banks. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_BF16_CUH
#define WN_BACKENDS_CUDA_ATTENTION_BF16_CUH

#include "backends/cuda/attention/args.cuh"

namespace wn_cuda {

template <int WIDTH_> struct bf16 {
  typedef uint16_t element;
  typedef uint4 block; /* the element type of blocks of X; a block has BLOCK of them */
  static constexpr int WIDTH = WIDTH_, TILE = 64, WARPS = 4, THREADS = 128;
  static constexpr int LD = WIDTH + 8, BLOCK = 512;
  static constexpr int CHUNKS = 8, OUT = WIDTH / 8;
  static constexpr int ROWS = 2, LANES = 4, EACH = 2;
  static constexpr int STAGES = 2, BACK_STAGES = WIDTH > 96 ? 1 : 2;
  static constexpr int WEIGHTS = 0;

  static __device__ __forceinline__ int row(int lane, int r) { return (lane >> 2) + 8 * r; }
  static __device__ __forceinline__ int row_of(int e) { return e >> 1; }
  static __device__ __forceinline__ int column(int lane, int t, int e) { return t * 8 + (lane & 3) * 2 + (e & 1); }
  static __device__ __forceinline__ int out_column(int lane, int t, int e) { return column(lane, t, e); }
  static __device__ __forceinline__ int element_of(int r, int n) { return 2 * r + n; }

  static __device__ __forceinline__ float exp2(float x) { return wn_exp2(x); }
  static __device__ __forceinline__ float get(const void *x, int64_t i) {
    return __uint_as_float((uint32_t) static_cast<const uint16_t *>(x)[i] << 16);
  }
  static __device__ __forceinline__ void put(void *x, int64_t i, float y) {
    static_cast<uint16_t *>(x)[i] = (uint16_t)wn_pack_bf16(y, 0);
  }

  static __device__ __forceinline__ void product(float (&s)[CHUNKS][4], const uint16_t *x, const uint16_t *z, int warp,
                                                 int lane) {
    const uint16_t *mine = x + (warp * 16 + (lane & 15)) * LD + (lane >> 4) * 8;
    const uint16_t *theirs = z + ((lane & 7) + (lane >> 4) * 8) * LD + (lane >> 3 & 1) * 8;
#pragma unroll 2
    for (int d = 0; d < WIDTH; d += 16) {
      uint32_t u[4];
      wn_ldmatrix_x4(u, mine + d);
#pragma unroll
      for (int t = 0; t < CHUNKS; t += 2) {
        uint32_t w[4];
        wn_ldmatrix_x4(w, theirs + t * 8 * LD + d);
        wn_mma_bf16_k16(s[t], u, w[0], w[1]);
        wn_mma_bf16_k16(s[t + 1], u, w[2], w[3]);
      }
    }
  }
  template <bool POSITIVE = false>
  static __device__ __forceinline__ void product_out(float (&o)[OUT][4], const float (&p)[CHUNKS][4], const uint16_t *z,
                                                     float *, int, int lane) {
    const uint16_t *theirs = z + (lane & 15) * LD + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
      const uint32_t u[4] = {pack<POSITIVE>(p[2 * k][0], p[2 * k][1]), pack<POSITIVE>(p[2 * k][2], p[2 * k][3]),
                             pack<POSITIVE>(p[2 * k + 1][0], p[2 * k + 1][1]),
                             pack<POSITIVE>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
      for (int t = 0; t < OUT; t += 2) {
        uint32_t w[4];
        wn_ldmatrix_x4_trans(w, theirs + k * 16 * LD + t * 8);
        wn_mma_bf16_k16(o[t], u, w[0], w[1]);
        wn_mma_bf16_k16(o[t + 1], u, w[2], w[3]);
      }
    }
  }

  /* The accumulator is initialised with F. */
  static __device__ __forceinline__ void start(float (&s)[CHUNKS][4], const float *f, int warp, int lane) {
    clear(s);
    if (!f) return;
    f += (warp * 16 + (lane >> 2)) * TILE + (lane & 3) * 2;
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 x = *reinterpret_cast<const float2 *>(f + half * 8 * TILE + t * 8);
        s[t][2 * half] = x.x, s[t][2 * half + 1] = x.y;
      }
  }
  static __device__ __forceinline__ void finish(float (&)[CHUNKS][4], const float *, int, int) {}
  static __device__ __forceinline__ void start_turned(float (&s)[CHUNKS][4], const float *f, int warp, int lane) {
    clear(s);
    if (f) add_F_turned(s, f, warp, lane);
  }
  static __device__ __forceinline__ void finish_turned(float (&)[CHUNKS][4], const float *, int, int) {}

  static __device__ __forceinline__ void add(float (&s)[CHUNKS][4], const uint4 *x, int warp, int lane) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
      const uint4 y = x[(warp * 4 + u) * 32 + lane];
      more(s[2 * u], 0, wn_unpack_bf16(y.x)), more(s[2 * u], 2, wn_unpack_bf16(y.y));
      more(s[2 * u + 1], 0, wn_unpack_bf16(y.z)), more(s[2 * u + 1], 2, wn_unpack_bf16(y.w));
    }
  }
  static __device__ __forceinline__ void add_turned(float (&s)[CHUNKS][4], const uint4 *x, int warp, int lane) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
      const uint4 y = x[(u * 4 + warp) * 32 + lane];
      more(s[2 * u], 0, wn_unpack_bf16(wn_movmatrix(y.x))), more(s[2 * u + 1], 0, wn_unpack_bf16(wn_movmatrix(y.y)));
      more(s[2 * u], 2, wn_unpack_bf16(wn_movmatrix(y.z))), more(s[2 * u + 1], 2, wn_unpack_bf16(wn_movmatrix(y.w)));
    }
  }
  static __device__ __forceinline__ void add_F_turned(float (&s)[CHUNKS][4], const float *x, int warp, int lane) {
    x += (lane & 3) * 2 * TILE + warp * 16 + (lane >> 2);
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[t][e] += x[(t * 8 + (e & 1)) * TILE + (e >> 1) * 8];
  }
  static __device__ __forceinline__ void store(uint4 *x, const float (&s)[CHUNKS][4], int warp, int lane) {
#pragma unroll
    for (int u = 0; u < 4; u++)
      x[(warp * 4 + u) * 32 + lane] =
          make_uint4(wn_pack_bf16(s[2 * u][0], s[2 * u][1]), wn_pack_bf16(s[2 * u][2], s[2 * u][3]),
                     wn_pack_bf16(s[2 * u + 1][0], s[2 * u + 1][1]), wn_pack_bf16(s[2 * u + 1][2], s[2 * u + 1][3]));
  }
  static __device__ __forceinline__ void store_turned(uint4 *x, const float (&s)[CHUNKS][4], int warp, int lane) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
      const uint32_t y[4] = {wn_pack_bf16(s[2 * u][0], s[2 * u][1]), wn_pack_bf16(s[2 * u + 1][0], s[2 * u + 1][1]),
                             wn_pack_bf16(s[2 * u][2], s[2 * u][3]), wn_pack_bf16(s[2 * u + 1][2], s[2 * u + 1][3])};
      turn(&x[(u * 4 + warp) * 32 + lane], y);
    }
  }
  static __device__ __forceinline__ void store_F_turned(float *x, const float (&s)[CHUNKS][4], int warp, int lane) {
    x += (lane & 3) * 2 * TILE + warp * 16 + (lane >> 2);
#pragma unroll
    for (int t = 0; t < CHUNKS; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) x[(t * 8 + (e & 1)) * TILE + (e >> 1) * 8] = s[t][e];
  }

private:
  template <bool POSITIVE> static __device__ __forceinline__ uint32_t pack(float x, float y) {
    return POSITIVE ? wn_pack_bf16(fmaxf(x, 0.0f), fmaxf(y, 0.0f)) : wn_pack_bf16(x, y);
  }
  static __device__ __forceinline__ void more(float (&s)[4], int e, float2 x) {
    s[e] += x.x, s[e + 1] += x.y;
  }
  static __device__ __forceinline__ void turn(uint4 *to, const uint32_t (&y)[4]) {
    const uint32_t a = wn_movmatrix(y[0]), b = wn_movmatrix(y[1]), c = wn_movmatrix(y[2]), d = wn_movmatrix(y[3]);
    *to = make_uint4(a, b, c, d);
  }
};

} // namespace wn_cuda

#endif
