// Rows of quantised weights times a few rows of x. A warp has ROWS rows of weights; a lane reads units of 4 to 32
// weights at once, as wide as the alignment of blocks allows. In a unit a weight is an integer times a scale, maybe
// plus a shift:
//
//   sum_k x_k (scale q_k + shift) = scale sum_k x_k q_k + shift sum_k x_k
//
// So a weight costs a conversion and a multiply-add, and the sums of x are shared by all rows of weights. x is read 16
// bytes at a time: a single row from the L1 cache, as all warps read the same; more from shared memory. The units of a
// lane are 32 apart and the order of all sums is written out, so a row of y has the same bits whatever M is. Formats:
// packed.cuh.
#ifndef WN_BACKENDS_CUDA_MATVEC_CUH
#define WN_BACKENDS_CUDA_MATVEC_CUH

#include "backends/cuda/packed.cuh"

// How a lane reads a unit of a row: RUNS runs of four consecutive weights. Run r begins at weight at(u, r) of the row
// and has scale number r * SCALES / RUNS. unpack: what belongs to scale s.
template <int RUNS_, int SCALES_> struct wn_unit {
  static constexpr int RUNS = RUNS_, SCALES = SCALES_;
  float q[RUNS][4], scale[SCALES], shift[SCALES];
};

static __device__ __forceinline__ uint32_t wn_two_bytes(const uint8_t *p) {
  return *reinterpret_cast<const uint16_t *>(p);
}
static __device__ __forceinline__ uint32_t wn_four_bytes(const uint8_t *p) { // aligned to 2
  return wn_two_bytes(p) | wn_two_bytes(p + 2) << 16;
}
static __device__ __forceinline__ float wn_half_bits(uint32_t x) {
  return __half2float(__ushort_as_half((uint16_t)x));
}
// Four bytes as floats, minus BY: a byte becomes the low bits of the float 2^23.
template <int BY> static __device__ __forceinline__ void wn_four_floats(float (&q)[4], uint32_t x) {
#pragma unroll
  for (int i = 0; i < 4; i++) q[i] = __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7440u | i)) - (8388608.0f + BY);
}
// Moves four bits to bit 4 of four bytes.
static __device__ __forceinline__ uint32_t wn_fifth(uint32_t bits) {
  return ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
}

template <int TYPE> struct wn_packed_unit;

template <> struct wn_packed_unit<WN_GGUF_F32> {
  typedef wn_unit<1, 1> unit;
  typedef uint4 raw;
  static constexpr int WEIGHTS = 4, ALIGN = 16;
  static constexpr bool SHIFTS = false;
  static __device__ __forceinline__ int at(int u, int) { return u * 4; }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    return reinterpret_cast<const uint4 *>(row)[u];
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int, int) {
    x.q[0][0] = __uint_as_float(r.x), x.q[0][1] = __uint_as_float(r.y), x.q[0][2] = __uint_as_float(r.z);
    x.q[0][3] = __uint_as_float(r.w), x.scale[0] = 1;
  }
};
// Two 16-bit floats per word.
template <bool BF16> struct wn_packed_sixteen {
  typedef wn_unit<2, 1> unit;
  typedef uint4 raw;
  static constexpr int WEIGHTS = 8, ALIGN = 16;
  static constexpr bool SHIFTS = false;
  static __device__ __forceinline__ int at(int u, int r) { return u * 8 + r * 4; }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    return reinterpret_cast<const uint4 *>(row)[u];
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int, int) {
    const uint32_t word[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 two = BF16 ? wn_unpack_bf16(word[i]) : wn_unpack_f16(word[i]);
      x.q[i / 2][i % 2 * 2] = two.x, x.q[i / 2][i % 2 * 2 + 1] = two.y;
    }
    x.scale[0] = 1;
  }
};
template <> struct wn_packed_unit<WN_GGUF_F16> : wn_packed_sixteen<false> {};
template <> struct wn_packed_unit<WN_GGUF_BF16> : wn_packed_sixteen<true> {};

template <> struct wn_packed_unit<WN_GGUF_Q8_0> {
  typedef wn_unit<2, 1> unit;
  struct raw {
    uint32_t d, q[2];
  };
  static constexpr int WEIGHTS = 8, ALIGN = 2;
  static constexpr bool SHIFTS = false;
  static __device__ __forceinline__ int at(int u, int r) { return u * 8 + r * 4; }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    const uint8_t *p = row + (int64_t)(u >> 2) * 34, *q = p + 2 + (u & 3) * 8;
    return {wn_two_bytes(p), {wn_four_bytes(q), wn_four_bytes(q + 4)}};
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int, int) {
    wn_four_floats<128>(x.q[0], r.q[0] ^ 0x80808080u), wn_four_floats<128>(x.q[1], r.q[1] ^ 0x80808080u);
    x.scale[0] = wn_half_bits(r.d);
  }
};

