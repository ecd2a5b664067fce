/* Attention with stored attention weights: arguments of the kernels for rows and columns, and the terms that act on one
 * logit (ops/attention.h). A chunk of rows has matrices of floats in scratch, [B,heads,R,columns]. Each step is a
 * kernel over them: products (matrices.cuh), rows (rows.cuh, rows_back.cuh), columns of a selection (columns.cuh). It
 * serves every term and any head size. It is bound by memory: 4 bytes per pair, head and step, where the fused kernels
 * (forward.cuh, backward.cuh) keep a pair in registers. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_STORED_CUH
#define WN_BACKENDS_CUDA_ATTENTION_STORED_CUH

#include "backends/cuda/attention/call.cuh"
#include "backends/cuda/attention/terms.cuh"

namespace wn_cuda {

enum { STORED_TILE = 64, STORED_THREADS = 128 };
enum number_type { FLOATS, BF16S, HALVES };
struct score_map {
  int kind;
  double number[2];
};

struct stored_args {
  attention_args a; /* the call, and the chunk: row0 and rows */
  int R;            /* rows of a matrix: of the largest chunk */
  int ld;           /* columns of matrices with one column per key: Tk rounded up to tiles */
  int type;         /* of rows */
  int value_type;   /* of k and v: the same as type, or HALVES */
  bool open;
  const int32_t *key_count; /* [B] or NULL */

  float *raw; /* [B,H,R,ld] q . k; aliases W, unless score maps need the products again */
  float *W;   /* [B,H,R,ld] logits, then attention weights */
  float *dA;  /* [B,H,R,ld] dy . v, then the gradient of logits, then of q . k */
  float *F;   /* [B,G,R,ld] */
  float *S;   /* [B,G,R,ld] products for the selection, then the selecting logits, then their gradient */
  float *run; /* [B,G,ld] F before the chunk; NULL: f_in */
  float *run_out, *back;
  float *inspect; /* [B,G,Tq,Tk] F for the caller, or NULL */
  float *out;     /* [B,R,H,D] */
  float *sum_dv;  /* [B,Tk,Hkv,D] */
  void *dy;       /* [B,R,H,D] in the rows' type: the gradient of the weighted sum of values */

  struct {
    int P, ld;
    float *row; /* [B,H,R,ld] q . p, by distance; later its gradient */
  } relative;
  struct {
    int n, farthest;
    double range;       /* log(farthest / number of distances that have their own bucket) */
    const float *table; /* [n,stride] */
    int64_t stride;
    float *parts; /* [B,H,R,n] */
  } bias;
  int maps;
  score_map map[4];
  struct {
    int n, ld;
    float *row, *back; /* [B,H,R,ld] like W and dA */
  } sinks;
  struct {
    bool on;
    double tau;
    const uint8_t *control; /* [B,Tk], or by slots; or NULL */
    int32_t *count;         /* [B,H,Tq] or NULL */
  } threshold;
  float *attention_sums; /* [B,P,slot_stride] or NULL */
};

__device__ __forceinline__ float number_at(int type, const void *x, int64_t i) {
  if (type == FLOATS) return static_cast<const float *>(x)[i];
  const uint16_t bits = static_cast<const uint16_t *>(x)[i];
  return type == BF16S ? __uint_as_float((uint32_t)bits << 16) : wn_unpack_f16(bits).x;
}
__device__ __forceinline__ void number_set(int type, void *x, int64_t i, float y) {
  if (type == FLOATS)
    static_cast<float *>(x)[i] = y;
  else
    static_cast<uint16_t *>(x)[i] = (uint16_t)wn_pack_bf16(y, 0);
}

/* Row i of the chunk for head h of `heads`, in a matrix of ld columns. */
__device__ __forceinline__ int64_t matrix_row(const stored_args &s, int b, int heads, int h, int i, int ld) {
  return (((int64_t)b * heads + h) * s.R + i) * ld;
}
/* One past the last column of row i that a product reads: that of its tile's last row, rounded up to tiles. */
__device__ __forceinline__ int columns_end(const stored_args &s, int i) {
  if (s.open) return s.ld;
  const int last = min(i / STORED_TILE * STORED_TILE + STORED_TILE, s.a.rows) - 1 + s.a.row0 + s.a.offset;
  return (last / STORED_TILE + 1) * STORED_TILE;
}

