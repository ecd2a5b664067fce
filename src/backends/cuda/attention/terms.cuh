/* Terms that only some calls have, and where they act in the fused kernels (forward.cuh, backward.cuh):
 *
 *   ALiBi, soft-capping    raw logits, before F is added (map_logits); in backward a factor on gradients (map_slope)
 *   square-root mask       which pairs are seen: one bit per distance, computed once per call (root_sees)
 *   dropout of attention weights     after the exponentials and their sum: one bit per pair (kept_rows, kept_keys)
 *   learned sinks          after the loop over keys (sinks.cuh)
 *   gates                  on the output (gate_output)
 *
 * Kernels are compiled twice: without any of them (no_terms), which leaves no trace in the code, and with all of them
 * (all_terms), where each kernel checks once per tile whether the call has a term. Cost per pair: ALiBi 2 operations.
 * Soft-capping a tanh in forward and two in backward; its factor 3; and 2 D for a product in the kernel of dk, which
 * has no registers to keep it. The square-root mask one word read from L1. Dropout one Philox for four pairs, some 65
 * operations. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_TERMS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_TERMS_CUH

#include "backends/cuda/attention/args.cuh"
#include "base/rng.h"
#include "ops/term/admit.h"
#include "ops/term/alibi.h"
#include "ops/term/fade.h"
#include "ops/term/forget.h"
#include "ops/term/softcap.h"

namespace wn_cuda {

struct no_terms {
  static constexpr bool ON = false;
};
struct all_terms {
  static constexpr bool ON = true;
};

/* Returns x, but hides from the compiler that it is the same number: values derived from it are recomputed in every
 * loop iteration instead of staying in registers. */
__device__ __forceinline__ int renewed(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/* ---- maps of logits ---- */

/* The model's head for head h of the call. */
__device__ __forceinline__ wn_score_at model_head(const attention_args &a, int h) {
  return {a.map.head0 + h * a.map.head_step, 0, false, false};
}
/* ALiBi's slope of head h on raw logits; 0 without it. */
template <class T> __device__ __forceinline__ float raw_slope(const attention_args &a, int h) {
  return T::ON && a.map.alibi ? (float)alibi_head(&a.map.slopes, model_head(a, h)) / a.scale : 0.0f;
}
/* Maps one raw logit at distance x. */
__device__ __forceinline__ float map_logit(const attention_args &a, float slope, float s, int x) {
  if (slope > 0) s = fmaf(-slope, (float)x, s);
  return a.map.cap > 0 ? softcap_cap(a.map.cap, a.map.per_cap, s) : s;
}
/* Applies ALiBi and the cap to raw logits, also of a transposed tile. group: whose slots they are. */
template <class P, bool TURNED, bool SLOTS>
__device__ __forceinline__ void map_logits(const attention_args &a, float (&s)[P::CHUNKS][4], float slope, int b,
                                           int group, int i0, int j0, int warp, int lane) {
  if (!(slope > 0) && !(a.map.cap > 0)) return;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = warp * 16 + P::row(lane, P::row_of(e)), column = P::column(lane, t, e);
      const int own = i0 + a.offset + (TURNED ? column : row), j = j0 + (TURNED ? row : column);
      s[t][e] = map_logit(a, slope, s[t][e], distance<SLOTS>(a, b, group, own, SLOTS ? min(j, a.Tk - 1) : j));
    }
}
/* The factor on the gradient of a raw logit that was mapped to y; per_cap is 0 without a cap. */
__device__ __forceinline__ float map_slope(const attention_args &a, float y) {
  return softcap_slope(a.map.per_cap, y);
}

/* A head's row and one of its keys, for keyed maps. Only kernels for decoding and of stored attention weights have
 * these, compiled without and with them. */
