/* Dead keys (docs/selective-attention.md). Before each chunk of rows, the keys that its rows or later ones may still
 * see ("live" keys) are gathered; the chunk's kernels then loop over these "columns", followed by the chunk's own keys.
 *
 * F of a key only grows. Let max|q| be the largest norm of a query of the rows to come, and low a lower bound of the
 * log of a row's sum of exponentials. Key j is dead from a row on if, for every head that shares its selection,
 *
 *   scale max|q| |k_j| - min low - F[j] < log(share / Tk)
 *
 * low: the logit of the row's own key, which no earlier row selects (minus the F that the call starts with); in
 * backward forward's lse. All dead keys of a row together weigh less than `share` of its sum.
 *
 *   live_bounds  once: norms of keys; max|q| and min low of blocks of 64 rows. Reads the rows of q and k once
 *   live_mark    one bit per key; number of live keys in each 256
 *   live_gather  their indices in order, and copies of their keys and values
 *
 * The host learns none of this: the number of live keys is in device memory, and kernels read it there. If more than
 * three quarters are live, nothing is copied, and the columns are all keys in place. Order and choice depend only on
 * the call. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_LIVE_CUH
#define WN_BACKENDS_CUDA_ATTENTION_LIVE_CUH

#include <math.h>
#include <stdint.h>
#include "backends/cuda/attention/call.cuh"

namespace wn_cuda {

/* Results for one chunk. */
struct live_found {
  uint32_t *marks; /* [B,G,tiles,8] */
  int *counts;     /* [B,G,tiles] live keys in each 256 */
  /* Inputs of the chunk's kernels. */
  int *count;  /* [B,G] number of gathered keys; -1: all keys before the chunk, in place */
  int32_t *at; /* [B,G,padded] their indices; -1 after the last, up to a whole tile */
  void *to[2]; /* [B,padded,Hkv,D] their keys and values; zeros after them */
};

struct live_args {
  int B, Tq, Tk, H, Hkv, D, G;
  const void *q, *k, *v;
  wn_stride s_q, s_k, s_v;
  const int32_t *doc_start; /* [B,Tk] or NULL */
  const float *lse;         /* [B,H,Tq], in backward */
  const float *f_in;        /* [B,G,f_stride] or NULL */
  const float *strength;    /* [G] or NULL */
  int64_t f_stride;
  float scale, limit; /* log(share / Tk) */
  float least;        /* L_mem: a key stays live while its F is below */
  bool vectors;       /* rows of k and v may be read in vectors of 16 bytes */
  int lanes;          /* lanes that copy one row */

  int before;         /* number of keys before the chunk's rows */
  const float *carry; /* [B,G,carry_stride] F / scale at the chunk's first row */
  int64_t carry_stride;

  int row_blocks, first_block; /* number of blocks of 64 rows; the first that needs bounds */
  int norm_end;                /* one past the last key that may be needed */
  float *most, *low;           /* [B,H,row_blocks] */
  float *norms;                /* [B,Hkv,Tk] */
  live_found found;
  int tiles;
  int padded, whole; /* keys in a tile */
};

template <class T> __device__ __forceinline__ float live_get(const void *x, int64_t i) {
  if (sizeof(T) == 2) return __uint_as_float((uint32_t) static_cast<const uint16_t *>(x)[i] << 16);
  return static_cast<const float *>(x)[i];
}
/* The dot product of two rows of D, in every lane. */
template <class T>
__device__ __forceinline__ float live_dot(const void *x, int64_t i, const void *y, int64_t j, int D, int lane) {
  float sum = 0;
  for (int d = lane; d < D; d += 32) sum = fmaf(live_get<T>(x, i + d), live_get<T>(y, j + d), sum);
  return wn_warp_sum(sum);
}

enum { LIVE_KEYS = 256, LIVE_ROWS = 64, LIVE_HEADS = 64 };

