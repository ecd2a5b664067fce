/* Attention backward on sm_90: the kernels for rows (backward.cuh has the equations):
 *
 *   delta  dy . y of each row and head, with y rounded to bf16. An exact delta, the sum of W dW for 4 D operations per
 *          pair and head, would be better where gradients cancel (equal keys: the norm of dq's error is now 1.4 to 1.6
 *          times as large); the tolerance rule allows both. Exclusive attention first removes dy's part along v.
 *   dq     scale sum G k, where G = W (dW - delta), plus X for the selecting head: loops over the keys of a row tile,
 *          6 D operations per pair and head. Units, order and pipeline are those of forward; tiles have 64 keys. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_ROWS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_ROWS_CUH

#include "backends/cuda/attention/sm90_forward.cuh"

namespace wn_cuda {

template <int D, bool SEL> struct sm90_rows_room {
  static constexpr int Q = 128 * D * 2, K = 64 * D * 2, F = SEL ? 8192 : 0, X = F;
  static constexpr int K_STAGES = D == 64 ? 4 : 3, V_STAGES = D == 64 ? 3 : 2; /* K stays one step longer */
  static constexpr int V_STAGE = K + 2 * F + 2 * X, VALUES = 2 * Q + K_STAGES * K;
  static constexpr int BARRIERS = VALUES + V_STAGES * V_STAGE, BYTES = BARRIERS + (2 + 2 * K_STAGES + 2 * V_STAGES) * 8;
};

template <class ROOM> struct sm90_rows_bars {
  wn_mbarrier *q_full, *q_empty, *k_full, *k_empty, *v_full, *v_empty;
  __device__ __forceinline__ sm90_rows_bars(wn_mbarrier *b) {
    q_full = b, q_empty = b + 1, k_full = b + 2, k_empty = k_full + ROOM::K_STAGES;
    v_full = k_empty + ROOM::K_STAGES, v_empty = v_full + ROOM::V_STAGES;
    if (threadIdx.x == 0) {
      wn_mbarrier_init(q_full, 1), wn_mbarrier_init(q_empty, 8);
      for (int i = 0; i < ROOM::K_STAGES; i++) wn_mbarrier_init(&k_full[i], 1), wn_mbarrier_init(&k_empty[i], 8);
      for (int i = 0; i < ROOM::V_STAGES; i++) wn_mbarrier_init(&v_full[i], 1), wn_mbarrier_init(&v_empty[i], 8);
      wn_mbarrier_init_fence();
    }
    __syncthreads();
  }
};

template <int D, bool SEL>
__device__ __forceinline__ void rows_bring(const sm90_args &a, uint8_t *raw,
                                           const sm90_rows_bars<sm90_rows_room<D, SEL>> &bars) {
  typedef sm90_rows_room<D, SEL> room;
  int n = 0, turn = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < rows_units(a); turn++) {
    const sm90_rows_unit unit(a, u);
    const bool joins = SEL && selects(a, unit.h);
    wn_mbarrier_wait(bars.q_empty, (turn & 1) ^ 1);
    wn_mbarrier_expect(bars.q_full, 2 * room::Q);
    load_tile<D, 128>(raw, a.q, bars.q_full, unit.row_tile * 128, unit.h, unit.b);
    load_tile<D, 128>(raw + room::Q, a.dy, bars.q_full, unit.row_tile * 128, unit.h, unit.b);
    for (int i = 0; i < unit.tiles<64>(); i++, n++) {
      const int j = unit.last<64>() - i;
      const int ks = n % room::K_STAGES, vs = n % room::V_STAGES;
      uint8_t *k = raw + 2 * room::Q + ks * room::K, *v = raw + room::VALUES + vs * room::V_STAGE, *f = v + room::K;
      wn_mbarrier_wait(&bars.k_empty[ks], (n / room::K_STAGES & 1) ^ 1);
      wn_mbarrier_expect(&bars.k_full[ks], room::K);
      load_columns<D, 64>(k, a, false, &bars.k_full[ks], unit.columns, j * 64, unit.kv, unit.b);
      wn_mbarrier_wait(&bars.v_empty[vs], (n / room::V_STAGES & 1) ^ 1);
      wn_mbarrier_expect(&bars.v_full[vs], room::K + 2 * room::F + (joins ? 2 * room::X : 0));
      load_columns<D, 64>(v, a, true, &bars.v_full[vs], unit.columns, j * 64, unit.kv, unit.b);
      if (SEL)
        for (int r = 0; r < 2; r++) {
          const int64_t block = block_at(a, unit.b, unit.g, unit.row_tile * 2 + r, j);
          wn_bulk_load(f + r * 8192, static_cast<uint8_t *>(a.F) + block * 8192, 8192, &bars.v_full[vs]);
          if (joins) wn_bulk_load(f + 16384 + r * 8192, a.X + block * 512, 8192, &bars.v_full[vs]);
        }
    }
  }
}