// Blocks of 32: HEAD bytes with d, with SHIFTS also m, and maybe the fifth bits. A unit is half a block; its low four
// bits belong to the first 16 weights, its high four to the others.
template <int BYTES, bool SHIFTS_, bool FIVE> struct wn_packed_nibbles {
  typedef wn_unit<4, 1> unit;
  struct raw {
    uint32_t head, fifth, q[2];
  };
  static constexpr int WEIGHTS = 16, ALIGN = SHIFTS_ ? 4 : 2, BY = SHIFTS_ ? 0 : FIVE ? 16 : 8;
  static constexpr bool SHIFTS = SHIFTS_;
  static __device__ __forceinline__ int at(int u, int r) {
    return (u >> 1) * 32 + (u & 1) * 8 + (r & 1) * 4 + (r >> 1) * 16;
  }
  static __device__ __forceinline__ uint32_t word(const uint8_t *p) {
    if constexpr (ALIGN == 4) return *reinterpret_cast<const uint32_t *>(p);
    return wn_four_bytes(p);
  }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    const uint8_t *p = row + (int64_t)(u >> 1) * BYTES, *after = p + (SHIFTS ? 4 : 2),
                  *q = after + (FIVE ? 4 : 0) + (u & 1) * 8;
    return {SHIFTS ? word(p) : wn_two_bytes(p), FIVE ? word(after) : 0, {word(q), word(q + 4)}};
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int u, int) {
#pragma unroll
    for (int run = 0; run < 4; run++) {
      uint32_t q = r.q[run & 1] >> (run >> 1) * 4 & 0x0f0f0f0fu;
      if (FIVE) q |= wn_fifth(r.fifth >> ((u & 1) * 8 + (run & 1) * 4 + (run >> 1) * 16));
      wn_four_floats<BY>(x.q[run], q);
    }
    x.scale[0] = wn_half_bits(r.head);
    if (SHIFTS) x.shift[0] = wn_half_bits(r.head >> 16);
  }
};
template <> struct wn_packed_unit<WN_GGUF_Q4_0> : wn_packed_nibbles<18, false, false> {};
template <> struct wn_packed_unit<WN_GGUF_Q4_1> : wn_packed_nibbles<20, true, false> {};
template <> struct wn_packed_unit<WN_GGUF_Q5_0> : wn_packed_nibbles<22, false, true> {};
template <> struct wn_packed_unit<WN_GGUF_Q5_1> : wn_packed_nibbles<24, true, true> {};

// Blocks of 256: 16 bytes of scales, maybe 32 of fifth bits, then nibbles, two groups of 32 in each 32 bytes.
template <bool FIVE> struct wn_packed_groups {
  typedef wn_unit<8, 2> unit;
  struct raw {
    uint4 head, q, fifth;
  };
  static constexpr int WEIGHTS = 32, ALIGN = 16, BYTES = FIVE ? 176 : 144;
  static constexpr bool SHIFTS = true;
  static __device__ __forceinline__ int at(int u, int r) {
    return (u >> 3) * 256 + (u >> 1 & 3) * 64 + (u & 1) * 16 + (r & 3) * 4 + (r >> 2) * 32;
  }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    const uint4 *p = reinterpret_cast<const uint4 *>(row + (int64_t)(u >> 3) * BYTES);
    return {p[0], p[(FIVE ? 3 : 1) + (u & 7)], FIVE ? p[1 + (u & 1)] : uint4{0, 0, 0, 0}};
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int u, int s) {
    const int pair = u >> 1 & 3;
    const uint32_t q[4] = {r.q.x, r.q.y, r.q.z, r.q.w}, fifth[4] = {r.fifth.x, r.fifth.y, r.fifth.z, r.fifth.w};
#pragma unroll
    for (int run = 0; run < 4; run++) {
      uint32_t bytes = q[run] >> s * 4 & 0x0f0f0f0fu;
      if (FIVE) bytes |= (fifth[run] >> (2 * pair + s) & 0x01010101u) << 4;
      wn_four_floats<0>(x.q[s * 4 + run], bytes);
    }
    // groups 2 pair and 2 pair + 1 in the twelve bytes (wn_packed_scales), two bytes at a time
    const int by = (pair & 1) * 16;
    const uint32_t low = r.head.y >> by, high = r.head.z >> by, last = r.head.w >> by;
    const uint32_t scales = pair < 2 ? low & 0x3f3f : (last & 0x0f0f) | (low >> 2 & 0x3030);
    const uint32_t minima = pair < 2 ? high & 0x3f3f : (last >> 4 & 0x0f0f) | (high >> 2 & 0x3030);
    float of[4];
    wn_four_floats<0>(of, scales | minima << 16);
    const float d = wn_half_bits(r.head.x), m = -wn_half_bits(r.head.x >> 16);
    x.scale[s] = d * of[s], x.shift[s] = m * of[2 + s];
  }
};
template <> struct wn_packed_unit<WN_GGUF_Q4_K> : wn_packed_groups<false> {};
template <> struct wn_packed_unit<WN_GGUF_Q5_K> : wn_packed_groups<true> {};

