/* Attention backward on sm_90: the kernels for pairs of tiles and for keys (backward.cuh has the equations). Each sum
 * is computed by one thread block in one order.
 *
 *   dF      a tile of 128 rows x 128 columns loops over the heads of its group: X = sum of G = W (dW - delta), and with
 *           L_mem dM / tau where F < tau. It reads 8 D bytes per row or column, tile and head from L2, two thirds of
 *           what tiles of 128 x 64 read
 *   dk, dv  128 columns of a key-value head loop over its heads and their rows, 64 at a time, turned: S^T = K Q^T
 *
 * 4 D and 8 D operations a pair and head. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_BACKWARD_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_BACKWARD_CUH

#include "backends/cuda/attention/sm90_rows.cuh"

namespace wn_cuda {

/* ---- dF ---- */

/* Iterates over tiles of 128 rows x 128 columns on or before the chunk's diagonal, group after group. */
struct sm90_tiles {
  int bg, row_tile, column_tile;
  sm90_columns columns;
  __device__ __forceinline__ sm90_tiles(const sm90_args &a)
      : bg(0), row_tile(a.row_block0 / 2), column_tile(0), columns(a, 0, 0) {
    advance(a, blockIdx.x);
  }
  __device__ __forceinline__ bool more(const sm90_args &a) const { return bg < a.B * a.G; }
  /* The tile on the diagonal: blocks of columns before a window's rows are even. */
  __device__ __forceinline__ int diagonal(const sm90_args &a) const { return columns.of_rows(a, row_tile * 2) / 2; }
  __device__ __forceinline__ void advance(const sm90_args &a, int n) {
    for (column_tile += n; more(a) && column_tile > diagonal(a); row_tile++) {
      column_tile -= diagonal(a) + 1;
      if (row_tile + 1 < window_end(a) / 2) continue;
      row_tile = a.row_block0 / 2 - 1, bg++;
      if (more(a)) columns = sm90_columns(a, bg / a.G, bg % a.G);
    }
  }
};

template <int D> struct sm90_dF_room {
  static constexpr int ROWS = 128 * D * 2, SLOT = 2 * ROWS, SLOTS = D == 64 ? 6 : 3; /* two slots per head */
  static constexpr int BARRIERS = SLOTS * SLOT, BYTES = BARRIERS + 2 * SLOTS * 8;
};