/* Adds a block of X for a warp's 16 rows to its accumulators. */
__device__ __forceinline__ void add_X(float (&s)[32], const uint8_t *x, int warp, int lane) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const uint4 y = reinterpret_cast<const uint4 *>(x)[(warp * 4 + u) * 32 + lane];
    const float2 v[4] = {wn_unpack_bf16(y.x), wn_unpack_bf16(y.y), wn_unpack_bf16(y.z), wn_unpack_bf16(y.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) s[8 * u + 2 * i] += v[i].x, s[8 * u + 2 * i + 1] += v[i].y;
  }
}

/* Eight bf16 numbers of a row. */
struct sm90_eight {
  float v[8];
  __device__ __forceinline__ explicit sm90_eight(const uint16_t *at) { wn_unpack_eight(v, at); }
  __device__ __forceinline__ float along(const sm90_eight &x) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum = fmaf(v[k], x.v[k], sum);
    return sum;
  }
};

/* Computes lse in base 2 (infinite from T on) and delta. With exclusive attention also dy without its part along v
 * (which later kernels read), that part, and the gates' gradients by row. Grid: blocks of 256 threads; D / 8 threads
 * per row and head, B x padded x H of these. */
template <int D>
__global__ void __launch_bounds__(256, 4) sm90_delta(const __grid_constant__ sm90_args a, const uint16_t *dy) {
  constexpr int LANES = D / 8;
  const int64_t n = ((int64_t)blockIdx.x * 256 + threadIdx.x) / LANES, row = n / a.H;
  const int h = (int)(n % a.H), b = (int)(row / a.padded), lane = threadIdx.x % LANES;
  const int i = (int)(row % a.padded), read = min(i, a.T - 1); /* rows from T on read the last row */
  const int64_t at = b * a.s_y.b + read * a.s_y.t + h * a.s_y.h + lane * 8, bh = (int64_t)b * a.H + h;
  sm90_eight y(a.y + at), d(dy + at);
  float d_along = 0, by_gate = 0;
  if (a.exclusive.on) {
    const sm90_eight v(a.exclusive.v + b * a.s_v.b + read * a.s_v.t + h / (a.H / a.Hkv) * a.s_v.h + lane * 8);
    const float size = fmaxf(wn_lanes_sum<LANES>(v.along(v)), 1e-30f), part = gate_of(a, h) / size,
                dot = a.exclusive.dot[bh * a.T + read];
    uint32_t word[4];
    d_along = wn_lanes_sum<LANES>(d.along(v));
    by_gate = -dot * d_along / size;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      word[k] =
          wn_pack_bf16(d.v[2 * k] - part * d_along * v.v[2 * k], d.v[2 * k + 1] - part * d_along * v.v[2 * k + 1]);
      const float2 left = wn_unpack_bf16(word[k]);
      d.v[2 * k] = left.x, d.v[2 * k + 1] = left.y;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) y.v[k] += part * dot * v.v[k]; /* as it was before the projection */
    if (i < a.T)
      *reinterpret_cast<uint4 *>(a.exclusive.dy + (((int64_t)b * a.T + i) * a.H + h) * D + lane * 8) =
          make_uint4(word[0], word[1], word[2], word[3]);
  }
  const float delta = wn_lanes_sum<LANES>(y.along(d));
  if (lane != 0) return;
  a.log2s[bh * a.padded + i] = i < a.T ? a.lse[bh * a.T + i] * 1.4426950408889634f : INFINITY;
  a.delta[bh * a.padded + i] = i < a.T ? delta : 0.0f;
  if (!a.exclusive.on || i >= a.T) return;
  a.exclusive.d_dot[bh * a.padded + i] = d_along;
  if (a.exclusive.dgate) a.exclusive.dgate[bh * a.T + i] = by_gate;
}

