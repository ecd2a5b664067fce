/* Arguments of the attention kernels (from ops/attention.h), and the rules for which keys a row sees and may select.
 * Logits are kept in "raw" units, those of q . k; F is stored as -F / scale, so that it can be the initial value of the
 * product's accumulator. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_ARGS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_ARGS_CUH

#include <stdint.h>
#include "backends/cuda/device.cuh"
#include "ops/score.h"
#include "ops/term/square_root.h"

namespace wn_cuda {

struct stride {
  int64_t b, t, h;
};

struct attention_args {
  int B, Tq, Tk, H, Hkv, D, G;
  int offset;           /* Tk - Tq: row i has position i + offset */
  float scale, to_log2; /* from raw units to a logit, and to a logit in base 2 */
  bool vectors;         /* rows may be read in vectors of 16 bytes */

  const void *q, *k, *v;
  void *y;
  stride s_q, s_k, s_v, s_y; /* [B,Tq,H,D], [B,Tk,Hkv,D] twice, [B,Tq,H,D] */
  float *lse;                /* [B,H,Tq] or NULL */

  int window, strided;       /* 0: off */
  const int32_t *doc_start;  /* [B,Tk] or NULL */
  const int32_t *evicted_at; /* [B,P,Tk] or NULL */
  const int32_t *at;         /* [B,P,Tk] positions of slots, or NULL: slot j holds position j. Forward only */
  int slot_groups;
  int64_t slot_stride;

  struct {
    bool on, dynamic, exclude_self;
    float limit, ramp;
    const float *z; /* [H], or [B,Tq,H] */
    stride s_z;
    float *dz; /* [B,H,Tq] by row, to be reduced or copied later; NULL: not wanted */
  } span;

  struct {
    bool on;
    const float *gate; /* [H] or NULL */
    float *dot;        /* [B,H,Tq] or NULL */
    float *own;        /* [B,Tq,Hkv,D] the gradient of a row's own value, through the projection */
    float *dgate;      /* [B,H,Tq] by row */
  } exclusive;

  struct {
    bool on, relu, protect_first, protect_self, shift;
    bool joins;        /* its gradient is added to that of head `head` of each group (not in the bilinear form) */
    int head;          /* the selecting head in a group of H / G */
    const void *q, *k; /* what selects: [B,Tq,G,D], [B,Tk,G,D] with strides */
    stride s_q, s_k;
    const float *strength; /* [G] or NULL */
    const float *f_in;     /* [B,G,f_stride] or NULL */
    float *f_out;          /* likewise; may alias f_in */
    int64_t f_stride;
    float tau;        /* of L_mem */
    float *M;         /* [B,G,Tq] or NULL */
    const float *dM;  /* [B,G,Tq] or NULL */
    float *dstrength; /* [B,G,key tiles] parts, added to */
  } sel;

  /* Terms of calls that use kernels with terms (terms.cuh). Only those kernels use them, except `gate`, `dropout` and
   * `root`, which the kernels of stored attention weights read from here too. */
  struct {
    float cap, per_cap; /* soft-capping in raw units: cap / scale, and its inverse; 0: off */
    bool alibi;         /* and its map: */
    wn_score_map slopes;
    int head0, head_step; /* head h of the call is head head0 + h head_step of the model */
  } map;
  struct {
    int n;
    const float *k, *v; /* [Hkv,n,D] */
    float *parts;       /* [2,Hkv,n,D,parts] partial sums of dk and dv */
  } sinks;
  struct {
    bool on, elementwise;
    const float *g;
    stride s_g;
    float *dg, *ungated; /* with the strides of g; [B,Tq,H,D]; or NULL */
  } gate;
  struct {
    double limit;   /* random words below it drop; 0: off */
    uint32_t least; /* the smallest word that keeps */
    float factor;   /* of kept attention weights */
    uint64_t seed, stream;
  } dropout;
  struct {
    bool on;
    int64_t buffer;
    double density;
    uint32_t *seen; /* [Tk / 32] one bit per distance: is it seen? NULL if positions are not those of slots */
  } root;

  /* The current chunk of rows: whole tiles, starting at a tile. */
  int row0, rows; /* rows row0 to row0 + rows - 1 */
  int row_tiles, key_tiles;
  float *F;                   /* [B,G,row_tiles,key_tiles] blocks [TILE rows, TILE keys] of -F / scale */
  void *X;                    /* the same in P::block: first dF, then the gradient of the selecting logits */
  const float *carry_in;      /* [B,G,key_tiles * TILE] F before row0; NULL: f_in */
  float *carry_out;           /* F after the chunk, or NULL */
  float *back;                /* [B,G,key_tiles * TILE] dF summed over the rows after the chunk */
  bool last_rows, first_rows; /* the chunk has the call's last rows, or its first */

  const void *dy;
  stride s_dy; /* strides of y, or of mixed */
  void *mixed; /* [B,Tq,H,D] contiguous, in the rows' type: the gradient of the weighted sum of values, if exclusive
                * attention or gates change it afterwards */
  void *dq, *dk, *dv;
  float *delta; /* [B,H,Tq] */
  float *sums;  /* [2,B,Tk,Hkv,D] dk and dv of the chunks processed before; NULL if there is one chunk */
  int dk_from;
};