template <> struct wn_packed_unit<WN_GGUF_Q6_K> {
  typedef wn_unit<4, 4> unit;
  struct raw {
    uint32_t low[2], high, d, scale[4];
  };
  static constexpr int WEIGHTS = 16, ALIGN = 2;
  static constexpr bool SHIFTS = false;
  static __device__ __forceinline__ int at(int u, int r) {
    return (u >> 4) * 256 + (u >> 3 & 1) * 128 + r * 32 + (u & 7) * 4;
  }
  static __device__ __forceinline__ raw load(const uint8_t *row, int u) {
    const uint8_t *p = row + (int64_t)(u >> 4) * 210, *low = p + (u >> 3 & 1) * 64 + (u & 7) * 4;
    const uint8_t *scale = p + 192 + (u >> 3 & 1) * 8 + (u >> 2 & 1);
    return {{wn_four_bytes(low), wn_four_bytes(low + 32)},
            wn_four_bytes(p + 128 + (u >> 3 & 1) * 32 + (u & 7) * 4),
            wn_two_bytes(p + 208),
            {scale[0], scale[2], scale[4], scale[6]}};
  }
  static __device__ __forceinline__ void unpack(unit &x, const raw &r, int, int s) {
    const uint32_t q = (r.low[s & 1] >> (s >> 1) * 4 & 0x0f0f0f0fu) | (r.high >> s * 2 & 0x03030303u) << 4;
    wn_four_floats<32>(x.q[s], q);
    x.scale[s] = wn_half_bits(r.d) * (float)(int8_t)r.scale[s];
  }
};

// sum[n][m] += the share of w[n] . x[m] of scale s of a lane's unit. x(m, r): four numbers of row m of x, those of the
// r-th run of the scale.
template <int TYPE, int M, int ROWS, class X>
static __device__ __forceinline__ void
wn_matvec_scale(float (&sum)[ROWS][M], const typename wn_packed_unit<TYPE>::unit (&q)[ROWS], int s, const X &x) {
  typedef wn_packed_unit<TYPE> T;
  constexpr int EACH = T::unit::RUNS / T::unit::SCALES;
#pragma unroll
  for (int m = 0; m < M; m++) {
    float part[ROWS] = {}, all = 0;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
      const float4 v = x(m, r);
      if (T::SHIFTS) all += (v.x + v.y) + (v.z + v.w);
#pragma unroll
      for (int n = 0; n < ROWS; n++) {
        const float(&k)[4] = q[n].q[s * EACH + r];
        part[n] = fmaf(k[3], v.w, fmaf(k[2], v.z, fmaf(k[1], v.y, fmaf(k[0], v.x, part[n]))));
      }
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
      sum[n][m] = fmaf(q[n].scale[s], part[n], sum[n][m]);
      if (T::SHIFTS) sum[n][m] = fmaf(q[n].shift[s], all, sum[n][m]);
    }
  }
}

// sum[n][m] += the lane's share of w[n] . x[m]. K: of the row; x(m): where row m of x begins, aligned to 16 bytes.
template <int TYPE, int M, int ROWS, int AHEAD, class X>
static __device__ __forceinline__ void wn_matvec(float (&sum)[ROWS][M], const uint8_t *const (&w)[ROWS], int64_t K,
                                                 const X &x, int lane) {
  typedef wn_packed_unit<TYPE> T;
  typedef typename T::unit unit;
  constexpr int RUNS = unit::RUNS, SCALES = unit::SCALES, EACH = RUNS / SCALES;
  const int units = (int)(K / T::WEIGHTS);
  for (int first = lane; first < units; first += 32 * AHEAD) {
    typename T::raw raw[AHEAD][ROWS];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
      for (int n = 0; n < ROWS; n++) // after the last unit it reads the first again and ignores it
        raw[a][n] = T::load(w[n], first + 32 * a < units ? first + 32 * a : first);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int u = first + 32 * a;
      if (u >= units) break;
      unit q[ROWS];
#pragma unroll
      for (int s = 0; s < SCALES; s++) {
#pragma unroll
        for (int n = 0; n < ROWS; n++) T::unpack(q[n], raw[a][n], u, s);
        wn_matvec_scale<TYPE>(
            sum, q, s, [&](int m, int r) { return *reinterpret_cast<const float4 *>(x(m) + T::at(u, s * EACH + r)); });
      }
    }
  }
}