/* Grid: blocks of 64 rows or keys, heads followed by key-value heads, sequences. */
template <class T> __global__ void __launch_bounds__(256) live_bounds(const live_args a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, b = blockIdx.z, block = blockIdx.x;
  if (blockIdx.y >= (unsigned)a.H) {
    const int kv = blockIdx.y - a.H;
    for (int r = warp; r < LIVE_ROWS; r += 8) {
      const int j = block * LIVE_ROWS + r;
      if (j >= a.norm_end) break;
      const int64_t at = b * a.s_k.b + j * a.s_k.t + kv * a.s_k.h;
      const float x = live_dot<T>(a.k, at, a.k, at, a.D, lane);
      if (lane == 0) a.norms[((int64_t)b * a.Hkv + kv) * a.Tk + j] = sqrtf(x);
    }
    return;
  }
  const int h = blockIdx.y, kv = h / (a.H / a.Hkv), g = h / (a.H / a.G), offset = a.Tk - a.Tq;
  if (block < a.first_block || block >= a.row_blocks) return;
  float most = 0, low = INFINITY;
  for (int r = warp; r < LIVE_ROWS; r += 8) {
    const int i = block * LIVE_ROWS + r;
    if (i >= a.Tq) break;
    const int64_t at = b * a.s_q.b + i * a.s_q.t + h * a.s_q.h;
    const float norm = a.scale * sqrtf(live_dot<T>(a.q, at, a.q, at, a.D, lane));
    float least;
    if (a.lse) {
      least = a.lse[((int64_t)b * a.H + h) * a.Tq + i];
    } else {
      const int64_t own = b * a.s_k.b + (i + offset) * a.s_k.t + kv * a.s_k.h;
      least = a.scale * live_dot<T>(a.q, at, a.k, own, a.D, lane);
      if (a.f_in) least -= a.f_in[((int64_t)b * a.G + g) * a.f_stride + i + offset];
    }
    const bool known = isfinite(norm) && isfinite(least);
    most = known ? fmaxf(most, norm) : INFINITY, low = known ? fminf(low, least) : -INFINITY;
  }
  WN_SHARED(float, found, [2][8]);
  if (lane == 0) found[0][warp] = most, found[1][warp] = low;
  __syncthreads();
  if (threadIdx.x) return;
  for (int w = 1; w < 8; w++) most = fmaxf(most, found[0][w]), low = fminf(low, found[1][w]);
  const int64_t to = ((int64_t)b * a.H + h) * a.row_blocks + block;
  a.most[to] = most, a.low[to] = low;
}

/* The first key before the chunk that the chunk's first row sees: where its document begins. */
__device__ __forceinline__ int live_document(const live_args &a, int b) {
  return a.doc_start ? min(a.doc_start[(int64_t)b * a.Tk + a.before], a.before) : 0;
}

/* Grid: tiles of 256 keys before the chunk, groups, sequences. */
template <class T> __global__ void __launch_bounds__(256) live_mark(const live_args a) {
  WN_SHARED(float, bounds, [2][LIVE_HEADS]);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tile = blockIdx.x, g = blockIdx.y, b = blockIdx.z;
  const int share = a.H / a.G, j = tile * LIVE_KEYS + threadIdx.x, window = (a.before - (a.Tk - a.Tq)) / LIVE_ROWS;
  const bool there = j < a.before && j >= live_document(a, b);
  const float F = there ? a.scale * a.carry[((int64_t)b * a.G + g) * a.carry_stride + j] : 0.0f;
  bool live = there && (F < a.least || (a.strength && !(a.strength[g] >= 0)));
  for (int h0 = 0; h0 < share; h0 += LIVE_HEADS) {
    const int heads = min(LIVE_HEADS, share - h0);
    for (int n = warp; n < heads; n += 8) {
      const int64_t row = ((int64_t)b * a.H + g * share + h0 + n) * a.row_blocks;
      float most = 0, low = INFINITY;
      for (int x = window + lane; x < a.row_blocks; x += 32)
        most = fmaxf(most, a.most[row + x]), low = fminf(low, a.low[row + x]);
      most = wn_warp_max(most), low = -wn_warp_max(-low);
      if (lane == 0) bounds[0][n] = most, bounds[1][n] = low;
    }
    __syncthreads();
    for (int n = 0; there && !live && n < heads; n++) {
      const int kv = (g * share + h0 + n) / (a.H / a.Hkv);
      const float norm = a.norms[((int64_t)b * a.Hkv + kv) * a.Tk + j];
      live = !(bounds[0][n] * norm - bounds[1][n] - F < a.limit); /* NaN counts as live */
    }
    __syncthreads();
  }
  const int64_t at = ((int64_t)b * a.G + g) * a.tiles + tile;
  const uint32_t marks = __ballot_sync(~0u, live);
  if (lane == 0) a.found.marks[at * 8 + warp] = marks;
  const int count = __syncthreads_count(live);
  if (threadIdx.x == 0) a.found.counts[at] = count;
}