/* Grid: at most as many blocks as can run at once. */
template <int D, bool SEL> __global__ void __launch_bounds__(384, 1) sm90_rows(const __grid_constant__ sm90_args a) {
  typedef sm90_rows_room<D, SEL> room;
  constexpr int KS = room::K_STAGES, VS = room::V_STAGES;
  constexpr bool HELD = D == 64; /* Q and dy in registers */
  WN_SHARED_DYNAMIC(uint8_t, raw);
  const sm90_rows_bars<room> bars(reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS));
  if (threadIdx.x < 128) {
    wn_registers_fewer<24>();
    if (threadIdx.x == 0) rows_bring<D, SEL>(a, raw, bars);
    return;
  }
  wn_registers_more<240>();
  const int group = (threadIdx.x >> 7) - 1, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const int row0 = group * 64 + warp * 16;
  const uint8_t *own_q = raw + group * 8192, *own_dy = raw + room::Q + group * 8192;
  float s[32], dp[32], dq[D / 2];
  uint32_t p[4][4], held_q[4][4], held_dy[4][4];
  const auto keys = [&](int st) { return raw + 2 * room::Q + st * room::K; };
  const auto values = [&](int st) { return raw + room::VALUES + st * room::V_STAGE; };
  const auto gradient = [&](int st) {
#pragma unroll
    for (int k = 0; k < 4; k++) wn_wgmma_rs<true>(dq, p[k], rows_of<64>(keys(st), k), true);
  };
  turn_first(group);
  int n = 0, turn = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < rows_units(a); turn++) {
    const sm90_rows_unit unit(a, u);
    const int tiles = unit.tiles<64>();
    int first[2];
    unit.documents(a, row0 + (lane >> 2), first);
    const bool joins = SEL && selects(a, unit.h);
    const int64_t at = ((int64_t)unit.b * a.H + unit.h) * a.padded + unit.row_tile * 128 + row0 + (lane >> 2);
    const float lse[2] = {a.log2s[at], a.log2s[at + 8]}, delta[2] = {a.delta[at], a.delta[at + 8]};
    zero(dq);
    wn_mbarrier_wait(bars.q_full, turn & 1);
    if (HELD) {
      load_operand(held_q, own_q, warp, lane);
      load_operand(held_dy, own_dy, warp, lane);
      release(lane, bars.q_empty);
    }
    for (int i = 0; i < tiles; i++, n++) {
      const int ks = n % KS, vs = n % VS;
      wn_mbarrier_wait(&bars.k_full[ks], n / KS & 1);
      wn_mbarrier_wait(&bars.v_full[vs], n / VS & 1);
      if (SEL) start<F_HALF>(s, values(vs) + room::K + group * 8192, warp, lane);
      turn_take(group);
      wn_wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        const uint64_t to = columns_of<64>(keys(ks), k);
        if (HELD)
          wn_wgmma_rs<false>(s, held_q[k % 4], to, SEL || k > 0);
        else
          wn_wgmma_ss<false>(s, columns_of<128>(own_q, k), to, SEL || k > 0);
      }
      wn_wgmma_commit();
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        const uint64_t to = columns_of<64>(values(vs), k);
        if (HELD)
          wn_wgmma_rs<false>(dp, held_dy[k % 4], to, k > 0);
        else
          wn_wgmma_ss<false>(dp, columns_of<128>(own_dy, k), to, k > 0);
      }
      wn_wgmma_commit();
      if (i > 0) gradient((n - 1) % KS); /* of the previous tile, overlapping with this tile's exponentials */
      wn_wgmma_commit();
      turn_give(group);
      wn_wgmma_wait<2>();
      if (i < 2) mask(s, row0, (1 - i) * 64, lane);
      if (a.doc_start) mask_documents(s, first, (unit.last<64>() - i) * 64, lane);
#pragma unroll
      for (int e = 0; e < 32; e++) s[e] = wn_exp2(fmaf(s[e], a.to_log2, -lse[e >> 1 & 1]));
      wn_wgmma_wait<0>();
      if (i > 0) release(lane, &bars.k_empty[(n - 1) % KS]);
      if (!HELD && i == tiles - 1) release(lane, bars.q_empty);
#pragma unroll
      for (int e = 0; e < 32; e++) s[e] *= dp[e] - delta[e >> 1 & 1];
      if (joins) add_X(s, values(vs) + room::K + 16384 + group * 8192, warp, lane);
      pack(p, s);
      release(lane, &bars.v_empty[vs]);
    }
    wn_wgmma_fence();
    gradient((n - 1) % KS);
    wn_wgmma_commit();
    wn_wgmma_wait<0>();
    release(lane, &bars.k_empty[(n - 1) % KS]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = unit.row_tile * 128 + row0 + (lane >> 2) + r * 8;
      if (i >= a.T || !a.dq) continue;
      uint16_t *to = a.dq + unit.b * a.s_q.b + i * a.s_q.t + unit.h * a.s_q.h + (lane & 3) * 2;
#pragma unroll
      for (int t = 0; t < D / 8; t++)
        *reinterpret_cast<uint32_t *>(to + t * 8) =
            wn_pack_bf16(dq[t * 4 + r * 2] * a.scale, dq[t * 4 + r * 2 + 1] * a.scale);
    }
  }
}

} // namespace wn_cuda

#endif
