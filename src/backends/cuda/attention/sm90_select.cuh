/* The selection on sm_90: F, and in backward the gradient of the selecting logits (select.cuh has the equations). A
 * thread block has 64 keys and loops over rows, 256 at a time, 64 per warpgroup. One wgmma computes S^T = K0 Q0^T,
 * another its sums along the rows: a product with a triangular matrix of -1. These sums must be as exact as floats (lse
 * depends on F), so S is split into bf16 parts: three for F in floats, two for F in halves. The totals of the four
 * warpgroups are sums of S itself, combined in shared memory. Every sum has one order. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_SELECT_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_SELECT_CUH

#include "backends/cuda/attention/sm90_args.cuh"

namespace wn_cuda {

template <int D> struct sm90_select_room {
  static constexpr int TILE = 64 * D * 2, TRIANGLE = 9 * TILE, TOTALS = TRIANGLE + 8192, BARRIERS = TOTALS + 2048;
  static constexpr int BYTES = BARRIERS + 9 * 8;
};

/* Shared by both kernels: tiles of keys and queries, the triangular matrix, sums of the current blocks. */
template <int D> struct sm90_walk {
  typedef sm90_select_room<D> room;
  uint8_t *sk, *sq, *triangle;
  float *totals; /* [2][4][64] */
  wn_mbarrier *bars;
  int lane, warp, group, block, g, b; /* block: of columns */
  sm90_columns columns;
  int own_block; /* the row block with the same tokens as the keys; before the chunk: of earlier tokens */
  int key[2];    /* of the lane; -1: no key */
  float run[2];  /* the sum of the blocks visited */

  __device__ __forceinline__ sm90_walk(const sm90_args &a, uint8_t *raw)
      : block(blockIdx.x), g(blockIdx.y), b(blockIdx.z), columns(a, b, g), own_block(columns.to_rows(a, block)) {
    sk = raw, sq = raw + room::TILE, triangle = raw + room::TRIANGLE;
    totals = reinterpret_cast<float *>(raw + room::TOTALS);
    bars = reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS);
    lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, group = threadIdx.x >> 7;
  }
  __device__ __forceinline__ bool there(const sm90_args &a) const { return own_block < window_end(a); }
  /* Starts the sums; `from`: sums by key, or NULL. A column without a key counts as selected for good. */
  __device__ __forceinline__ void start_sums(const sm90_args &a, const float *from, float none) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      key[h] = columns.key(a, b, g, block * 64 + warp * 16 + (lane >> 2) + h * 8);
      run[h] = key[h] < 0 ? none : from ? from[((int64_t)b * a.G + g) * a.padded + key[h]] : 0.0f;
    }
  }
  /* Does this lane store the sums of its keys? */
  __device__ __forceinline__ bool tells() const {
    return !(lane & 3) && !group;
  }
  /* Fills the matrix: -1 where k < n (BELOW) or k > n; rows n of 64 k. */
  template <bool BELOW> __device__ __forceinline__ void prepare(const sm90_args &a, int row_block) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 9; i++) wn_mbarrier_init(&bars[i], 1);
      wn_mbarrier_init_fence();
    }
    const int n = threadIdx.x / 8, chunk = threadIdx.x % 8;
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int k = chunk * 8 + i * 2;
      v[i] = ((BELOW ? k < n : k > n) ? 0xbf80u : 0) | ((BELOW ? k + 1 < n : k + 1 > n) ? 0xbf800000u : 0);
    }
    *reinterpret_cast<uint4 *>(triangle + n * 128 + ((chunk ^ (n & 7)) << 4)) = make_uint4(v[0], v[1], v[2], v[3]);
    wn_proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
      wn_mbarrier_expect(&bars[0], room::TILE);
      load_columns<D, 64>(sk, a, false, &bars[0], columns, block * 64, key_head(a), b);
    }
    fetch(a, row_block, 0);
  }
  __device__ __forceinline__ int query_head(const sm90_args &a) const {
    return g * (a.H / a.G) + a.head;
  }
  __device__ __forceinline__ int key_head(const sm90_args &a) const {
    return query_head(a) / (a.H / a.Hkv);
  }
  /* Loads the queries of this warpgroup's block, one of the four from row_block on. */
  __device__ __forceinline__ void fetch(const sm90_args &a, int row_block, int buffer) {
    if (threadIdx.x & 127) return;
    wn_mbarrier *full = &bars[1 + buffer * 4 + group];
    wn_mbarrier_expect(full, room::TILE);
    load_tile<D, 64>(sq + (buffer * 4 + group) * room::TILE, a.q, full, (row_block + group) * 64, query_head(a), b);
  }
  /* Computes raw logits, [keys, rows]. */
  __device__ __forceinline__ void logits(float (&s)[32], int step) {
    const int buffer = step & 1;
    if (step == 0) wn_mbarrier_wait(&bars[0], 0);
    wn_mbarrier_wait(&bars[1 + buffer * 4 + group], step >> 1 & 1);
    wn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wn_wgmma_ss<false>(s, columns_of<64>(sk, k), columns_of<64>(sq + (buffer * 4 + group) * room::TILE, k), k > 0);
    wn_wgmma_commit();
    wn_wgmma_wait<0>();
  }
  /* f += p times the triangular matrix. */
  __device__ __forceinline__ void sums(float (&f)[32], const uint32_t (&p)[4][4]) {
    wn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wn_wgmma_rs<false>(f, p[k], columns_of<64>(triangle, k), true);
    wn_wgmma_commit();
    wn_wgmma_wait<0>();
  }
  /* Combines the totals of the four blocks: adds them to `run`; `before` is the sum of the blocks before this one, in
   * the order of the loop. */
  template <bool DOWN>
  __device__ __forceinline__ void meet(const float (&total)[2], bool has, int step, float (&before)[2]) {
    float *place = totals + (step & 1) * 256;
    if (has)
#pragma unroll
      for (int h = 0; h < 2; h++) place[group * 64 + warp * 16 + h * 8 + (lane >> 2)] = total[h];
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float x = run[h];
      before[h] = 0;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int which = DOWN ? n : 3 - n;
        if (which == group) before[h] = x;
        x += place[which * 64 + warp * 16 + h * 8 + (lane >> 2)];
      }
      run[h] = x;
    }
  }
  /* Must `may` be called for the pairs of this block? */
  __device__ __forceinline__ bool rim(const sm90_args &a, int row_block) const {
    return row_block <= own_block || block == 0 || a.doc_start;
  }
  /* May the row of element i of block row_block select its key? Pairs from T on have logits of 0. */
  __device__ __forceinline__ bool may(const sm90_args &a, int row_block, int i) const {
    const int j = key[i >> 1 & 1], row = row_block * 64 + acc_column(lane, i), first = document(a, b, row);
    return j >= first && !(a.protect_first && j == first) && (a.protect_self ? row > j : row >= j);
  }
};