/* Grid: at most as many blocks as can run at once. */
template <int D> __global__ void __launch_bounds__(384, 1) sm90_dF(const __grid_constant__ sm90_args a) {
  typedef sm90_dF_room<D> room;
  constexpr int SLOTS = room::SLOTS;
  WN_SHARED_DYNAMIC(uint8_t, raw);
  wn_mbarrier *full = reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS), *empty = full + SLOTS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) wn_mbarrier_init(&full[i], 1), wn_mbarrier_init(&empty[i], 8);
    wn_mbarrier_init_fence();
  }
  __syncthreads();
  const int share = a.H / a.G, per = a.H / a.Hkv;
  int n = 0;
  if (threadIdx.x < 128) {
    wn_registers_fewer<24>();
    if (threadIdx.x) return;
    for (sm90_tiles t(a); t.more(a); t.advance(a, gridDim.x)) {
      const int b = t.bg / a.G, h0 = t.bg % a.G * share;
      for (int h = h0; h < h0 + share; h++)
        for (int second = 0; second < 2; second++, n++) {
          const int slot = n % SLOTS;
          uint8_t *to = raw + slot * room::SLOT;
          wn_mbarrier_wait(&empty[slot], (n / SLOTS & 1) ^ 1);
          wn_mbarrier_expect(&full[slot], room::SLOT);
          load_tile<D, 128>(to, second ? a.dy : a.q, &full[slot], t.row_tile * 128, h, b);
          load_columns<D, 128>(to + room::ROWS, a, second, &full[slot], t.columns, t.column_tile * 128, h / per, b);
        }
    }
    return;
  }
  wn_registers_more<240>();
  const int group = (threadIdx.x >> 7) - 1, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const int row0 = group * 64 + warp * 16;
  float s[64], dp[64], sum[64];
  const auto product = [&](float(&to)[64], int slot, bool adds) {
    const uint8_t *rows = raw + slot * room::SLOT, *keys = rows + room::ROWS;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wn_wgmma_ss<false>(to, columns_of<128>(rows + group * 8192, k), columns_of<128>(keys, k), adds || k > 0);
    wn_wgmma_commit();
  };
  turn_first(group);
  for (sm90_tiles t(a); t.more(a); t.advance(a, gridDim.x)) {
    const int b = t.bg / a.G, g = t.bg % a.G, column0 = t.column_tile * 128;
    const int64_t block = block_at(a, b, g, t.row_tile * 2 + group, t.column_tile * 2); /* and the one behind it */
    const uint8_t *F = static_cast<const uint8_t *>(a.F) + block * 8192;
    const int first_row = t.row_tile * 128 + row0 + (lane >> 2);
    const int document_of[2] = {t.columns.of_document(a, document(a, b, first_row)),
                                t.columns.of_document(a, document(a, b, first_row + 8))};
    zero(sum);
    for (int h = g * share; h < (g + 1) * share; h++, n += 2) {
      const int first = n % SLOTS, second = (n + 1) % SLOTS;
      const int64_t at = ((int64_t)b * a.H + h) * a.padded + t.row_tile * 128 + row0 + (lane >> 2);
      const float lse[2] = {a.log2s[at], a.log2s[at + 8]}, delta[2] = {a.delta[at], a.delta[at + 8]};
      start<F_HALF>(s, F, warp, lane);
      wn_mbarrier_wait(&full[first], n / SLOTS & 1);
      wn_mbarrier_wait(&full[second], (n + 1) / SLOTS & 1);
      turn_take(group);
      wn_wgmma_fence();
      product(s, first, true);
      product(dp, second, false);
      turn_give(group);
      wn_wgmma_wait<1>();
      release(lane, &empty[first]);
      if (t.column_tile == t.diagonal(a)) mask(s, row0, 0, lane);
      if (a.doc_start) mask_documents(s, document_of, column0, lane);
#pragma unroll
      for (int e = 0; e < 64; e++) s[e] = wn_exp2(fmaf(s[e], a.to_log2, -lse[e >> 1 & 1]));
      wn_wgmma_wait<0>();
      release(lane, &empty[second]);
#pragma unroll
      for (int e = 0; e < 64; e++) sum[e] = fmaf(s[e], dp[e] - delta[e >> 1 & 1], sum[e]);
    }
    if (a.dM) {                                                 /* adds L_mem's part */
      const int own = t.columns.of_rows(a, 0) * 64 + first_row; /* the column of the row's own key */
      float m[2];
#pragma unroll
      for (int r = 0; r < 2; r++)
        m[r] = first_row + r * 8 < a.T ? a.dM[((int64_t)b * a.G + g) * a.T + first_row + r * 8] * a.per_tau : 0.0f;
      start<F_HALF>(s, F, warp, lane);
#pragma unroll
      for (int e = 0; e < 64; e++) {
        const int r = e >> 1 & 1, column = column0 + acc_column(lane, e);
        if (s[e] > -a.tau && column <= own + r * 8 && column >= document_of[r]) sum[e] += m[r];
      }
    }
    uint32_t p[8][4];
    pack(p, sum);
    uint4 *to = a.X + block * 512 + warp * 128 + lane;
#pragma unroll
    for (int u = 0; u < 8; u++) to[u / 4 * 512 + u % 4 * 32] = make_uint4(p[u][0], p[u][1], p[u][2], p[u][3]);
  }
}

/* ---- dk, dv ---- */

template <int D, bool SEL> struct sm90_keys_room {
  static constexpr int K = 128 * D * 2, Q = 64 * D * 2, F = SEL ? 16384 : 0;
  static constexpr int STAGES = D == 64 ? 4 : 2, STAGE = 2 * Q + F + 1024; /* rows, F, and the rows' lse and delta */
  static constexpr int ROWS = 2 * K + F, BARRIERS = ROWS + STAGES * STAGE, BYTES = BARRIERS + (4 + 2 * STAGES) * 8;
};

/* One past the last row of key j's document. */
__device__ __forceinline__ int document_end(const sm90_args &a, int b, int j) {
  if (!a.doc_start) return a.T;
  int low = min(j, a.T - 1) + 1, high = a.T;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a.doc_start[(int64_t)b * a.T + middle] > j)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* Unit u: 128 columns, and the rows of the chunk that see them (at least one block of 64). If u is after the last
 * column of a selection, the unit is empty. */