// How many units a lane reads before it computes.
template <int TYPE> static constexpr int wn_ahead(int M) {
  return M == 1 && wn_packed_unit<TYPE>::WEIGHTS < 32 ? 2 : 1;
}
// Can rows of this type be read this way?
template <int TYPE> static inline bool wn_matvec_reads(const void *data, int64_t K) {
  typedef wn_packed_unit<TYPE> T;
  const wn_packed_shape s = wn_packed_shape_of(TYPE);
  return reinterpret_cast<uintptr_t>(data) % T::ALIGN == 0 && K / s.weights * s.bytes % T::ALIGN == 0 &&
         K % T::WEIGHTS == 0 && K <= INT32_MAX / 2;
}
#define WN_PACKED_TYPES(X)                                                                                             \
  X(WN_GGUF_F32)                                                                                                       \
  X(WN_GGUF_F16)                                                                                                       \
  X(WN_GGUF_BF16)                                                                                                      \
  X(WN_GGUF_Q8_0)                                                                                                      \
  X(WN_GGUF_Q4_0)                                                                                                      \
  X(WN_GGUF_Q4_1)                                                                                                      \
  X(WN_GGUF_Q5_0)                                                                                                      \
  X(WN_GGUF_Q5_1)                                                                                                      \
  X(WN_GGUF_Q4_K)                                                                                                      \
  X(WN_GGUF_Q5_K)                                                                                                      \
  X(WN_GGUF_Q6_K)

// One launch: y[m,n0+n] = w_n . x_m + b (+ y), for a part of the matrix whose rows have one type.
struct wn_matvec_call {
  int64_t N, K, row_bytes;
  const uint8_t *w;
  const float *x, *b;
  int64_t ldx;
  float *y;
  int64_t ldy;
  bool accumulate;
};
enum { WN_MATVEC_ROWS = 2, WN_MATVEC_THREADS = 128 };
// The warp's rows of weights, from n0 on; the last one again for those beyond N.
template <int ROWS>
static __device__ __forceinline__ void wn_matvec_rows(const uint8_t *(&w)[ROWS], const wn_matvec_call &c, int64_t n0) {
#pragma unroll
  for (int n = 0; n < ROWS; n++) w[n] = c.w + (n0 + n < c.N ? n0 + n : c.N - 1) * c.row_bytes;
}
// Adds the lanes' sums; the first lane writes those of the first `rows` rows of x.
template <int M, int ROWS>
static __device__ __forceinline__ void wn_matvec_write(const float (&sum)[ROWS][M], const wn_matvec_call &c, int64_t n0,
                                                       int rows) {
#pragma unroll
  for (int n = 0; n < ROWS; n++)
#pragma unroll
    for (int m = 0; m < M; m++) {
      float total = wn_warp_sum(sum[n][m]);
      if (threadIdx.x % 32 != 0 || n0 + n >= c.N || m >= rows) continue;
      if (c.b) total += c.b[n0 + n];
      float *y = c.y + m * c.ldy + n0 + n;
      *y = c.accumulate ? *y + total : total;
    }
}
// A single row of x.
template <int TYPE> static __global__ void __launch_bounds__(WN_MATVEC_THREADS, 3) wn_matvec_kernel(wn_matvec_call c) {
  constexpr int ROWS = WN_MATVEC_ROWS;
  const int64_t n0 = ((int64_t)blockIdx.x * (WN_MATVEC_THREADS / 32) + threadIdx.x / 32) * ROWS;
  const uint8_t *w[ROWS];
  float sum[ROWS][1] = {};
  if (n0 >= c.N) return;
  wn_matvec_rows(w, c, n0);
  wn_matvec<TYPE, 1, ROWS, 2>(
      sum, w, c.K, [&](int) { return c.x; }, threadIdx.x % 32);
  wn_matvec_write(sum, c, n0, 1);
}

