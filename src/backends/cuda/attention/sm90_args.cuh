/* Attention on sm_90, for bf16 rows: the kernels' arguments and shared functions. They serve only the plain case
 * (sm90_serves, attention_sm90.cu); all else runs on the kernels for sm_80 (run.cuh).
 *
 * As there, logits are "raw" (q . k) and F is stored as -F / scale, the initial value of the product's accumulator.
 * Blocks of F and X are 64 rows x 64 keys, in the layout of a warp's accumulators: [4 row tiles of 16][4 key tiles of
 * 16] and
 *
 *   half F, X (bf16)  [32 lanes][16 bytes]      {lower 8 keys: its row, the row 8 below; upper 8 keys: the same}
 *   float F           [2][32 lanes][16 bytes]   lower, upper 8 keys: {its row, the row 8 below}
 *
 * One 16-byte read per lane gives 16 keys of a half F. F is in half floats in forward and backward, so that a row's
 * attention weights are the same in both; with L_mem, which sums F, it is in floats. Blocks beyond the diagonal within
 * a tile of 128 rows are read, so they are filled with zeros.
 *
 * A thread block is one warpgroup that loads tiles and two that compute. These two take turns in issuing products, so
 * that the products of one overlap with the exponentials of the other. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_ARGS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_ARGS_CUH

#include "backends/cuda/sm90.cuh"

namespace wn_cuda {

struct sm90_stride {
  int64_t b, t, h;
};

struct sm90_args {
  wn_tensor_map q, k, v, dy;    /* rows [B,T,H,D] or [B,T,Hkv,D], boxes of 64 x 64 */
  wn_tensor_map live_k, live_v; /* [B,padded,Hkv,D] keys before the chunk that its rows may see (live.cuh) */
  const int *live;              /* [B,G] how many; -1, or NULL: all keys before the chunk, in place */
  const int32_t *live_at;       /* [B,G,padded] their indices; -1 after the last, up to a whole tile */
  int B, T, H, Hkv, G;          /* heads h of group h / (H / G) share a selection */
  int padded;                   /* T rounded up to tiles of 128 */
  float scale, to_log2;         /* from raw units to a logit, and to a logit in base 2 */
  const int32_t *doc_start;     /* [B,T] or NULL */

  int head; /* the selecting head of each group */
  bool protect_first, protect_self;
  void *F;  /* [B,G,row_blocks,column blocks of key_blocks] blocks, or NULL: only carries */
  uint4 *X; /* likewise: first the sums of gradients of logits, then the gradients of the selecting logits */
  const float *carry_in; /* [B,G,padded] F before the chunk's first row; NULL: 0 */
  float *carry_out;      /* F after its last row, or NULL */
  float *f_out;          /* [B,G,f_stride] likewise, in F's own units, or NULL */
  int64_t f_stride;
  float *back;        /* [B,G,padded] X (as first stored) summed over the rows after the chunk */
  float tau, per_tau; /* of L_mem: tau in raw units; 1 / tau for F itself */
  float *M;           /* [B,G,T] or NULL */
  const float *dM;    /* [B,G,T] or NULL */

  int row_block0, row_blocks, key_blocks; /* of the chunk; even numbers. key_blocks: up to its last row's */
  bool last_rows;                         /* the chunk has the call's last rows */

  struct { /* exclusive attention: y without its part along the row's own value */
    bool on;
    const float *gate; /* [H] or NULL: 1 */
    const uint16_t *v; /* the rows of `v` */
    float *dot;        /* [B,H,T] y . v, or NULL */
    uint16_t *dy;      /* [B,T,H,D] contiguous: dy without its part along v */
    float *d_dot;      /* [B,H,padded] dy . v */
    float *dgate;      /* [B,H,T] by row, or NULL */
  } exclusive;

  uint16_t *y, *dq, *dk, *dv;
  sm90_stride s_y, s_q, s_k, s_v;
  float *lse;   /* [B,H,T] or NULL */
  float *log2s; /* [B,H,padded] for backward: lse in base 2, infinite from T on */
  float *delta; /* [B,H,padded] */
  float *sums;  /* [2,B,padded,Hkv,D] dk and dv from later chunks, or NULL */
};

enum sm90_F { F_NONE, F_HALF, F_FLOAT };
template <sm90_F KIND> struct sm90_block {
  static constexpr int BYTES = KIND == F_FLOAT ? 16384 : KIND == F_HALF ? 8192 : 0;
};

__device__ __forceinline__ int64_t block_at(const sm90_args &a, int b, int g, int row_block, int column_block) {
  return (((int64_t)b * a.G + g) * a.row_blocks + (row_block - a.row_block0)) * a.key_blocks + column_block;
}
__device__ __forceinline__ int window_end(const sm90_args &a) {
  return a.row_block0 + a.row_blocks;
}