/* A row: its position, and the range of keys that it may see. */
struct row_place {
  int i, position, first, last; /* i: in the call */
  __device__ __forceinline__ row_place(const stored_args &s, int b, int row) {
    i = s.a.row0 + row;
    position = s.open ? i : i + s.a.offset;
    first = s.open ? 0 : document(s.a, b, position);
    last = !s.open ? position : (s.key_count ? s.key_count[b] : s.a.Tk) - 1;
  }
};

/* ---- the terms of one logit ---- */

/* The keep rules, without the span mask. */
__device__ __forceinline__ bool stored_sees(const stored_args &s, int b, int kv, const row_place &row, int j, int x) {
  return s.open || (sees<no_terms, true>(s.a, b, kv, row.position, row.first, j) && root_sees<true>(s.a, x));
}

/* wn_position_bucket, with `n` buckets for x >= 0. */
__device__ __forceinline__ int bucket_ahead(const stored_args &s, int x, int n) {
  const int exact = n / 2;
  if (x < exact) return x > 0 ? x : 0;
  if (x >= s.bias.farthest) return n - 1;
  const double part = log((double)x / (double)exact) / s.bias.range;
  const int at = exact + (int)(part * (double)(n - exact) * (1 + 1e-12) + 1e-12);
  return min(at, n - 1);
}
__device__ __forceinline__ int bucket_of(const stored_args &s, int x) {
  if (!s.open) return bucket_ahead(s, x, s.bias.n);
  const int half = s.bias.n / 2;
  return x < 0 ? half + bucket_ahead(s, -x, half) : bucket_ahead(s, x, half);
}

/* What all logits of a head share. */
struct head_terms {
  const float *table; /* biases by bucket */
  float slope;        /* of ALiBi */
  __device__ __forceinline__ head_terms(const stored_args &s, int h) : table(nullptr), slope(0) {
    if (s.bias.n > 0) table = s.bias.table + s.a.map.head0 + h * s.a.map.head_step;
    slope = alibi_slope(s.a, h);
  }
};
/* The logit for a product q . k at distance x. by_distance: the row of q . p. */
__device__ __forceinline__ float stored_logit(const stored_args &s, const head_terms &head, float product,
                                              const float *by_distance, int x) {
  if (by_distance && x < s.relative.P) product += by_distance[x];
  float logit = s.a.scale * product;
  if (head.table) logit += head.table[bucket_of(s, x) * s.bias.stride];
  for (int n = 0; n < s.maps; n++) {
    if (s.map[n].kind == SCORE_ALIBI) {
      logit -= head.slope * (float)x;
    } else {
      const float cap = (float)s.map[n].number[0];
      logit = cap * tanhf(logit / cap);
    }
  }
  return logit;
}
/* The factor of the score maps on the gradient, from the mapped logit y; only the last map has one. */
__device__ __forceinline__ float logit_slope(const stored_args &s, float y) {
  if (s.maps == 0 || s.map[s.maps - 1].kind != SCORE_SOFTCAP) return 1;
  const float part = y / (float)s.map[s.maps - 1].number[0];
  return 1 - part * part;
}
__device__ __forceinline__ int stored_distance(const stored_args &s, int b, int kv, const row_place &row, int j) {
  return s.open ? row.i - j : distance<true>(s.a, b, kv, row.position, j);
}

__device__ __forceinline__ float block_max(float x) {
  WN_SHARED(float, parts, [32]);
  const int lane = threadIdx.x % 32;
  x = wn_warp_max(x);
  __syncthreads(); /* parts may still be read */
  if (lane == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return wn_warp_max(lane < (int)blockDim.x / 32 ? parts[lane] : -INFINITY);
}

} // namespace wn_cuda

#endif