struct keyed_place {
  int b, h, share, own, j; /* share: heads of a key-value head; own: the row's own key */
};
/* What map t is asked at a pair at distance x. */
__device__ __forceinline__ wn_score_pair_float keyed_at(const wn_score_map &t, const keyed_place &at, int x) {
  const float *key = static_cast<const float *>(t.key) + wn_score_number(&t, at.b, at.h, at.share);
  return {(float)x, key[at.own * t.s_key.t], key[at.j * t.s_key.t]};
}
__device__ __forceinline__ float keyed_forward(wn_score_id id, const wn_score_map &t, float logit,
                                               const wn_score_pair_float &at) {
  if (id == WN_SCORE_FORGET) return forget_forward_float(&t, logit, at);
  return id == WN_SCORE_WRITE ? admit_forward_float(&t, logit, at) : fade_forward_float(&t, logit, at);
}
__device__ __forceinline__ wn_score_slope_float keyed_slope(wn_score_id id, const wn_score_map &t, float y,
                                                            const wn_score_pair_float &at) {
  if (id == WN_SCORE_FORGET) return forget_slope_float(&t, y, at);
  return id == WN_SCORE_WRITE ? admit_slope_float(&t, y, at) : fade_slope_float(&t, y, at);
}

/* F of a pair in a block, in a warp's layout. */
template <class P, bool TURNED>
__device__ __forceinline__ float F_of_pair(const float *F, int t, int e, int warp, int lane) {
  const int row = warp * 16 + P::row(lane, P::row_of(e)), column = P::column(lane, t, e);
  return F[TURNED ? column * P::TILE + row : row * P::TILE + column];
}

/* ---- square-root mask ---- */

/* Computes a.root.seen. Grid: words in pieces of 256. */
static __global__ void __launch_bounds__(256) attention_root(const attention_args a) {
  const int word = blockIdx.x * 256 + threadIdx.x;
  if (word * 32 >= a.Tk) return;
  uint32_t bits = 0;
  for (int n = 0; n < 32; n++) {
    const int x = word * 32 + n;
    if (square_root_sees(a.root.buffer, a.root.density, x)) bits |= 1u << n;
  }
  a.root.seen[word] = bits;
}

/* ---- dropout ---- */

/* 0, or the factor of a kept attention weight. */
__device__ __forceinline__ float kept_factor(const attention_args &a, int b, int h, int i, int j) {
  if (!(a.dropout.limit > 0)) return 1;
  const uint64_t n = (((uint64_t)b * a.H + h) * a.Tq + i) * a.Tk + j;
  uint32_t word[4];
  wn_philox(a.dropout.seed, a.dropout.stream, n / 4, word);
  const uint32_t mine = n % 4 < 2 ? (n % 4 == 0 ? word[0] : word[1]) : (n % 4 == 2 ? word[2] : word[3]);
  return (double)mine >= a.dropout.limit ? a.dropout.factor : 0.0f;
}