/* Copies a row of a key-value head to the gathered rows. */
template <class T>
__device__ __forceinline__ void live_copy(const live_args &a, int which, int b, int kv, int from, int place, int lane) {
  const wn_stride &s = which ? a.s_v : a.s_k;
  const T *row = static_cast<const T *>(which ? a.v : a.k) + b * s.b + kv * s.h + (int64_t)max(from, 0) * s.t;
  T *to = static_cast<T *>(a.found.to[which]) + (((int64_t)b * a.padded + place) * a.Hkv + kv) * a.D;
  if (a.vectors) {
    constexpr int EACH = 16 / sizeof(T);
    for (int d = lane * EACH; d < a.D; d += a.lanes * EACH)
      *reinterpret_cast<uint4 *>(to + d) =
          from < 0 ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4 *>(row + d);
  } else {
    for (int d = lane; d < a.D; d += a.lanes) to[d] = from < 0 ? T(0) : row[d];
  }
}

/* Grid: as for live_mark. */
template <class T> __global__ void __launch_bounds__(256) live_gather(const live_args a) {
  WN_SHARED(int, sums, [2]); /* live keys in earlier tiles, and in all tiles */
  WN_SHARED(int, by_warp, [8]);
  WN_SHARED(int32_t, list, [LIVE_KEYS]);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tile = blockIdx.x, g = blockIdx.y, b = blockIdx.z;
  const int64_t bg = (int64_t)b * a.G + g;
  if (warp == 0) {
    int before = 0, all = 0;
    for (int x = lane; x < (int)gridDim.x; x += 32) {
      const int n = a.found.counts[bg * a.tiles + x];
      all += n;
      if (x < tile) before += n;
    }
    before = wn_warp_sum(before), all = wn_warp_sum(all);
    if (lane == 0) sums[0] = before, sums[1] = all;
  }
  const uint32_t marks = a.found.marks[(bg * a.tiles + tile) * 8 + warp];
  if (lane == 0) by_warp[warp] = __popc(marks);
  __syncthreads();
  const int all = sums[1], first = sums[0], seen = a.before - live_document(a, b);
  const bool gathers = (int64_t)all * 4 <= (int64_t)seen * 3;
  if (tile == 0 && threadIdx.x == 0) a.found.count[bg] = gathers ? all : -1;
  if (!gathers) return;
  int place = __popc(marks & ((1u << lane) - 1)), count = 0;
  for (int w = 0; w < 8; w++) {
    if (w < warp) place += by_warp[w];
    count += by_warp[w];
  }
  if (marks >> lane & 1) list[place] = tile * LIVE_KEYS + threadIdx.x;
  __syncthreads();
  int32_t *at = a.found.at + bg * a.padded;
  if ((int)threadIdx.x < count) at[first + threadIdx.x] = list[threadIdx.x];
  const int heads = a.Hkv / a.G, team = threadIdx.x / a.lanes, teams = 256 / a.lanes, part = threadIdx.x % a.lanes;
  for (int x = team; x < count * heads * 2; x += teams) {
    const int n = x / (2 * heads), kv = g * heads + x / 2 % heads;
    live_copy<T>(a, x & 1, b, kv, list[n], first + n, part);
  }
  if (tile) return;
  const int end = (all + a.whole - 1) / a.whole * a.whole;
  for (int x = all + threadIdx.x; x < end; x += 256) at[x] = -1;
  for (int x = team; x < (end - all) * heads * 2; x += teams) {
    const int kv = g * heads + x / 2 % heads;
    live_copy<T>(a, x & 1, b, kv, -1, all + x / (2 * heads), part);
  }
}

/* ---- host code ---- */