/* The first row block whose tile of 128 rows reaches the keys of row block own_block. */
__device__ __forceinline__ int first_block(const sm90_args &a, int own_block) {
  return max(a.row_block0, own_block & ~1);
}

/* Stores a transposed block of sums, [keys, rows], as F. */
template <sm90_F KIND> __device__ __forceinline__ void store_F(void *block, const float (&f)[32], int warp, int lane) {
  if constexpr (KIND == F_HALF) {
    uint4 *to = static_cast<uint4 *>(block);
#pragma unroll
    for (int u = 0; u < 4; u++) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) { /* halves of rows for the lower keys, then for the upper keys */
        const int e = (2 * u + (i & 1)) * 4 + (i >> 1) * 2;
        v[i] = wn_movmatrix(wn_pack_f16(fmaxf(f[e], -60000.0f), fmaxf(f[e + 1], -60000.0f)));
      }
      to[(u * 4 + warp) * 32 + lane] = make_uint4(v[0], v[1], v[2], v[3]);
    }
  } else {
    float4 *to = static_cast<float4 *>(block);
    const bool odd = lane & 4; /* the lane's key; the neighbour has the other key of the pair */
    const int place = ((lane & 3) * 2 + odd) * 4 + (lane >> 3);
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float2 pair[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int e = (2 * u + half) * 4 + h * 2;
          const float got = __shfl_xor_sync(~0u, odd ? f[e] : f[e + 1], 4);
          pair[half] = odd ? make_float2(got, f[e + 1]) : make_float2(f[e], got);
        }
        to[((u * 4 + warp) * 2 + h) * 32 + place] = make_float4(pair[0].x, pair[0].y, pair[1].x, pair[1].y);
      }
  }
}