/* One past the chunk's last row. */
__device__ __forceinline__ int rows_end(const attention_args &a) {
  return a.row0 + a.rows;
}

__device__ __forceinline__ int document(const attention_args &a, int b, int position) {
  return a.doc_start ? a.doc_start[(int64_t)b * a.Tk + (position < a.Tk ? position : a.Tk - 1)] : 0;
}

/* Where the slots of a key-value head, or of a selection, begin. */
__device__ __forceinline__ int64_t slot_row(const attention_args &a, int b, int group) {
  return ((int64_t)b * a.slot_groups + (a.slot_groups > 1 ? group : 0)) * a.slot_stride;
}

/* The distance of key j from the row whose own key is in slot `own`. SLOTS: the call may have positions of slots.
 * Backward never has; it needs the registers for other things. */
template <bool SLOTS> __device__ __forceinline__ int distance(const attention_args &a, int b, int kv, int own, int j) {
  if (!SLOTS || !a.at) return own - j;
  const int32_t *at = a.at + slot_row(a, b, kv);
  return at[min(own, a.Tk - 1)] - at[j]; /* rows after the last are padding */
}

/* Does the square-root mask let a row see the key at distance x? */
template <bool SLOTS> __device__ __forceinline__ bool root_sees(const attention_args &a, int x) {
  if (!a.root.on || x < a.root.buffer) return true;
  if (SLOTS && !a.root.seen) return square_root_sees(a.root.buffer, a.root.density, x);
  return a.root.seen[x / 32] >> (x % 32) & 1;
}

/* Does the row at `position`, whose document begins at `first`, see key j? Ignores spans. T: terms.cuh. */
template <class T, bool SLOTS>
__device__ __forceinline__ bool sees(const attention_args &a, int b, int kv, int position, int first, int j) {
  if (j > position || j < first) return false;
  const int x = distance<SLOTS>(a, b, kv, position, j);
  if (a.window > 0 && x >= a.window) return false;
  if (a.strided > 0 && x >= a.strided && x % a.strided != 0) return false;
  if (a.span.exclude_self && x == 0) return false;
  if constexpr (T::ON)
    if (!root_sees<SLOTS>(a, x)) return false;
  if (!a.evicted_at) return true;
  const int64_t row = slot_row(a, b, kv);
  return (SLOTS && a.at ? a.at[row + min(position, a.Tk - 1)] : position) < a.evicted_at[row + j];
}
/* Are there rules besides causality? */
template <class T> __device__ __forceinline__ bool has_rules(const attention_args &a) {
  return (T::ON && a.root.on) || a.doc_start || a.evicted_at || a.window > 0 || a.strided > 0 || a.span.on;
}

__device__ __forceinline__ bool may_select(const attention_args &a, int b, int g, int position, int first, int j) {
  if (j < first || j > position) return false;
  if (a.sel.protect_self && j == position) return false;
  return !(a.sel.protect_first && (a.at ? a.at[slot_row(a, b, g) + j] == 0 : j == first));
}