// More rows of x, up to M: a warp has more rows of weights, and the block reads x into shared memory, for all of them.
// There it lies as lanes need it, run by run, so that 32 lanes read 512 bytes in a row; in memory their runs are apart,
// and a warp's read of x touches up to 16 lines. A stage is at most four runs of 32 units; the next one is copied
// meanwhile. Each row of y has the bits of wn_matvec_kernel.
enum { WN_STAGED_THREADS = 256 };
template <int TYPE, int M> struct wn_staged {
  typedef typename wn_packed_unit<TYPE>::unit unit;
  static constexpr int ROWS = TYPE == WN_GGUF_Q5_K && M > 8 ? 3 : 4; // of a warp; more would spill registers
  static constexpr int RUNS = unit::RUNS < 4 ? unit::RUNS : 4,
                       PARTS = unit::RUNS / RUNS; // of a stage; stages of a unit
  static constexpr int LINE = 32 + 8 / RUNS;      // so that eight threads that copy write to other banks
  static constexpr int STAGE = M * RUNS * LINE;
  static constexpr size_t BYTES = 2 * STAGE * sizeof(float4);
};
template <int TYPE, int M>
static __device__ __forceinline__ void wn_stage_copy(float4 *all, const wn_matvec_call &c, int rows, int units,
                                                     int stage) {
  typedef wn_staged<TYPE, M> S;
  const int run = threadIdx.x % S::RUNS, lane = threadIdx.x / S::RUNS % 32, first = threadIdx.x / S::RUNS / 32;
  const int u = stage / S::PARTS * 32 + lane;
  const float *x = c.x + (u < units ? wn_packed_unit<TYPE>::at(u, stage % S::PARTS * S::RUNS + run) : 0);
  float4 *to = all + stage % 2 * S::STAGE + run * S::LINE + lane;
#pragma unroll 4
  for (int i = 0; i < M * S::RUNS / 8; i++) {
    const int m = first + i * (8 / S::RUNS);
    wn_copy_async<16>(to + m * S::RUNS * S::LINE, x + (m < rows ? m * c.ldx : 0), m < rows && u < units);
  }
  wn_copy_commit();
}
template <int TYPE, int M>
static __global__ void __launch_bounds__(WN_STAGED_THREADS, 1) wn_staged_kernel(const wn_matvec_call c, int rows) {
  typedef wn_packed_unit<TYPE> T;
  typedef wn_staged<TYPE, M> S;
  constexpr int ROWS = S::ROWS, SCALES = T::unit::SCALES, EACH = T::unit::RUNS / SCALES;
  WN_SHARED_DYNAMIC(float4, all); // [2][M][RUNS][LINE]
  const int64_t n0 = ((int64_t)blockIdx.x * (WN_STAGED_THREADS / 32) + threadIdx.x / 32) * ROWS;
  const int lane = threadIdx.x % 32, units = (int)(c.K / T::WEIGHTS), stages = (units + 31) / 32 * S::PARTS;
  const uint8_t *w[ROWS];
  typename T::raw raw[ROWS];
  float sum[ROWS][M] = {};
  wn_matvec_rows(w, c, n0);
#pragma unroll
  for (int n = 0; n < ROWS; n++) raw[n] = T::load(w[n], lane < units ? lane : 0);
  wn_stage_copy<TYPE, M>(all, c, rows, units, 0);
  for (int first = 0; first < stages; first += S::PARTS) {
    const int u = first / S::PARTS * 32 + lane;
#pragma unroll
    for (int s = 0; s < SCALES; s++) {
      const int stage = first + s * EACH / S::RUNS, run = s * EACH % S::RUNS;
      const float4 *x = all + stage % 2 * S::STAGE + run * S::LINE + lane;
      typename T::unit q[ROWS];
      if (run == 0) {
        wn_copy_wait<0>();
        __syncthreads(); // this stage is there, and the one before is no longer read
        if (stage + 1 < stages) wn_stage_copy<TYPE, M>(all, c, rows, units, stage + 1);
      }
#pragma unroll
      for (int n = 0; n < ROWS; n++) {
        T::unpack(q[n], raw[n], u, s);
        if (s + 1 == SCALES) raw[n] = T::load(w[n], u + 32 < units ? u + 32 : 0);
      }
      if (u < units) wn_matvec_scale<TYPE>(sum, q, s, [&](int m, int r) { return x[(m * S::RUNS + r) * S::LINE]; });
    }
  }
  wn_matvec_write(sum, c, n0, rows);
}

#endif