/* The columns that a chunk's kernels loop over: the keys before the chunk, then its own keys. Those before are all keys
 * in place, or the live ones, gathered and padded to a whole tile. All of them belong to the document of the chunk's
 * first row. */
struct sm90_columns {
  bool gathered;
  int before; /* number of blocks of 64; even */
  __device__ __forceinline__ sm90_columns(const sm90_args &a, int b, int g) {
    const int live = a.live ? a.live[b * a.G + g] : -1;
    gathered = live >= 0, before = gathered ? (live + 127) / 128 * 2 : a.row_block0;
  }
  /* The column block with the keys of a block of the chunk's rows; below, the reverse: a result < row_block0 means keys
   * before the chunk. */
  __device__ __forceinline__ int of_rows(const sm90_args &a, int row_block) const {
    return row_block - a.row_block0 + before;
  }
  __device__ __forceinline__ int to_rows(const sm90_args &a, int block) const { return block - before + a.row_block0; }
  /* The first column of a document that begins at token d. */
  __device__ __forceinline__ int of_document(const sm90_args &a, int d) const {
    const int own = d - a.row_block0 * 64;
    return own >= 0 ? before * 64 + own : gathered ? 0 : d;
  }
  /* The key in a column; -1: none. */
  __device__ __forceinline__ int key(const sm90_args &a, int b, int g, int column) const {
    const int own = column - before * 64;
    if (own >= 0) return a.row_block0 * 64 + own;
    return gathered ? a.live_at[((int64_t)b * a.G + g) * a.padded + column] : column;
  }
};

/* The first token of row i's document; rows from T on count to the last document. */
__device__ __forceinline__ int document(const sm90_args &a, int b, int i) {
  return a.doc_start ? a.doc_start[(int64_t)b * a.T + min(i, a.T - 1)] : 0;
}
__device__ __forceinline__ bool selects(const sm90_args &a, int h) {
  return h % (a.H / a.G) == a.head;
}

/* Unit number for turn n of worker i of count: alternately upwards and downwards, so that units of falling length sum
 * up evenly. */
__device__ __forceinline__ int snake(int n, int i, int count) {
  return n * count + (n & 1 ? count - 1 - i : i);
}

template <int N> __device__ __forceinline__ void zero(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = 0;
}

/* ---- tiles: [D / 64][rows][64] ---- */

template <int D, int ROWS> __device__ __forceinline__ int tile_bytes() {
  return ROWS * D * 2;
}
template <int D, int ROWS>
__device__ __forceinline__ void load_tile(uint8_t *to, const wn_tensor_map &m, wn_mbarrier *full, int row, int h,
                                          int b) {
#pragma unroll
  for (int x = 0; x < D / 64; x++)
#pragma unroll
    for (int r = 0; r < ROWS / 64; r++)
      wn_tensor_load(to + (x * ROWS + r * 64) * 128, &m, full, x * 64, row + r * 64, h, b);
}
/* Loads the keys or values of ROWS columns. */
template <int D, int ROWS>
__device__ __forceinline__ void load_columns(uint8_t *to, const sm90_args &a, bool values, wn_mbarrier *full,
                                             const sm90_columns &columns, int column, int kv, int b) {
  if (columns.gathered && column < columns.before * 64)
    load_tile<D, ROWS>(to, values ? a.live_v : a.live_k, full, column, kv, b);
  else
    load_tile<D, ROWS>(to, values ? a.v : a.k, full, columns.to_rows(a, 0) * 64 + column, kv, b);
}
/* Columns 16 k to 16 k + 15 of a tile with ROWS rows; uses 64 or more rows from `tile` on. */
template <int ROWS> __device__ __forceinline__ uint64_t columns_of(const uint8_t *tile, int k) {
  return wn_descriptor_k(tile + k / 4 * ROWS * 128 + k % 4 * 32);
}
/* Rows 16 k to 16 k + 15 of a tile with ROWS rows. */
template <int ROWS> __device__ __forceinline__ uint64_t rows_of(const uint8_t *tile, int k) {
  return wn_descriptor_mn(tile + k * 2048, ROWS * 128);
}
/* Loads a warpgroup's operand of 64 rows and 64 columns into registers. */
__device__ __forceinline__ void load_operand(uint32_t (&a)[4][4], const uint8_t *tile, int warp, int lane) {
  const int r = warp * 16 + (lane & 15);
#pragma unroll
  for (int k = 0; k < 4; k++) wn_ldmatrix_x4(a[k], tile + r * 128 + (((k * 2 + (lane >> 4)) ^ (r & 7)) << 4));
}
template <int N> __device__ __forceinline__ void pack(uint32_t (&p)[N / 8][4], const float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) p[i / 4][i % 4] = wn_pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* ---- F ---- */