/* Which of the pairs 4 n to 4 n + 3 are kept. */
__device__ __forceinline__ uint32_t kept_four(const attention_args &a, uint64_t n) {
  uint32_t word[4], kept = 0;
  wn_philox(a.dropout.seed, a.dropout.stream, n, word);
#pragma unroll
  for (int k = 0; k < 4; k++) kept |= (word[k] >= a.dropout.least ? 1u : 0u) << k;
  return kept;
}
__device__ __forceinline__ uint64_t first_pair(const attention_args &a, int b, int h, int i, int j) {
  return (((uint64_t)b * a.H + h) * a.Tq + min(i, a.Tq - 1)) * a.Tk + j;
}
/* Which attention weights of a tile dropout keeps: bit 4 t + e. The lanes of a row share its random numbers. */
template <class P>
__device__ __forceinline__ uint32_t kept_rows(const attention_args &a, int b, int h, int i0, int j0, int warp,
                                              int lane) {
  if (!(a.dropout.limit > 0)) return ~0u;
  uint32_t kept = 0;
#pragma unroll
  for (int r = 0; r < P::ROWS; r++) {
    const uint64_t n = first_pair(a, b, h, i0 + warp * 16 + P::row(lane, r), j0);
    const int cut = (int)(n % 4);
    uint64_t all = 0; /* bits of the row's columns, preceded by those of `cut` columns before them */
#pragma unroll 1
    for (int four = lane % P::LANES; four < P::TILE / 4; four += P::LANES)
      all |= (uint64_t)kept_four(a, n / 4 + four) << (4 * four);
#pragma unroll
    for (int by = 1; by < P::LANES; by *= 2) all |= __shfl_xor_sync(~0u, all, by);
    if (cut) all = all >> cut | (uint64_t)kept_four(a, n / 4 + P::TILE / 4) << (P::TILE - cut);
#pragma unroll
    for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
      for (int m = 0; m < P::EACH; m++) {
        const int e = P::element_of(r, m);
        kept |= (uint32_t)(all >> P::column(lane, t, e) & 1) << (4 * t + e);
      }
  }
  return kept;
}
/* The same for a transposed tile. Its lanes of one row belong to different rows of the call, so the lanes of a column
 * share the random numbers of its 16 keys. */
template <class P>
__device__ __forceinline__ uint32_t kept_keys(const attention_args &a, int b, int h, int i0, int j0, int warp,
                                              int lane) {
  if (!(a.dropout.limit > 0)) return ~0u;
  const int part = lane / P::LANES, four = part % 4; /* four lanes for each column of a chunk that a lane has */
  uint32_t kept = 0;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++) {
    const uint64_t n = first_pair(a, b, h, i0 + P::column(lane, t, part / 4), j0 + warp * 16);
    uint32_t all = kept_four(a, n / 4 + four) << (4 * four);
    all |= __shfl_xor_sync(~0u, all, P::LANES);
    all |= __shfl_xor_sync(~0u, all, 2 * P::LANES);
    const int cut = (int)(n % 4);
    if (cut) all = all >> cut | kept_four(a, n / 4 + 4) << (16 - cut);
    const uint32_t other = P::EACH == 2 ? __shfl_xor_sync(~0u, all, 4 * P::LANES % 32) : 0;
#pragma unroll
    for (int m = 0; m < P::EACH; m++) {
      const uint32_t of_column = part / 4 == m ? all : other;
#pragma unroll
      for (int r = 0; r < P::ROWS; r++) kept |= (of_column >> P::row(lane, r) & 1) << (4 * t + P::element_of(r, m));
    }
  }
  return kept;
}
/* Sets dropped attention weights, or their gradients, to 0 and multiplies the others by `factor`. */
template <class P>
__device__ __forceinline__ void drop(const attention_args &a, float (&s)[P::CHUNKS][4], uint32_t kept, float factor) {
  if (!(a.dropout.limit > 0)) return;
#pragma unroll
  for (int t = 0; t < P::CHUNKS; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[t][e] = kept >> (4 * t + e) & 1 ? factor * s[t][e] : 0.0f;
}

/* ---- gates ---- */

/* Applies gates to rows of y; `ungated` gets the rows before. */
template <class P>
__device__ __forceinline__ void gate_output(const attention_args &a, float (&o)[P::OUT][4], int b, int h, int i0,
                                            int i1, int warp, int lane) {
  if (!a.gate.on) return;
#pragma unroll
  for (int t = 0; t < P::OUT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + warp * 16 + P::row(lane, P::row_of(e)), d = P::out_column(lane, t, e);
      if (i >= i1 || d >= a.D) continue;
      if (a.gate.ungated) a.gate.ungated[(((int64_t)b * a.Tq + i) * a.H + h) * a.D + d] = o[t][e];
      o[t][e] *= a.gate.g[b * a.gate.s_g.b + i * a.gate.s_g.t + h * a.gate.s_g.h + (a.gate.elementwise ? d : 0)];
    }
}

} // namespace wn_cuda

#endif