/* May the call skip keys, as far as the host knows? The sign of a strength is checked on the device. */
inline bool live_wanted(const wn_attention *c) {
  return c->sel.on && c->sel.dead_share > 0 && c->sel.relu && (c->sel.shift || c->sel.protect_self) && !c->sel.F;
}

template <class T> struct live_keys {
  live_args a = live_args();

  void plan(const wn_attention *c, int whole, int padded) {
    a.B = (int)c->B, a.Tq = (int)c->Tq, a.Tk = (int)c->Tk, a.H = (int)c->H, a.Hkv = (int)c->Hkv, a.D = (int)c->D;
    a.G = (int)wn_selection_groups(c);
    a.q = c->q, a.k = c->k, a.v = c->v, a.s_q = c->s_q, a.s_k = c->s_k, a.s_v = c->s_v;
    a.doc_start = c->doc_start, a.strength = static_cast<const float *>(c->sel.strength);
    a.f_in = static_cast<const float *>(c->sel.f_in), a.f_stride = wn_selection_stride(c);
    a.scale = (float)c->scale, a.limit = (float)log(c->sel.dead_share / (double)c->Tk);
    a.least = c->sel.mem ? (float)c->sel.mem_tau : 0.0f;
    const auto whole_vectors = [](const void *p, const wn_stride &s) {
      constexpr int n = 16 / (int)sizeof(T);
      return reinterpret_cast<uintptr_t>(p) % 16 == 0 && s.b % n == 0 && s.t % n == 0 && s.h % n == 0;
    };
    a.vectors = a.D % (16 / (int)sizeof(T)) == 0 && whole_vectors(a.k, a.s_k) && whole_vectors(a.v, a.s_v);
    for (a.lanes = 1; a.lanes < 32 && a.lanes * (a.vectors ? 16 / (int)sizeof(T) : 1) < a.D;) a.lanes *= 2;
    a.row_blocks = (a.Tq + LIVE_ROWS - 1) / LIVE_ROWS, a.tiles = (a.Tk + LIVE_KEYS - 1) / LIVE_KEYS;
    a.whole = whole, a.padded = padded;
  }
  void lay(room &scratch) {
    const int64_t blocks = (int64_t)a.B * a.H * a.row_blocks;
    a.most = scratch.take<float>(blocks), a.low = scratch.take<float>(blocks);
    a.norms = scratch.take<float>((int64_t)a.B * a.Hkv * a.Tk);
  }
  /* Lays out the results of one chunk. */
  live_found lay_found(room &scratch) const {
    const int64_t groups = (int64_t)a.B * a.G;
    live_found to;
    to.marks = scratch.take<uint32_t>(groups * a.tiles * 8), to.counts = scratch.take<int>(groups * a.tiles);
    to.count = scratch.take<int>(groups), to.at = scratch.take<int32_t>(groups * a.padded);
    for (int n = 0; n < 2; n++) to.to[n] = scratch.take<T>((int64_t)a.B * a.padded * a.Hkv * a.D);
    return to;
  }
  /* For chunks whose first rows are between `first` and `last`; lse: forward's, if known. */
  void bound(int first, int last, const float *lse, cudaStream_t stream) {
    a.first_block = first / LIVE_ROWS, a.norm_end = last + a.Tk - a.Tq, a.lse = lse;
    const int keys = (a.norm_end + LIVE_ROWS - 1) / LIVE_ROWS, blocks = keys > a.row_blocks ? keys : a.row_blocks;
    WN_LAUNCH(dim3((unsigned)blocks, (unsigned)(a.H + a.Hkv), (unsigned)a.B), dim3(256), 0, stream, (live_bounds<T>),
              a);
  }
  /* For the chunk whose first row is `row`. */
  void find(const live_found &to, int row, const float *carry, int64_t carry_stride, cudaStream_t stream) {
    a.found = to;
    a.before = row + a.Tk - a.Tq, a.carry = carry, a.carry_stride = carry_stride;
    const dim3 grid((unsigned)((a.before + LIVE_KEYS - 1) / LIVE_KEYS), (unsigned)a.G, (unsigned)a.B);
    WN_LAUNCH(grid, dim3(256), 0, stream, (live_mark<T>), a);
    WN_LAUNCH(grid, dim3(256), 0, stream, (live_gather<T>), a);
  }
};

} // namespace wn_cuda

#endif