struct sm90_keys_unit {
  int kv, b, tile, first, rows, steps;
  sm90_columns columns;
  __device__ __forceinline__ sm90_keys_unit(const sm90_args &a, int u)
      : kv(u % a.Hkv), b(u / a.Hkv % a.B), tile(u / (a.Hkv * a.B)), columns(a, b, group(a)) {
    const int own_block = columns.to_rows(a, tile * 2);
    first = max(own_block, a.row_block0);
    rows = max(min((document_end(a, 127) + 63) / 64, window_end(a)) - first, 1); /* blocks of 64 */
    steps = own_block < window_end(a) ? rows * (a.H / a.Hkv) : 0;
  }
  __device__ __forceinline__ int group(const sm90_args &a) const { return kv / (a.Hkv / a.G); }
  __device__ __forceinline__ int head(const sm90_args &a, int n) const { return kv * (a.H / a.Hkv) + n / rows; }
  __device__ __forceinline__ int row_block(int n) const { return first + n % rows; }
  /* Are its keys before the chunk? */
  __device__ __forceinline__ bool before() const { return tile * 2 < columns.before; }
  /* One past the last row of the document of key n. Gathered keys belong to the document of the chunk's first row. */
  __device__ __forceinline__ int document_end(const sm90_args &a, int n) const {
    return wn_cuda::document_end(
        a, b, columns.gathered && before() ? a.row_block0 * 64 : columns.to_rows(a, tile * 2) * 64 + n);
  }
};
__device__ __forceinline__ int keys_units(const sm90_args &a) {
  return a.B * a.Hkv * (window_end(a) / 2);
}

template <int D, bool SEL>
__device__ __forceinline__ void keys_bring(const sm90_args &a, uint8_t *raw, wn_mbarrier *bars) {
  typedef sm90_keys_room<D, SEL> room;
  wn_mbarrier *k_full = bars, *k_empty = bars + 1, *x_full = bars + 2, *x_empty = bars + 3, *full = bars + 4,
              *empty = full + room::STAGES;
  int n = 0, turn = 0, units = 0, xs = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < keys_units(a); turn++) {
    const sm90_keys_unit unit(a, u);
    if (!unit.steps) continue;
    wn_mbarrier_wait(k_empty, (units++ & 1) ^ 1);
    wn_mbarrier_expect(k_full, 2 * room::K);
    for (int x = 0; x < 2; x++)
      load_columns<D, 128>(raw + x * room::K, a, x, k_full, unit.columns, unit.tile * 128, unit.kv, unit.b);
    for (int i = 0; i < unit.steps; i++, n++) {
      const int st = n % room::STAGES, h = unit.head(a, i), row_block = unit.row_block(i), g = h / (a.H / a.G);
      uint8_t *q = raw + room::ROWS + st * room::STAGE, *f = q + 2 * room::Q, *facts = f + room::F;
      const int64_t block = block_at(a, unit.b, g, row_block, unit.tile * 2),
                    row = ((int64_t)unit.b * a.H + h) * a.padded + row_block * 64;
      wn_mbarrier_wait(&empty[st], (n / room::STAGES & 1) ^ 1);
      wn_mbarrier_expect(&full[st], 2 * room::Q + room::F + 512);
      load_tile<D, 64>(q, a.q, &full[st], row_block * 64, h, unit.b);
      load_tile<D, 64>(q + room::Q, a.dy, &full[st], row_block * 64, h, unit.b);
      if (SEL) wn_bulk_load(f, static_cast<uint8_t *>(a.F) + block * 8192, room::F, &full[st]);
      wn_bulk_load(facts, a.log2s + row, 256, &full[st]);
      wn_bulk_load(facts + 256, a.delta + row, 256, &full[st]);
      if (!SEL || !selects(a, h)) continue;
      wn_mbarrier_wait(x_empty, (xs & 1) ^ 1);
      wn_mbarrier_expect(x_full, room::F);
      wn_bulk_load(raw + 2 * room::K, a.X + block * 512, room::F, x_full);
      xs++;
    }
  }
}

/* Stores two elements of a key from column c on: to the call's array, or to the sums that later calls for earlier
 * chunks continue. */
template <int D>
__device__ __forceinline__ void keys_store(const sm90_args &a, const sm90_keys_unit &unit, uint16_t *to,
                                           const sm90_stride &by, int which, int j, int c, float2 x) {
  float2 *sum =
      reinterpret_cast<float2 *>(a.sums + ((((int64_t)which * a.B + unit.b) * a.padded + j) * a.Hkv + unit.kv) * D + c);
  if (!a.last_rows) x.x += sum->x, x.y += sum->y;
  if (unit.before())
    *sum = x;
  else if (to)
    *reinterpret_cast<uint32_t *>(to + unit.b * by.b + j * by.t + unit.kv * by.h + c) = wn_pack_bf16(x.x, x.y);
}

