/* Attention of a few rows over many keys, for decoding. Keys are split among blocks (flash-decoding). Each block has up
 * to QV queries (rows and heads of one key-value head), so each byte of K and V is read once for all of them. A second
 * kernel combines the blocks' results in a fixed order.
 *
 *   m_s = max_j A[j],  l_s = sum_j exp(A[j] - m_s),  o_s = sum_j exp(A[j] - m_s) v_j  over the keys j of split s
 *   y = sum_s exp(m_s - m) o_s / sum_s exp(m_s - m) l_s,  m = max_s m_s
 *
 * A lane has 16 bytes of a key and of a value, LANES lanes make a row, so a warp reads whole rows. Products are
 * computed in float by fused multiply-adds. A selecting row (only one, with the shift) stores what it selects in
 * `selected`, and the second kernel adds it to F. Reads 2 D numbers of the cache per key, writes D + 2 floats per head
 * and split. Score maps are applied in the first kernel, learned sinks and gates in the second (terms.cuh).
 *
 * A launch has several calls (of sessions that decode together), which differ in what decode_own holds. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_DECODE_CUH
#define WN_BACKENDS_CUDA_ATTENTION_DECODE_CUH

#include "backends/cuda/attention/sinks.cuh"

namespace wn_cuda {

enum decode_sizes {
  DECODE_WARPS = 4,
  DECODE_THREADS = 32 * DECODE_WARPS,
  DECODE_AHEAD = 4,
  DECODE_SPLITS = 64,
  DECODE_KEYED = 3
};

/* What is a call's own; `a` of decode_args has the first call's. */
struct decode_own {
  const void *q, *k, *v;
  void *y;
  const float *f_in;
  float *f_out;
  const int32_t *at;
  float *parts; /* one after the other: [B,Hkv,queries,splits] largest logit (base 2), sum; the same by D: y */
  int64_t k_head, v_head; /* strides of heads */
  int f_stride, slot_stride, Tk;
  int first_key;     /* no row sees keys before it */
  int splits, chunk; /* chunk: keys in a split */
};
enum { DECODE_CALLS = 16 }; /* arguments of a launch have at most 4 KiB */

struct decode_args {
  attention_args a;
  bool vectors; /* rows of k and v may be read in vectors of 16 bytes */
  bool bf16, half_v, selects;
  int queries; /* rows and heads per key-value head: row r, head h of the group is query r H / Hkv + h */
  int select_kv, select_query; /* the selecting query; its key-value head, < 0: each */
  int keyed;
  wn_score_id keyed_id[DECODE_KEYED];
  wn_score_map keyed_map[DECODE_KEYED];
};
/* Kernels for calls: whose rows can be read in 16-byte vectors, without rules but causality, spans and score maps; for
 * others without keyed maps; for all. */
enum decode_kind { DECODE_PLAIN, DECODE_RULES, DECODE_ANY };
struct decode_calls {
  decode_own own[DECODE_CALLS];
};
/* The arguments of one call, and where its parts and what it selects are. */
struct decode_place {
  attention_args a;
  float *most, *sum, *part, *selected; /* selected [B,G,Tk] what the row selects, or NULL */
  __device__ __forceinline__ decode_place(const decode_args &x, const decode_own &own) : a(x.a) {
    const int64_t parts = (int64_t)a.B * a.Hkv * x.queries * own.splits;
    a.q = own.q, a.k = own.k, a.v = own.v, a.y = own.y, a.at = own.at, a.slot_stride = own.slot_stride;
    a.s_k.h = own.k_head, a.s_v.h = own.v_head, a.Tk = own.Tk, a.offset = own.Tk - a.Tq;
    a.sel.f_in = own.f_in, a.sel.f_out = own.f_out, a.sel.f_stride = own.f_stride;
    most = own.parts, sum = most + parts, part = sum + parts;
    selected = x.selects ? part + parts * a.D : nullptr;
  }
};

