/* Attention with stored attention weights: arguments of the kernels for rows and columns, and the terms that act on one
 * logit (ops/attention.h). A chunk of rows has matrices of floats in scratch, [B,heads,R,columns]. Each step is a
 * kernel over them: products (matrices.cuh), rows (rows.cuh, rows_back.cuh), columns of a selection (columns.cuh). It
 * serves every term and any head size. It is bound by memory: 4 bytes per pair, head and step, where the fused kernels
 * (forward.cuh, backward.cuh) keep a pair in registers. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_STORED_CUH
#define WN_BACKENDS_CUDA_ATTENTION_STORED_CUH

#include "backends/cuda/attention/call.cuh"
#include "backends/cuda/attention/terms.cuh"
#include "ops/term/buckets.h"

namespace wn_cuda {

enum { STORED_TILE = 64, STORED_THREADS = 128 };
enum number_type { FLOATS, BF16S, HALVES };

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
  float *edge;    /* [B,H,R] the logit, later W/m, of the key at the end of a span's ramp that counts in dz; or NULL */
  void *dy;       /* [B,R,H,D] in the rows' type: the gradient of the weighted sum of values */

  struct {
    int P, ld;
    float *row; /* [B,H,R,ld] q . p, by distance; later its gradient */
  } relative;
  int maps;
  wn_score_map map[WN_SCORE_MAPS_MAX]; /* kind is the host's */
  wn_score_id id[WN_SCORE_MAPS_MAX];
  float *numbers; /* [maps,B,H,ld] the gradients of the keys' numbers of keyed maps, by head; NULL: not wanted */
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

/* What all logits of a head share. */
struct head_terms {
  wn_score_at at;
  double slope; /* ALiBi's; other maps have nothing that heads share */
  __device__ __forceinline__ head_terms(const stored_args &s, int h) : at(model_head(s.a, h)), slope(0) {
    at.open = s.open;
    for (int n = 0; n < s.maps; n++)
      if (s.id[n] == WN_SCORE_ALIBI) slope = alibi_head(&s.map[n], at);
  }
};
/* The logit for a product q . k at distance x. by_distance: the row of q . p. The product has other biases already. */
template <bool KEYED>
__device__ __forceinline__ float stored_logit(const stored_args &s, const head_terms &head, float product,
                                              const float *by_distance, int x, const keyed_place &pair) {
  if (by_distance && x < s.relative.P) product += by_distance[x];
  float logit = s.a.scale * product;
  wn_score_at at = head.at;
  at.x = x;
  for (int n = 0; n < s.maps; n++) {
    if (s.id[n] == WN_SCORE_BUCKETS) logit += (float)buckets_value(&s.map[n], 0, at);
    if (s.id[n] == WN_SCORE_ALIBI) logit += (float)alibi_value(&s.map[n], head.slope, at);
    if constexpr (KEYED)
      if (is_keyed(s.id[n])) logit = keyed_forward(s.id[n], s.map[n], logit, keyed_at(s.map[n], pair, x));
    if (s.id[n] == WN_SCORE_SOFTCAP) logit = softcap_forward_float(&s.map[n], logit);
  }
  return logit;
}
__device__ __forceinline__ bool is_curved(const stored_args &s) {
  return s.maps > 0 && s.id[s.maps - 1] == WN_SCORE_SOFTCAP;
}
__device__ __forceinline__ int stored_distance(const stored_args &s, int b, int kv, const row_place &row, int j) {
  return s.open ? row.i - j : distance<true>(s.a, b, kv, row.position, j);
}

/* From the gradient d of a pair's mapped logit to that of the logit. With keyed maps, adds what the numbers of the
 * row's own key get to row[n], and of the key to key[n]. */
template <bool KEYED>
__device__ __forceinline__ float stored_logit_back(const stored_args &s, const head_terms &head, float product,
                                                   const float *by_distance, int x, const keyed_place &pair, float d,
                                                   float (&row)[WN_SCORE_MAPS_MAX], float (&key)[WN_SCORE_MAPS_MAX]) {
  const bool bends = s.maps > 0 && (is_curved(s) || (KEYED && s.id[s.maps - 1] == WN_SCORE_FADE));
  const float y = bends ? stored_logit<KEYED>(s, head, product, by_distance, x, pair) : 0.0f;
  if (is_curved(s)) d *= softcap_backward_float(&s.map[s.maps - 1], y);
  if constexpr (KEYED) {
#pragma unroll
    for (int n = WN_SCORE_MAPS_MAX - 1; n >= 0; n--) { /* only the last may depend on y */
      if (n >= s.maps || !is_keyed(s.id[n])) continue;
      const wn_score_slope_float slope = keyed_slope(s.id[n], s.map[n], y, keyed_at(s.map[n], pair, x));
      row[n] = fmaf(d, slope.row, row[n]), key[n] = fmaf(d, slope.key, key[n]);
      d *= slope.logit;
    }
  }
  return d;
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