/* Adds the gradient that exclusive attention's projection gives to the value of row j, from all heads. With the full y
 * and dy it is
 *   -gate (dy.v y + y.v dy) / |v|^2 + 2 gate y.v dy.v v / |v|^4
 * The arrays hold y and dy without their parts along v. */
template <int D>
__device__ __forceinline__ void add_own(const sm90_args &a, const sm90_keys_unit &unit, float (&dv)[D / 2], int r,
                                        int j, int lane) {
  const sm90_own<D> v(a, unit.b, unit.kv, j, lane);
  if (j >= a.T) return;
  const int share = a.H / a.Hkv;
  for (int h = unit.kv * share; h < (unit.kv + 1) * share; h++) {
    const int64_t bh = (int64_t)unit.b * a.H + h;
    const float part = gate_of(a, h) / v.size, dot = a.exclusive.dot[bh * a.T + j],
                d_dot = a.exclusive.d_dot[bh * a.padded + j], by_v = 2 * part * dot * d_dot * (1 / v.size - part);
    const uint16_t *y = a.y + unit.b * a.s_y.b + j * a.s_y.t + h * a.s_y.h + (lane & 3) * 2,
                   *dy = a.exclusive.dy + (((int64_t)unit.b * a.T + j) * a.H + h) * D + (lane & 3) * 2;
#pragma unroll
    for (int t = 0; t < D / 8; t++) {
      const float2 y2 = wn_unpack_bf16(*reinterpret_cast<const uint32_t *>(y + t * 8)),
                   dy2 = wn_unpack_bf16(*reinterpret_cast<const uint32_t *>(dy + t * 8));
      dv[t * 4 + r * 2] += by_v * v[t].x - part * (d_dot * y2.x + dot * dy2.x);
      dv[t * 4 + r * 2 + 1] += by_v * v[t].y - part * (d_dot * y2.y + dot * dy2.y);
    }
  }
}

/* Grid: at most as many blocks as can run at once. */
template <int D, bool SEL> __global__ void __launch_bounds__(384, 1) sm90_keys(const __grid_constant__ sm90_args a) {
  typedef sm90_keys_room<D, SEL> room;
  constexpr int ST = room::STAGES;
  constexpr bool HELD = D == 64; /* K and V in registers, last two products one step late: there is room */
  WN_SHARED_DYNAMIC(uint8_t, raw);
  wn_mbarrier *bars = reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS);
  wn_mbarrier *k_full = bars, *k_empty = bars + 1, *x_full = bars + 2, *x_empty = bars + 3, *full = bars + 4,
              *empty = full + ST;
  if (threadIdx.x == 0) {
    wn_mbarrier_init(k_full, 1), wn_mbarrier_init(k_empty, 8);
    wn_mbarrier_init(x_full, 1), wn_mbarrier_init(x_empty, 8);
    for (int i = 0; i < ST; i++) wn_mbarrier_init(&full[i], 1), wn_mbarrier_init(&empty[i], 8);
    wn_mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    wn_registers_fewer<24>();
    if (threadIdx.x == 0) keys_bring<D, SEL>(a, raw, bars);
    return;
  }
  wn_registers_more<240>();
  const int group = (threadIdx.x >> 7) - 1, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const int key0 = group * 64 + warp * 16;
  const uint8_t *own_k = raw + group * 8192, *own_v = raw + room::K + group * 8192,
                *own_x = raw + 2 * room::K + group * 8192;
  float s[32], dp[32], dk[D / 2], dv[D / 2];
  uint32_t p[4][4], g[4][4], held_k[4][4], held_v[4][4];
  const auto rows = [&](int st) { return raw + room::ROWS + st * room::STAGE; };
  const auto gradients = [&](int st) {
#pragma unroll
    for (int k = 0; k < 4; k++) wn_wgmma_rs<true>(dv, p[k], rows_of<64>(rows(st) + room::Q, k), true);
#pragma unroll
    for (int k = 0; k < 4; k++) wn_wgmma_rs<true>(dk, g[k], rows_of<64>(rows(st), k), true);
  };
  turn_first(group);
  int n = 0, turn = 0, units = 0, xs = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < keys_units(a); turn++) {
    const sm90_keys_unit unit(a, u);
    if (!unit.steps) continue;
    int end[2]; /* of the documents of the lane's two keys */
#pragma unroll
    for (int r = 0; r < 2; r++) end[r] = unit.document_end(a, key0 + (lane >> 2) + r * 8);
    zero(dk), zero(dv);
    wn_mbarrier_wait(k_full, units++ & 1);
    if (HELD) {
      load_operand(held_k, own_k, warp, lane);
      load_operand(held_v, own_v, warp, lane);
      release(lane, k_empty);
    }
    for (int i = 0; i < unit.steps; i++, n++) {
      const int st = n % ST, from = (unit.columns.of_rows(a, unit.row_block(i)) - unit.tile * 2) * 64;
      const uint8_t *f = rows(st) + 2 * room::Q;
      const float *facts = reinterpret_cast<const float *>(f + room::F);
      wn_mbarrier_wait(&full[st], n / ST & 1);
      if (SEL)
        turned(f + group * 8192, warp, lane, [&](int e, uint32_t pair) {
          const float2 x = wn_unpack_f16(pair);
          s[e] = x.x, s[e + 1] = x.y;
        });
      turn_take(group);
      wn_wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        const uint64_t to = columns_of<64>(rows(st), k);
        if (HELD)
          wn_wgmma_rs<false>(s, held_k[k % 4], to, SEL || k > 0);
        else
          wn_wgmma_ss<false>(s, columns_of<128>(own_k, k), to, SEL || k > 0);
      }
      wn_wgmma_commit();
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        const uint64_t to = columns_of<64>(rows(st) + room::Q, k);
        if (HELD)
          wn_wgmma_rs<false>(dp, held_v[k % 4], to, k > 0);
        else
          wn_wgmma_ss<false>(dp, columns_of<128>(own_v, k), to, k > 0);
      }
      wn_wgmma_commit();
      if (HELD) {
        if (i > 0) gradients((n - 1) % ST);
        wn_wgmma_commit();
      }
      turn_give(group);
      wn_wgmma_wait<HELD ? 2 : 1>();
      if (from < 128) /* only rows from `from` on: earlier rows do not see the key */