/* 16 bytes of a row in the cache. */
struct decode_float {
  typedef float element;
  static constexpr int EACH = 4;
  static constexpr bool BF16 = false; /* of q and y */
  static __device__ __forceinline__ void unpack(float (&x)[EACH], uint4 raw) {
    x[0] = __uint_as_float(raw.x), x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z), x[3] = __uint_as_float(raw.w);
  }
  static __device__ __forceinline__ uint32_t pack(float x) { return __float_as_uint(x); }
};
struct decode_half {
  typedef uint16_t element;
  static constexpr int EACH = 8;
  static constexpr bool BF16 = false;
  static __device__ __forceinline__ float number(uint16_t x) { return __half2float(__ushort_as_half(x)); }
  static __device__ __forceinline__ float2 two(uint32_t x) { return wn_unpack_f16(x); }
};
struct decode_bf16 {
  typedef uint16_t element;
  static constexpr int EACH = 8;
  static constexpr bool BF16 = true;
  static __device__ __forceinline__ float2 two(uint32_t x) { return wn_unpack_bf16(x); }
};
template <class T> __device__ __forceinline__ void decode_unpack(float (&x)[8], uint4 raw) {
  const float2 a = T::two(raw.x), b = T::two(raw.y), c = T::two(raw.z), d = T::two(raw.w);
  x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y, x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
}
template <class T> __device__ __forceinline__ void decode_unpack(float (&x)[4], uint4 raw) {
  T::unpack(x, raw);
}
/* The lane's share of a row from `d` on; zeros from D on, and all zeros if the row does not exist. */
template <class T>
__device__ __forceinline__ uint4 decode_load(const typename T::element *row, int d, int D, bool vectors, bool there) {
  uint4 raw = {0, 0, 0, 0};
  if (!there || d >= D) return raw;
  if (vectors) return *reinterpret_cast<const uint4 *>(row + d);
  uint32_t word[4] = {};
#pragma unroll
  for (int e = 0; e < T::EACH; e++) {
    if (d + e >= D) break;
    if constexpr (T::EACH == 4)
      word[e] = T::pack(row[d + e]);
    else
      word[e / 2] |= (uint32_t)row[d + e] << (e % 2 * 16);
  }
  raw.x = word[0], raw.y = word[1], raw.z = word[2], raw.w = word[3];
  return raw;
}

/* Element i of q or y. */
__device__ __forceinline__ float decode_number(const void *x, bool bf16, int64_t i) {
  if (bf16) return __bfloat162float(static_cast<const __nv_bfloat16 *>(x)[i]);
  return static_cast<const float *>(x)[i];
}

/* Sums QV numbers each over a row's lanes; a lane gets the sum of query lane % LANES / (LANES / QV). */
template <int LANES, int QV> __device__ __forceinline__ float decode_sums(float (&x)[QV], int lane) {
#pragma unroll
  for (int n = QV / 2, by = LANES / 2; n > 0; n /= 2, by /= 2) {
    const bool upper = lane & by;
#pragma unroll
    for (int q = 0; q < n; q++) {
      const float mine = upper ? x[q + n] : x[q], theirs = upper ? x[q] : x[q + n];
      x[q] = mine + __shfl_xor_sync(~0u, theirs, by);
    }
  }
#pragma unroll
  for (int by = LANES / QV / 2; by > 0; by /= 2) x[0] += __shfl_xor_sync(~0u, x[0], by);
  return x[0];
}

/* The raw logit after keyed maps. */
__device__ __forceinline__ float decode_keyed(const decode_args &x, float s, const keyed_place &at, int distance) {
  float logit = x.a.scale * s;
  for (int n = 0; n < x.keyed; n++)
    logit = keyed_forward(x.keyed_id[n], x.keyed_map[n], logit, keyed_at(x.keyed_map[n], at, distance));
  return logit / x.a.scale;
}

