/* Attention backward on sm_90, the kernel that walks the keys of a row tile (backward.cuh has the equations). It runs
 * twice:
 *
 *   DELTA  sums of W and of W dW by row, W = exp(A - lse): delta = sum W dW / sum W, lse += log(sum W)
 *   DQ     dq = scale sum G k; G = W (dW - delta), for the selecting head X besides
 *
 * The first run makes delta exact: from y, which rows in bf16 round, it is worse where gradients cancel (equal keys:
 * the norm of dq's error is 1.4 to 1.6 times as large; the tolerance law grants both). It also makes the weights of a
 * row with F in halves sum to 1, whatever the lse of forward, whose F is in floats: all that comes after uses this lse.
 * With exclusive attention it takes dy's part along v away first, and leaves what the other kernels read as dy.
 * 4 D and 6 D operations a pair and head. Units, order and pipeline are forward's; tiles have 64 keys. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_ROWS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_ROWS_CUH

#include "backends/cuda/attention/sm90_forward.cuh"

namespace wn_cuda {

enum sm90_rows_run { DELTA, DQ };

template <int D, bool SEL, sm90_rows_run RUN> struct sm90_rows_room {
  static constexpr int Q = 128 * D * 2, K = 64 * D * 2, F = SEL ? 8192 : 0, X = SEL && RUN == DQ ? 8192 : 0;
  static constexpr int K_STAGES = D == 64 ? 4 : 3, V_STAGES = D == 64 ? 3 : 2; /* K stays a step longer */
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

template <int D, bool SEL, sm90_rows_run RUN>
__device__ __forceinline__ void rows_bring(const sm90_args &a, uint8_t *raw,
                                           const sm90_rows_bars<sm90_rows_room<D, SEL, RUN>> &bars) {
  typedef sm90_rows_room<D, SEL, RUN> room;
  int n = 0, turn = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < rows_units(a); turn++) {
    const sm90_rows_unit unit(a, u);
    const bool joins = SEL && RUN == DQ && selects(a, unit.h);
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

/* A block of X of a warp's 16 rows to its accumulators. */
__device__ __forceinline__ void add_X(float (&s)[32], const uint8_t *x, int warp, int lane) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const uint4 y = reinterpret_cast<const uint4 *>(x)[(warp * 4 + u) * 32 + lane];
    const float2 v[4] = {wn_unpack_bf16(y.x), wn_unpack_bf16(y.y), wn_unpack_bf16(y.z), wn_unpack_bf16(y.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) s[8 * u + 2 * i] += v[i].x, s[8 * u + 2 * i + 1] += v[i].y;
  }
}

/* dy of row i becomes dy without its part along v, and what is taken from it is kept. pair(t): where the lane has its
 * two numbers of 8 t and on; r: which of its two rows. */
template <int D, class PAIR>
__device__ __forceinline__ void exclude_dy(const sm90_args &a, const sm90_rows_unit &unit, int i, int lane, PAIR pair) {
  const sm90_own<D> v(a, unit.b, unit.kv, i, lane);
  float along = 0;
#pragma unroll
  for (int t = 0; t < D / 8; t++) {
    const float2 dy = wn_unpack_bf16(pair(t));
    along = fmaf(dy.y, v[t].y, fmaf(dy.x, v[t].x, along));
  }
  along = sum_of_row(along);
  const float part = gate_of(a, unit.h) * along / v.size;
  const int64_t bh = (int64_t)unit.b * a.H + unit.h;
  uint16_t *to = a.exclusive.dy + (((int64_t)unit.b * a.T + i) * a.H + unit.h) * D + (lane & 3) * 2;
#pragma unroll
  for (int t = 0; t < D / 8; t++) {
    const float2 dy = wn_unpack_bf16(pair(t));
    pair(t) = wn_pack_bf16(dy.x - part * v[t].x, dy.y - part * v[t].y);
    if (i < a.T) *reinterpret_cast<uint32_t *>(to + t * 8) = pair(t);
  }
  if ((lane & 3) || i >= a.T) return;
  a.exclusive.d_dot[bh * a.padded + i] = along;
  if (a.exclusive.dgate) a.exclusive.dgate[bh * a.T + i] = -a.exclusive.dot[bh * a.T + i] * along / v.size;
}