__device__ __forceinline__ float span_ratio(const attention_args &a, int b, int h, int i) {
  return a.span.z[a.span.dynamic ? b * a.span.s_z.b + i * a.span.s_z.t + h * a.span.s_z.h : h * a.span.s_z.h];
}
/* The span mask at distance x; above 0 if the key is seen. */
__device__ __forceinline__ float span_factor(const attention_args &a, float z, int x) {
  return fminf(fmaxf((a.span.ramp + a.span.limit * z - (float)x) / a.span.ramp, 0.0f), 1.0f);
}

/* Is distance x the end of the ramp that counts in the gradient of z (ops/attention.h)? */
__device__ __forceinline__ bool span_edge(const attention_args &a, float z, int x) {
  return fmaf(a.span.limit, z, z < 1 ? a.span.ramp : 0.0f) == (float)x;
}

/* Cuts a row's gradient of z like WN_SPAN_CUT (ops/attention.h), and the exponent there like WN_SPAN_EXPONENT. */
#define SPAN_EXPONENT 64.0f
__device__ __forceinline__ float span_cut(float dz) {
  const float most = 0x1p40f;
  return dz > most ? most : dz < -most ? -most : dz;
}

/* The number of the block for a row tile of the chunk and a key tile. */
__device__ __forceinline__ int64_t block_at(const attention_args &a, int b, int g, int row_tile, int key_tile) {
  return (((int64_t)b * a.G + g) * a.row_tiles + row_tile) * a.key_tiles + key_tile;
}

/* The first document start of rows i0 to i1 - 1; 0 without documents. */
__device__ __forceinline__ int first_document(const attention_args &a, int b, int i0, int i1) {
  if (!a.doc_start) return 0;
  int start = document(a, b, i0 + a.offset);
  for (int i = i0 + 1; i < i1; i++) start = min(start, document(a, b, i + a.offset));
  return start;
}

/* The key tiles that rows i0 to i1 - 1 may see, from `first` to `last`. */
struct tiles {
  int first, last;
};
template <int TILE> __device__ __forceinline__ tiles seen_tiles(const attention_args &a, int b, int i0, int i1) {
  int low = 0;
  if (a.at) return {0, (i1 - 1 + a.offset) / TILE}; /* slots may be in any order */
  if (a.window > 0) low = max(0, i0 + a.offset - a.window + 1);
  if (a.span.on) low = max(low, (int)fmaxf((float)(i0 + a.offset) - a.span.limit - a.span.ramp, 0.0f));
  low = max(low, first_document(a, b, i0, i1));
  return {low / TILE, (i1 - 1 + a.offset) / TILE};
}

/* Sets a tile's sums to 0. */
template <int N> __device__ __forceinline__ void clear(float (&x)[N][4]) {
#pragma unroll
  for (int t = 0; t < N; t++) x[t][0] = x[t][1] = x[t][2] = x[t][3] = 0;
}

/* ---- copying rows of the call's type to shared memory ---- */

/* Copies TILE rows of `from` from row0 on (D of WIDTH columns, row stride `t`) to rows with stride LD; zeros from row
 * `end` and from column D on. Completes with the caller's wn_copy_wait and barrier. */
template <class P>
__device__ void stage(typename P::element *to, const void *from, int64_t t, int row0, int end,
                      const attention_args &a) {
  typedef typename P::element element;
  const element *rows = static_cast<const element *>(from);
  if (a.vectors) {
    constexpr int VECTOR = 16 / sizeof(element), ROW = P::WIDTH / VECTOR;
#pragma unroll 2 /* not more: the registers for addresses would cost more than they save */
    for (int x = threadIdx.x; x < P::TILE * ROW; x += P::THREADS) {
      const int r = x / ROW, c = x % ROW * VECTOR;
      const bool there = row0 + r < end && c < a.D;
      wn_copy_async<16>(to + r * P::LD + c, rows + (there ? (row0 + r) * t + c : 0), there);
    }
  } else {
#pragma unroll 1
    for (int x = threadIdx.x; x < P::TILE * P::WIDTH; x += P::THREADS) {
      const int r = x / P::WIDTH, c = x % P::WIDTH;
      to[r * P::LD + c] = row0 + r < end && c < a.D ? rows[(row0 + r) * t + c] : element(0);
    }
  }
}

} // namespace wn_cuda

#endif