/* Grid: the most splits of a call, key-value heads times parts of their queries, sequences of each call. */
template <class T, int LANES, int QV, decode_kind KIND>
__global__ void __launch_bounds__(DECODE_THREADS, 1)
    attention_decode(const __grid_constant__ decode_args x, const __grid_constant__ decode_calls calls) {
  constexpr int EACH = T::EACH, GROUPS = 32 / LANES, AHEAD = DECODE_AHEAD, WIDTH = LANES * EACH;
  constexpr bool PLAIN = KIND == DECODE_PLAIN, KEYED = KIND == DECODE_ANY;
  WN_SHARED(float, all_most, [DECODE_WARPS][QV]);
  WN_SHARED(float, all_sum, [DECODE_WARPS][QV]);
  WN_SHARED(float, all_out, [DECODE_WARPS][QV][WIDTH]);
  const decode_own &own = calls.own[blockIdx.z / x.a.B];
  const decode_place place(x, own);
  const attention_args &a = place.a;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane / LANES, d = lane % LANES * EACH;
  const int kv = blockIdx.y % a.Hkv, query0 = blockIdx.y / a.Hkv * QV, b = blockIdx.z % a.B, heads = a.H / a.Hkv;
  const int j0 = own.first_key + blockIdx.x * own.chunk, j1 = min(j0 + own.chunk, a.Tk);
  if ((int)blockIdx.x >= own.splits) return;

  float q[QV][EACH], out[QV][EACH];
#pragma unroll
  for (int n = 0; n < QV; n++) {
    const int i = (query0 + n) / heads, h = kv * heads + (query0 + n) % heads;
    const int64_t at = b * a.s_q.b + i * a.s_q.t + h * a.s_q.h;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      q[n][e] = query0 + n < x.queries && d + e < a.D ? decode_number(a.q, T::BF16, at + d + e) : 0.0f;
      out[n][e] = 0;
    }
  }
  /* the query whose logits this lane has */
  const int mine = lane % LANES / (LANES / QV), query = query0 + mine, row = min(query / heads, a.Tq - 1);
  const int head = kv * heads + query % heads, position = row + a.offset, first = document(a, b, position);
  const int g = kv / (a.Hkv / a.G);
  const float z = !PLAIN && a.span.on ? span_ratio(a, b, head, row) : 0.0f;
  const bool maps = KEYED || (!PLAIN && (a.map.alibi || a.map.cap > 0));
  const float slope = maps ? raw_slope<all_terms>(a, head) : 0.0f;
  const bool rules = !PLAIN && (has_rules<no_terms>(a) || a.at);
  const float *F = a.sel.on && a.sel.f_in ? a.sel.f_in + ((int64_t)b * a.G + g) * a.sel.f_stride : nullptr;
  const bool selects = x.selects && (x.select_kv < 0 || x.select_kv == kv);
  const bool writes = selects && query == x.select_query && lane % (LANES / QV) == 0;
  const float strength = a.sel.strength ? a.sel.strength[g] : 1.0f;
  const typename T::element *k = static_cast<const typename T::element *>(a.k) + b * a.s_k.b + kv * a.s_k.h;
  const typename T::element *v = static_cast<const typename T::element *>(a.v) + b * a.s_v.b + kv * a.s_v.h;

  float most = -INFINITY, sum = 0;
  for (int step = j0 + warp * AHEAD * GROUPS; step < j1; step += DECODE_WARPS * AHEAD * GROUPS) {
    uint4 rk[AHEAD], rv[AHEAD];
    bool seen[AHEAD];
    float f[AHEAD], s[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = step + u * GROUPS + group;
      bool there = j < j1 && j <= position && query < x.queries;
      seen[u] = there && (!rules || sees<no_terms, true>(a, b, kv, position, first, j));
      /* keys that no row sees are not read */
      const uint32_t by_lane = __ballot_sync(~0u, seen[u]);
      there = LANES == 32 ? by_lane != 0 : (by_lane >> (group * LANES % 32) & ((1u << LANES % 32) - 1)) != 0;
      rk[u] = decode_load<T>(k + j * a.s_k.t, d, a.D, PLAIN || x.vectors, there || (selects && j < j1));
      rv[u] = decode_load<T>(v + j * a.s_v.t, d, a.D, PLAIN || x.vectors, there);
      f[u] = F && seen[u] ? F[j] : 0.0f;
    }
    float top = most;
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int j = step + u * GROUPS + group;
      float key[EACH], part[QV];
      decode_unpack<T>(key, rk[u]);
#pragma unroll
      for (int n = 0; n < QV; n++) {
        part[n] = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) part[n] = fmaf(q[n][e], key[e], part[n]);
      }
      s[u] = decode_sums<LANES, QV>(part, lane);
      if constexpr (KEYED) {
        const int at = min(j, a.Tk - 1), apart = distance<true>(a, b, kv, position, at);
        s[u] = decode_keyed(x, fmaf(-slope, (float)apart, s[u]), {b, head, heads, position, at}, apart);
        s[u] = map_logit(a, 0, s[u], apart);
      } else if (maps) {
        s[u] = map_logit(a, slope, s[u], distance<true>(a, b, kv, position, min(j, a.Tk - 1)));
      }
      if (writes && j < j1) {
        const float l = a.sel.relu ? fmaxf(a.scale * s[u], 0.0f) : a.scale * s[u];
        place.selected[((int64_t)b * a.G + g) * a.Tk + j] =
            may_select(a, b, g, position, first, j) ? strength * l : 0.0f;
      }
      s[u] = fmaf(s[u], a.to_log2, -1.4426950408889634f * f[u]);
      if (!PLAIN && a.span.on && seen[u]) {
        const float m = span_factor(a, z, distance<true>(a, b, kv, position, j));
        s[u] = m > 0 ? s[u] + (m < 1 ? log2f(m) : 0.0f) : -INFINITY;
      }
      if (!seen[u]) s[u] = -INFINITY;
      top = fmaxf(top, s[u]);
    }
    const float shift = top == -INFINITY ? 0.0f : top; /* nothing seen so far */
    const float factor = exp2f(most - shift);
    if (__any_sync(~0u, top > most)) {
#pragma unroll
      for (int n = 0; n < QV; n++) {
        const float by = __shfl_sync(~0u, factor, group * LANES + n * (LANES / QV));
#pragma unroll
        for (int e = 0; e < EACH; e++) out[n][e] *= by;
      }
      sum *= factor;
    }
    most = top;
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      float value[EACH];
      decode_unpack<T>(value, rv[u]);
      const float w = exp2f(s[u] - shift);
      sum += w;
