/* Products of rows with the matrices of stored.cuh, in tiles of 64 x 64, with D in pieces of 64:
 *   row_products:     M[b,h,i,j] = x_i . z_j
 *   mixed_rows:       out[b,i,h,:] (+)= sum over j of M[b,h,i,j] z_j
 *   mixed_columns:    sum[b,j,g,:] += sum over the heads h of g and i of M[b,h,i,j] x_i; or over all b as well
 * 2 D operations a pair. bf16 rows use tensor cores and round M to bf16; if either operand is float, the product is in
 * float. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_MATRICES_CUH
#define WN_BACKENDS_CUDA_ATTENTION_MATRICES_CUH

#include "backends/cuda/attention/stored.cuh"

namespace wn_cuda {

/* Rows of D numbers. Head h of a matrix uses head h / share of these. */
struct rows_of {
  const void *p;
  stride s;
  int type, share;
  bool vectors; /* may be read in vectors of 16 bytes */
};

struct product_args {
  rows_of x, z;
  float *M; /* [B,H,R,ld] */
  int H, R, ld, D;
  int rows, N;      /* number of rows of x, and of z */
  int last;         /* the last column that row 0 reaches; INT32_MAX / 2: all columns */
  float *out;       /* mixed_rows: [B,R,H,D]; mixed_columns: [B,N,groups,D] */
  bool add;         /* mixed_rows: adds to out */
  bool all_batches; /* mixed_columns: sums over sequences too, [N,groups,D] */
  int B, groups;
};

/* Copies TILE rows of `from` from row0 on, WIDTH numbers of each from column c0 on; zeros from row `end` and column D
 * on. Completes with the caller's wn_copy_wait and barrier. */
template <class P>
__device__ void stage_rows(typename P::element *to, const rows_of &from, int b, int h, int row0, int end, int D,
                           int c0) {
  const int64_t base = b * from.s.b + h / from.share * from.s.h;
  if (from.vectors) {
    typedef typename P::element element;
    constexpr int VECTOR = 16 / sizeof(element), ROW = P::WIDTH / VECTOR;
    const element *rows = static_cast<const element *>(from.p) + base;
#pragma unroll 1
    for (int x = threadIdx.x; x < P::TILE * ROW; x += P::THREADS) {
      const int r = x / ROW, c = x % ROW * VECTOR;
      const bool there = row0 + r < end && c0 + c < D;
      wn_copy_async<16>(to + r * P::LD + c, rows + (there ? (row0 + r) * from.s.t + c0 + c : 0), there);
    }
    return;
  }
#pragma unroll 1
  for (int x = threadIdx.x; x < P::TILE * P::WIDTH; x += P::THREADS) {
    const int r = x / P::WIDTH, c = x % P::WIDTH;
    const bool there = row0 + r < end && c0 + c < D;
    P::put(to, r * P::LD + c, there ? number_at(from.type, from.p, base + (row0 + r) * from.s.t + c0 + c) : 0.0f);
  }
}

template <class P> struct product_room {
  static constexpr int ROWS = P::TILE * P::LD, TWO = 2 * ROWS * (int)sizeof(typename P::element);
  static constexpr int ONE = ROWS * (int)sizeof(typename P::element) + P::WEIGHTS * 4;
};

/* Grid: column tiles, row tiles, heads times sequences. */
template <class P> __global__ void __launch_bounds__(P::THREADS, 1) row_products(const product_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  element *sx = reinterpret_cast<element *>(raw), *sz = sx + product_room<P>::ROWS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = blockIdx.z % a.H, b = blockIdx.z / a.H;
  const int j0 = blockIdx.x * P::TILE, i0 = blockIdx.y * P::TILE;
  if (j0 > min(i0 + P::TILE, a.rows) - 1 + a.last) return;
  float s[P::CHUNKS][4];
  clear(s);
  for (int c = 0; c < a.D; c += P::WIDTH) {
    stage_rows<P>(sx, a.x, b, h, i0, a.rows, a.D, c);
    stage_rows<P>(sz, a.z, b, h, j0, a.N, a.D, c);
    wn_copy_commit();
    wn_copy_wait<0>();
    __syncthreads();
    P::product(s, sx, sz, warp, lane);
    __syncthreads();
  }
  float *M = a.M + ((int64_t)b * a.H + h) * a.R * a.ld;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), j = j0 + P::column(lane, t, e);
      if (i < a.rows) M[(int64_t)i * a.ld + j] = s[t][e];
    }
}