#pragma unroll
        for (int e = 0; e < 32; e++)
          if (from + acc_column(lane, e) < key0 + acc_row(lane, e)) s[e] = -INFINITY;
      if (a.doc_start)
#pragma unroll
        for (int e = 0; e < 32; e++)
          if (unit.row_block(i) * 64 + acc_column(lane, e) >= end[e >> 1 & 1]) s[e] = -INFINITY;
#pragma unroll
      for (int t = 0; t < 8; t++) {
        const float2 lse = *reinterpret_cast<const float2 *>(facts + t * 8 + (lane & 3) * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) s[4 * t + e] = wn_exp2(fmaf(s[4 * t + e], a.to_log2, -(e & 1 ? lse.y : lse.x)));
      }
      wn_wgmma_wait<0>();
      if (HELD && i > 0) release(lane, &empty[(n - 1) % ST]);
      pack(p, s);
#pragma unroll
      for (int t = 0; t < 8; t++) {
        const float2 delta = *reinterpret_cast<const float2 *>(facts + 64 + t * 8 + (lane & 3) * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) s[4 * t + e] *= dp[4 * t + e] - (e & 1 ? delta.y : delta.x);
      }
      if (SEL && selects(a, unit.head(a, i))) {
        wn_mbarrier_wait(x_full, xs & 1);
        xs++;
        turned(own_x, warp, lane, [&](int e, uint32_t pair) {
          const float2 x = wn_unpack_bf16(pair);
          s[e] += x.x, s[e + 1] += x.y;
        });
        release(lane, x_empty);
      }
      pack(g, s);
      if (!HELD) {
        wn_wgmma_fence();
        gradients(st);
        wn_wgmma_commit();
        wn_wgmma_wait<0>();
        release(lane, &empty[st]);
      }
    }
    if (HELD) {
      wn_wgmma_fence();
      gradients((n - 1) % ST);
      wn_wgmma_commit();
      wn_wgmma_wait<0>();
      release(lane, &empty[(n - 1) % ST]);
    } else {
      release(lane, k_empty);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int j = unit.columns.key(a, unit.b, unit.group(a), unit.tile * 128 + key0 + (lane >> 2) + r * 8);
      if (a.exclusive.on && !unit.before()) add_own<D>(a, unit, dv, r, j, lane);
      if (j < 0 || j >= a.T) continue;
#pragma unroll
      for (int t = 0; t < D / 8; t++) {
        const int c = t * 8 + (lane & 3) * 2, e = t * 4 + r * 2;
        keys_store<D>(a, unit, a.dk, a.s_k, 0, j, c, make_float2(dk[e] * a.scale, dk[e + 1] * a.scale));
        keys_store<D>(a, unit, a.dv, a.s_v, 1, j, c, make_float2(dv[e], dv[e + 1]));
      }
    }
  }
}

} // namespace wn_cuda

#endif