#pragma unroll
      for (int n = 0; n < QV; n++) {
        const float by = __shfl_sync(~0u, w, group * LANES + n * (LANES / QV));
#pragma unroll
        for (int e = 0; e < EACH; e++) out[n][e] = fmaf(by, value[e], out[n][e]);
      }
    }
  }
  /* combines the warp's groups of lanes, then the block's warps */
  float best = most;
#pragma unroll
  for (int by = LANES; by < 32; by *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, by));
  const float factor = best == -INFINITY ? 0.0f : exp2f(most - best);
  sum *= factor;
#pragma unroll
  for (int by = LANES; by < 32; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (group == 0 && lane % (LANES / QV) == 0) all_most[warp][mine] = best, all_sum[warp][mine] = sum;
#pragma unroll
  for (int n = 0; n < QV; n++) {
    const float scale = __shfl_sync(~0u, factor, group * LANES + n * (LANES / QV));
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      out[n][e] *= scale;
#pragma unroll
      for (int by = LANES; by < 32; by *= 2) out[n][e] += __shfl_xor_sync(~0u, out[n][e], by);
      if (group == 0) all_out[warp][n][d + e] = out[n][e];
    }
  }
  __syncthreads();
  for (int n = 0; n < QV && query0 + n < x.queries; n++) {
    float whole = -INFINITY, total = 0, by[DECODE_WARPS];
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) whole = fmaxf(whole, all_most[w][n]);
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) {
      by[w] = all_most[w][n] == -INFINITY ? 0.0f : exp2f(all_most[w][n] - whole);
      total += by[w] * all_sum[w][n];
    }
    const int64_t at = (((int64_t)b * a.Hkv + kv) * x.queries + query0 + n) * own.splits + blockIdx.x;
    for (int c = threadIdx.x; c < a.D; c += DECODE_THREADS) {
      float o = 0;
#pragma unroll
      for (int w = 0; w < DECODE_WARPS; w++) o += by[w] * all_out[w][n][c];
      place.part[at * a.D + c] = o;
    }
    if (threadIdx.x == 0) place.most[at] = whole, place.sum[at] = total;
  }
}