/* o += M z, for a tile of M from row i0 and column j0 on; TURNED: M^T x. M is 0 after the last row. */
template <class P, bool TURNED>
__device__ __forceinline__ void mix_tile(const product_args &a, float (&o)[P::OUT][4], typename P::element *staged,
                                         float *weights, int b, int h, int i0, int j0, int c0, int warp, int lane) {
  const float *M = a.M + ((int64_t)b * a.H + h) * a.R * a.ld;
  float s[P::CHUNKS][4];
  stage_rows<P>(staged, TURNED ? a.x : a.z, b, h, TURNED ? i0 : j0, TURNED ? a.rows : a.N, a.D, c0);
  wn_copy_commit();
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int own = warp * 16 + P::row(lane, P::row_of(e)), other = P::column(lane, t, e);
      const int i = i0 + (TURNED ? other : own), j = j0 + (TURNED ? own : other);
      s[t][e] = i < a.rows ? M[(int64_t)i * a.ld + j] : 0.0f;
    }
  wn_copy_wait<0>();
  __syncthreads();
  P::product_out(o, s, staged, weights, warp, lane);
  __syncthreads();
}

/* Grid: row tiles, pieces of D, heads times sequences. */
template <class P> __global__ void __launch_bounds__(P::THREADS, 1) mixed_rows(const product_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  element *sz = reinterpret_cast<element *>(raw);
  float *weights = reinterpret_cast<float *>(sz + product_room<P>::ROWS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = blockIdx.z % a.H, b = blockIdx.z / a.H;
  const int i0 = blockIdx.x * P::TILE, c0 = blockIdx.y * P::WIDTH;
  const int end = min(a.N, min(i0 + P::TILE, a.rows) + a.last); /* columns that some row of the tile reaches */
  float o[P::OUT][4];
  clear(o);
  for (int j0 = 0; j0 < end; j0 += P::TILE) mix_tile<P, false>(a, o, sz, weights, b, h, i0, j0, c0, warp, lane);
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), d = c0 + P::out_column(lane, t, e);
      if (i >= a.rows || d >= a.D) continue;
      float *to = a.out + (((int64_t)b * a.R + i) * a.H + h) * a.D + d;
      *to = a.add ? *to + o[t][e] : o[t][e];
    }
}

/* Grid: column tiles, pieces of D, groups times sequences. */
template <class P> __global__ void __launch_bounds__(P::THREADS, 1) mixed_columns(const product_args a) {
  typedef typename P::element element;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  element *sx = reinterpret_cast<element *>(raw);
  float *weights = reinterpret_cast<float *>(sx + product_room<P>::ROWS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = blockIdx.z % a.groups, b0 = blockIdx.z / a.groups;
  const int j0 = blockIdx.x * P::TILE, c0 = blockIdx.y * P::WIDTH, share = a.H / a.groups;
  const int first = max(j0 - a.last, 0) / P::TILE * P::TILE; /* the first tile with a row that reaches column j0 */
  float o[P::OUT][4];
  clear(o);
  for (int b = b0; b < (a.all_batches ? a.B : b0 + 1); b++)
    for (int h = g * share; h < (g + 1) * share; h++)
      for (int i0 = first; i0 < a.rows; i0 += P::TILE)
        mix_tile<P, true>(a, o, sx, weights, b, h, i0, j0, c0, warp, lane);
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int j = j0 + warp * 16 + P::row(lane, P::row_of(e)), d = c0 + P::out_column(lane, t, e);
      if (j < a.N && d < a.D) a.out[(((int64_t)b0 * a.N + j) * a.groups + g) * a.D + d] += o[t][e];
    }
}

} // namespace wn_cuda

#endif