/* Grid: at most as many blocks as run at once. */
template <int D, bool SEL, sm90_rows_run RUN>
__global__ void __launch_bounds__(384, 1) sm90_rows(const __grid_constant__ sm90_args a) {
  typedef sm90_rows_room<D, SEL, RUN> room;
  constexpr int KS = room::K_STAGES, VS = room::V_STAGES;
  constexpr bool HELD = D == 64; /* Q and dy in registers */
  WN_SHARED_DYNAMIC(uint8_t, raw);
  const sm90_rows_bars<room> bars(reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS));
  if (threadIdx.x < 128) {
    wn_registers_fewer<24>();
    if (threadIdx.x == 0) rows_bring<D, SEL, RUN>(a, raw, bars);
    return;
  }
  wn_registers_more<240>();
  const int group = (threadIdx.x >> 7) - 1, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const int row0 = group * 64 + warp * 16;
  const uint8_t *own_q = raw + group * 8192, *own_dy = raw + room::Q + group * 8192;
  float s[32], dp[32], dq[RUN == DQ ? D / 2 : 1];
  uint32_t p[4][4], held_q[4][4], held_dy[4][4];
  const auto keys = [&](int st) { return raw + 2 * room::Q + st * room::K; };
  const auto values = [&](int st) { return raw + room::VALUES + st * room::V_STAGE; };
  const auto gradient = [&](int st) {
    if constexpr (RUN == DQ)
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
    const bool joins = SEL && RUN == DQ && selects(a, unit.h);
    float lse[2], delta[2], weights[2] = {0, 0}, products[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = unit.row_tile * 128 + row0 + (lane >> 2) + r * 8;
      const int64_t bh = (int64_t)unit.b * a.H + unit.h;
      if (RUN == DQ)
        lse[r] = a.log2s[bh * a.padded + i], delta[r] = a.delta[bh * a.padded + i];
      else
        lse[r] = i < a.T ? a.lse[bh * a.T + i] * 1.4426950408889634f : INFINITY, delta[r] = 0;
    }
    zero(dq);
    wn_mbarrier_wait(bars.q_full, turn & 1);
    if (HELD) {
      load_operand(held_q, own_q, warp, lane);
      load_operand(held_dy, own_dy, warp, lane);
      release(lane, bars.q_empty);
    }
    if (RUN == DELTA && a.exclusive.on) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = row0 + (lane >> 2) + r * 8, i = unit.row_tile * 128 + row;
        if constexpr (HELD)
          exclude_dy<D>(a, unit, i, lane, [&](int t) -> uint32_t & { return held_dy[t / 2][t % 2 * 2 + r]; });
        else
          exclude_dy<D>(a, unit, i, lane, [&](int t) -> uint32_t & {
            uint8_t *at = raw + room::Q + t / 8 * 16384 + row * 128 + ((t % 8 ^ (row & 7)) << 4);
            return reinterpret_cast<uint32_t *>(at)[lane & 3];
          });
      }
      if (!HELD) { /* products of the whole group read what its warps have written */
        wn_proxy_fence();
        wn_barrier_sync(4 + group, 128);
      }
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
      if (RUN == DQ) { /* of the tile before, under this one's exponentials */
        if (i > 0) gradient((n - 1) % KS);
        wn_wgmma_commit();
      }
      turn_give(group);
      wn_wgmma_wait<RUN == DQ ? 2 : 1>();
      if (RUN == DELTA) release(lane, &bars.k_empty[ks]);
      if (i < 2) mask(s, row0, (1 - i) * 64, lane);
      if (a.doc_start) mask_documents(s, first, (unit.last<64>() - i) * 64, lane);
#pragma unroll
      for (int e = 0; e < 32; e++) s[e] = wn_exp2(fmaf(s[e], a.to_log2, -lse[e >> 1 & 1]));
      wn_wgmma_wait<0>();
      if (RUN == DQ && i > 0) release(lane, &bars.k_empty[(n - 1) % KS]);
      if (!HELD && i == tiles - 1) release(lane, bars.q_empty);
      if (RUN == DELTA) {
#pragma unroll
        for (int e = 0; e < 32; e++) {
          weights[e >> 1 & 1] += s[e];
          products[e >> 1 & 1] = fmaf(s[e], dp[e], products[e >> 1 & 1]);
        }
      } else {
#pragma unroll
        for (int e = 0; e < 32; e++) s[e] *= dp[e] - delta[e >> 1 & 1];
        if (joins) add_X(s, values(vs) + room::K + 16384 + group * 8192, warp, lane);
        pack(p, s);
      }
      release(lane, &bars.v_empty[vs]);
    }
    if constexpr (RUN == DQ) {
      wn_wgmma_fence();
      gradient((n - 1) % KS);
      wn_wgmma_commit();
      wn_wgmma_wait<0>();
      release(lane, &bars.k_empty[(n - 1) % KS]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = unit.row_tile * 128 + row0 + (lane >> 2) + r * 8;
      if constexpr (RUN == DQ) {
        if (i >= a.T || !a.dq) continue;
        uint16_t *to = a.dq + unit.b * a.s_q.b + i * a.s_q.t + unit.h * a.s_q.h + (lane & 3) * 2;
#pragma unroll
        for (int t = 0; t < D / 8; t++)
          *reinterpret_cast<uint32_t *>(to + t * 8) =
              wn_pack_bf16(dq[t * 4 + r * 2] * a.scale, dq[t * 4 + r * 2 + 1] * a.scale);
      } else {
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
          weights[r] += __shfl_xor_sync(~0u, weights[r], by);
          products[r] += __shfl_xor_sync(~0u, products[r], by);
        }
        if (lane & 3) continue;
        const int64_t at = ((int64_t)unit.b * a.H + unit.h) * a.padded + i;
        a.log2s[at] = i < a.T ? lse[r] + log2f(weights[r]) : INFINITY;
        a.delta[at] = i < a.T ? products[r] / weights[r] : 0.0f;
      }
    }
  }
}

} // namespace wn_cuda

#endif