/* Combines the splits: one block for each head, row and sequence; further blocks add to F. Grid: these, calls. */
template <class T>
__global__ void __launch_bounds__(DECODE_THREADS, 1)
    attention_decode_join(const __grid_constant__ decode_args x, const __grid_constant__ decode_calls calls) {
  const decode_own &call = calls.own[blockIdx.y];
  const decode_place place(x, call);
  const attention_args &a = place.a;
  const bool bf16 = x.bf16;
  WN_SHARED(float, by, [DECODE_SPLITS]);
  const int64_t n = blockIdx.x, rows = (int64_t)a.B * a.Tq * a.H;
  if (n >= rows) { /* these blocks add to F; f_out may alias f_in */
    for (int64_t i = (n - rows) * DECODE_THREADS + threadIdx.x; i < (int64_t)a.B * a.G * a.Tk;
         i += (int64_t)(gridDim.x - rows) * DECODE_THREADS) {
      const int64_t at = i / a.Tk * a.sel.f_stride + i % a.Tk;
      a.sel.f_out[at] = (a.sel.f_in ? a.sel.f_in[at] : 0.0f) + place.selected[i];
    }
    return;
  }
  const int h = (int)(n % a.H), i = (int)(n / a.H % a.Tq), b = (int)(n / a.H / a.Tq), heads = a.H / a.Hkv;
  const int kv = h / heads;
  const int64_t at = (((int64_t)b * a.Hkv + kv) * x.queries + i * heads + h % heads) * call.splits;
  float most = -INFINITY, sum = 0;
  for (int s = 0; s < call.splits; s++) most = fmaxf(most, place.most[at + s]);
  for (int s = 0; s < call.splits; s++) {
    const float factor = place.most[at + s] == -INFINITY ? 0.0f : exp2f(place.most[at + s] - most);
    sum += factor * place.sum[at + s];
    if ((int)threadIdx.x == s) by[s] = factor;
  }
  __syncthreads();
  const int c = threadIdx.x; /* D is at most the number of threads */
  float y = 0, own = 0;
  for (int s = 0; c < a.D && s < call.splits; s++) y += by[s] * place.part[(at + s) * a.D + c];
  for (int k = 0; T::ON && k < a.sinks.n; k++) {
    const int64_t sink = ((int64_t)kv * a.sinks.n + k) * a.D + c;
    const float q = c < a.D ? decode_number(a.q, bf16, b * a.s_q.b + i * a.s_q.t + h * a.s_q.h + c) : 0.0f;
    const float logit = a.to_log2 * wn_block_sum(c < a.D ? q * a.sinks.k[sink] : 0.0f), top = fmaxf(most, logit);
    const float factor = exp2f(most - top), w = exp2f(logit - top);
    sum = fmaf(sum, factor, w), most = top;
    y = fmaf(w, c < a.D ? a.sinks.v[sink] : 0.0f, y * factor);
  }
  y = sum > 0 ? y / sum : 0.0f;
  if (a.lse && c == 0)
    a.lse[((int64_t)b * a.H + h) * a.Tq + i] = sum > 0 ? most * 0.6931471805599453f + logf(sum) : -INFINITY;
  if (a.exclusive.on) {
    const int64_t from = b * a.s_v.b + (i + a.offset) * a.s_v.t + kv * a.s_v.h + c;
    if (c < a.D)
      own = x.half_v ? decode_half::number(static_cast<const uint16_t *>(a.v)[from]) : decode_number(a.v, bf16, from);
    const float along = wn_block_sum(y * own), size = fmaxf(wn_block_sum(own * own), 1e-30f);
    if (a.exclusive.dot && c == 0) a.exclusive.dot[((int64_t)b * a.H + h) * a.Tq + i] = along;
    y -= (a.exclusive.gate ? a.exclusive.gate[h] : 1.0f) * along / size * own;
  }
  if (c >= a.D) return;
  if (T::ON && a.gate.on) {
    if (a.gate.ungated) a.gate.ungated[(((int64_t)b * a.Tq + i) * a.H + h) * a.D + c] = y;
    y *= a.gate.g[b * a.gate.s_g.b + i * a.gate.s_g.t + h * a.gate.s_g.h + (a.gate.elementwise ? c : 0)];
  }
  const int64_t to = b * a.s_y.b + i * a.s_y.t + h * a.s_y.h + c;
  if (bf16)
    static_cast<__nv_bfloat16 *>(a.y)[to] = __float2bfloat16_rn(y);
  else
    static_cast<float *>(a.y)[to] = y;
}

} // namespace wn_cuda

#endif