/* Grid: the largest possible number of column blocks of the chunk, groups, sequences. */
template <int D, sm90_F KIND>
__global__ void __launch_bounds__(512, 1) sm90_select(const __grid_constant__ sm90_args a) {
  WN_SHARED_DYNAMIC(uint8_t, raw);
  sm90_walk<D> x(a, raw);
  if (!x.there(a)) return;
  const int first = first_block(a, x.own_block), end = window_end(a), from = first & ~3;
  x.template prepare<true>(a, from);
  x.start_sums(a, x.own_block < a.row_block0 ? a.carry_in : nullptr, 1e30f);
  int step = 0;
  for (int four = from; four < end; four += 4, step++) {
    const int row_block = four + x.group;
    if (four + 4 < end) x.fetch(a, four + 4, (step & 1) ^ 1);
    float s[32], f[32], before[2];
    x.logits(s, step);
    const bool rim = x.rim(a, row_block);
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = rim && !x.may(a, row_block, i) ? 0.0f : fmaxf(s[i], 0.0f);
    float total[2] = {0, 0}; /* in floats, whatever F is kept in: F after the last row is made of them */
#pragma unroll
    for (int i = 0; i < 32; i++) total[i >> 1 & 1] += s[i];
#pragma unroll
    for (int h = 0; h < 2; h++) total[h] = sum_of_row(total[h]);
    zero(f);
#pragma unroll
    for (int part = 0; part < (KIND == F_HALF ? 2 : 3); part++) {
      uint32_t p[4][4];
      pack(p, s);
      x.sums(f, p);
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const float2 had = wn_unpack_bf16(p[i / 8][i / 2 % 4]);
        s[i] -= had.x, s[i + 1] -= had.y;
      }
    }
    x.template meet<true>(total, (x.lane & 3) == 3, step, before);
#pragma unroll
    for (int i = 0; i < 32; i++) f[i] -= before[i >> 1 & 1];
    if (a.F && row_block >= first && row_block < end)
      store_F<KIND>(static_cast<uint8_t *>(a.F) + block_at(a, x.b, x.g, row_block, x.block) * sm90_block<KIND>::BYTES,
                    f, x.warp, x.lane);
  }
  if (!x.tells()) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int j = x.key[h];
    const int64_t bg = (int64_t)x.b * a.G + x.g;
    if (a.carry_out && j >= 0) a.carry_out[bg * a.padded + j] = x.run[h];
    if (a.f_out && a.last_rows && j >= 0 && j < a.T) a.f_out[bg * a.f_stride + j] = x.run[h] * a.scale;
  }
}

/* Replaces in X the sum of the group's gradients of logits by what is added to the selecting head's gradients. Grid: as
 * for sm90_select. */
template <int D> __global__ void __launch_bounds__(512, 1) sm90_select_back(const __grid_constant__ sm90_args a) {
  WN_SHARED_DYNAMIC(uint8_t, raw);
  sm90_walk<D> x(a, raw);
  if (!x.there(a)) return;
  const int first = first_block(a, x.own_block), end = window_end(a), from = (end - 1) & ~3;
  x.template prepare<false>(a, from);
  x.start_sums(a, a.last_rows ? nullptr : a.back, 0.0f);
  int step = 0;
  for (int four = from; four + 3 >= first; four -= 4, step++) {
    const int row_block = four + x.group;
    if (four - 1 >= first) x.fetch(a, four - 4, (step & 1) ^ 1);
    const bool own = row_block >= first && row_block < end, holds = own && row_block >= x.own_block;
    uint4 *block = a.X + block_at(a, x.b, x.g, own ? row_block : first, x.block) * 512;
    float s[32], f[32], before[2];
    x.logits(s, step);
    const bool rim = x.rim(a, row_block);
    uint32_t active = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
      if (s[i] > 0 && !(rim && !x.may(a, row_block, i))) active |= 1u << i;
    uint32_t p[4][4];
#pragma unroll
    for (int u = 0; u < 4; u++) {
      const uint4 y = holds ? block[(u * 4 + x.warp) * 32 + x.lane] : make_uint4(0, 0, 0, 0);
      p[u][0] = wn_movmatrix(y.x), p[u][1] = wn_movmatrix(y.z);
      p[u][2] = wn_movmatrix(y.y), p[u][3] = wn_movmatrix(y.w);
    }
    zero(f);
    x.sums(f, p);
    const float total[2] = {wn_unpack_bf16(p[0][0]).x - f[0], wn_unpack_bf16(p[0][1]).x - f[2]};
    x.template meet<false>(total, (x.lane & 3) == 0, step, before);
    if (!own) continue;
#pragma unroll
    for (int u = 0; u < 4; u++) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int h = i >> 1, e = (2 * u + (i & 1)) * 4 + 2 * h;
        v[i] = wn_movmatrix(wn_pack_bf16(active >> e & 1 ? f[e] - before[h] : 0.0f,
                                         active >> (e + 1) & 1 ? f[e + 1] - before[h] : 0.0f));
      }
      block[(u * 4 + x.warp) * 32 + x.lane] = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
  if (!x.tells()) return;
#pragma unroll
  for (int h = 0; h < 2; h++)
    if (x.key[h] >= 0) a.back[((int64_t)x.b * a.G + x.g) * a.padded + x.key[h]] = x.run[h];
}

} // namespace wn_cuda

#endif