/* Loads F of a warp's 16 rows into its accumulators; f: the blocks of its 64 rows. */
template <sm90_F KIND, int N>
__device__ __forceinline__ void start(float (&s)[N], const uint8_t *f, int warp, int lane) {
  if constexpr (KIND == F_FLOAT) {
#pragma unroll
    for (int t = 0; t < N / 4; t++) {
      const float4 x = reinterpret_cast<const float4 *>(f + t / 8 * 16384)[(warp * 8 + t % 8) * 32 + lane];
      s[4 * t] = x.x, s[4 * t + 1] = x.y, s[4 * t + 2] = x.z, s[4 * t + 3] = x.w;
    }
  } else if constexpr (KIND == F_HALF) {
#pragma unroll
    for (int u = 0; u < N / 8; u++) {
      const uint4 x = reinterpret_cast<const uint4 *>(f + u / 4 * 8192)[(warp * 4 + u % 4) * 32 + lane];
      const float2 v[4] = {wn_unpack_f16(x.x), wn_unpack_f16(x.y), wn_unpack_f16(x.z), wn_unpack_f16(x.w)};
#pragma unroll
      for (int i = 0; i < 4; i++) s[8 * u + 2 * i] = v[i].x, s[8 * u + 2 * i + 1] = v[i].y;
    }
  }
}
/* Reads a block of halves or bf16 transposed: calls use(i, pair) for elements i and i + 1 of the warp's 16 keys x 64
 * rows. */
template <class USE> __device__ __forceinline__ void turned(const uint8_t *f, int warp, int lane, USE use) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const uint4 x = reinterpret_cast<const uint4 *>(f)[(u * 4 + warp) * 32 + lane];
    use(u * 8, wn_movmatrix(x.x)), use(u * 8 + 4, wn_movmatrix(x.y));
    use(u * 8 + 2, wn_movmatrix(x.z)), use(u * 8 + 6, wn_movmatrix(x.w));
  }
}

/* ---- exclusive attention ---- */

/* A sum over the four lanes that share a row. */
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
/* The value of row i's own key: a lane's pairs in every 8 columns; and its square. */
template <int D> struct sm90_own {
  uint32_t pair[D / 8];
  float size;
  __device__ __forceinline__ sm90_own(const sm90_args &a, int b, int kv, int i, int lane) {
    const uint16_t *v = a.exclusive.v + b * a.s_v.b + min(i, a.T - 1) * a.s_v.t + kv * a.s_v.h + (lane & 3) * 2;
    size = 0;
#pragma unroll
    for (int t = 0; t < D / 8; t++) {
      pair[t] = *reinterpret_cast<const uint32_t *>(v + t * 8);
      const float2 x = (*this)[t];
      size = fmaf(x.y, x.y, fmaf(x.x, x.x, size));
    }
    size = fmaxf(sum_of_row(size), 1e-30f);
  }
  __device__ __forceinline__ float2 operator[](int t) const {
    return wn_unpack_bf16(pair[t]);
  }
};
__device__ __forceinline__ float gate_of(const sm90_args &a, int h) {
  return a.exclusive.gate ? a.exclusive.gate[h] : 1.0f;
}

/* ---- taking turns between the two computing warpgroups ---- */

__device__ __forceinline__ void turn_first(int group) {
  if (group == 1) wn_barrier_arrive(2, 256);
}
__device__ __forceinline__ void turn_take(int group) {
  wn_barrier_sync(2 + group, 256);
}
__device__ __forceinline__ void turn_give(int group) {
  wn_barrier_arrive(3 - group, 256);
}

/* The warp has read the stage that `empty` guards. */
__device__ __forceinline__ void release(int lane, wn_mbarrier *empty) {
  __syncwarp();
  if (lane == 0) wn_mbarrier_arrive(empty);
}

/* Element i of an accumulator: its row among 16; below, its column. */
__device__ __forceinline__ int acc_row(int lane, int i) {
  return (lane >> 2) + (i >> 1 & 1) * 8;
}
__device__ __forceinline__ int acc_column(int lane, int i) {
  return (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
}

/* Sets pairs whose key is after their row to -infinity; row, key: the first of the warp. */
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int row, int key, int lane) {
#pragma unroll
  for (int i = 0; i < N; i++)
    if (key + acc_column(lane, i) > row + acc_row(lane, i)) s[i] = -INFINITY;
}

/* The same for pairs whose key is in an earlier document than their row; first: the starts for the lane's two rows. */
template <int N>
__device__ __forceinline__ void mask_documents(float (&s)[N], const int (&first)[2], int key, int lane) {
#pragma unroll
  for (int i = 0; i < N; i++)
    if (key + acc_column(lane, i) < first[i >> 1 & 1]) s[i] = -INFINITY;
}

} // namespace wn_cuda

#endif
