/* Attention forward on sm_90: y and lse (forward.cuh has the equations). A unit is 128 rows of a head. Thread blocks
 * are persistent and take units in a fixed order: the longest first, alternating up and down, heads of one row tile
 * next to each other. One thread loads tiles and runs ahead into the next unit. The accumulators of Q K^T start at F,
 * so the product already gives the selective score; the next Q K^T is issued before P V. 4 D operations per pair and
 * head. For L_mem the selecting head sums M (ops/attention.h) from the F that it starts with: 3 more operations per
 * pair of its own. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SM90_FORWARD_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SM90_FORWARD_CUH

#include "backends/cuda/attention/sm90_args.cuh"

namespace wn_cuda {

template <int D, sm90_F KIND> struct sm90_forward_room {
  static constexpr int KEYS = KIND == F_FLOAT ? 64 : 128; /* keys in a tile */
  static constexpr int STAGES = (D == 64 ? 3 : 2) + (KIND == F_FLOAT);
  static constexpr int Q = 128 * D * 2, K = KEYS * D * 2, F = KEYS / 64 * sm90_block<KIND>::BYTES; /* F: of 64 rows */
  static constexpr int STAGE = 2 * K + 2 * F, BARRIERS = Q + STAGES * STAGE, BYTES = BARRIERS + (2 + 4 * STAGES) * 8;
};

struct sm90_forward_bars {
  wn_mbarrier *q_full, *q_empty, *k_full, *v_full, *k_empty, *v_empty;
  template <int STAGES> __device__ __forceinline__ void make(wn_mbarrier *b) {
    q_full = b, q_empty = b + 1, k_full = b + 2;
    v_full = k_full + STAGES, k_empty = v_full + STAGES, v_empty = k_empty + STAGES;
    if (threadIdx.x == 0) {
      wn_mbarrier_init(q_full, 1), wn_mbarrier_init(q_empty, 8);
      for (int i = 0; i < STAGES; i++) {
        wn_mbarrier_init(&k_full[i], 1), wn_mbarrier_init(&v_full[i], 1);
        wn_mbarrier_init(&k_empty[i], 8), wn_mbarrier_init(&v_empty[i], 8);
      }
      wn_mbarrier_init_fence();
    }
    __syncthreads();
  }
};

/* Unit u: its rows. */
struct sm90_rows_unit {
  int h, b, kv, g, row_tile;
  sm90_columns columns;
  int document; /* of its first row: no row sees a column before it */
  int end;      /* end of its columns, in blocks of 64 */
  __device__ __forceinline__ sm90_rows_unit(const sm90_args &a, int u)
      : h(u % a.H), b(u / a.H % a.B), kv(h / (a.H / a.Hkv)), g(h / (a.H / a.G)),
        row_tile(window_end(a) / 2 - 1 - u / (a.H * a.B)), columns(a, b, g) {
    document = columns.of_document(a, wn_cuda::document(a, b, row_tile * 128));
    end = columns.of_rows(a, row_tile * 2) + 2;
  }
  /* For tiles of KEYS keys: the last that the unit uses, and how many it uses. It starts with the last. */
  template <int KEYS> __device__ __forceinline__ int last() const { return end / 2 * (128 / KEYS) - 1; }
  template <int KEYS> __device__ __forceinline__ int tiles() const { return last<KEYS>() - document / KEYS + 1; }
  __device__ __forceinline__ void documents(const sm90_args &a, int row, int (&first)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; r++)
      first[r] = columns.of_document(a, wn_cuda::document(a, b, row_tile * 128 + row + r * 8));
  }
};
__device__ __forceinline__ int rows_units(const sm90_args &a) {
  return a.B * a.H * (a.row_blocks / 2);
}

/* The code of the thread that loads tiles. */
template <int D, sm90_F KIND>
__device__ __forceinline__ void forward_bring(const sm90_args &a, uint8_t *sq, uint8_t *stages,
                                              const sm90_forward_bars &bars) {
  typedef sm90_forward_room<D, KIND> room;
  int n = 0, turn = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < rows_units(a); turn++) {
    const sm90_rows_unit unit(a, u);
    wn_mbarrier_wait(bars.q_empty, (turn & 1) ^ 1);
    wn_mbarrier_expect(bars.q_full, room::Q);
    load_tile<D, 128>(sq, a.q, bars.q_full, unit.row_tile * 128, unit.h, unit.b);
    for (int i = 0; i < unit.tiles<room::KEYS>(); i++, n++) {
      const int j = unit.last<room::KEYS>() - i;
      const int st = n % room::STAGES, parity = (n / room::STAGES & 1) ^ 1;
      uint8_t *k = stages + st * room::STAGE, *v = k + room::K, *f = v + room::K;
      wn_mbarrier_wait(&bars.k_empty[st], parity);
      wn_mbarrier_expect(&bars.k_full[st], room::K + 2 * room::F);
      load_columns<D, room::KEYS>(k, a, false, &bars.k_full[st], unit.columns, j * room::KEYS, unit.kv, unit.b);
      if (KIND != F_NONE)
        for (int r = 0; r < 2; r++) {
          const int64_t block = block_at(a, unit.b, unit.g, unit.row_tile * 2 + r, j * (room::KEYS / 64));
          wn_bulk_load(f + r * room::F, static_cast<uint8_t *>(a.F) + block * sm90_block<KIND>::BYTES, room::F,
                       &bars.k_full[st]);
        }
      wn_mbarrier_wait(&bars.v_empty[st], parity);
      wn_mbarrier_expect(&bars.v_full[st], room::K);
      load_columns<D, room::KEYS>(v, a, true, &bars.v_full[st], unit.columns, j * room::KEYS, unit.kv, unit.b);
    }
  }
}

/* Turns raw scores into attention weights relative to the row's maximum so far; f: the factor for earlier sums. */
template <int N>
__device__ __forceinline__ void online_softmax(float (&s)[N], float (&largest)[2], float (&sum)[2], float (&f)[2],
                                               float to_log2) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float x = largest[r];
#pragma unroll
    for (int t = 0; t < N / 4; t++) x = fmaxf(x, fmaxf(s[t * 4 + r * 2], s[t * 4 + r * 2 + 1]));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    const float safe = x == -INFINITY ? 0.0f : x; /* on the diagonal, upper rows see none of the last 64 keys */
    const float shift = safe * to_log2;
    f[r] = wn_exp2(fmaf(largest[r], to_log2, -shift));
    largest[r] = x;
    float more = 0;
#pragma unroll
    for (int t = 0; t < N / 4; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float &w = s[t * 4 + r * 2 + e];
        w = wn_exp2(fmaf(w, to_log2, -shift));
        more += w;
      }
    sum[r] = sum[r] * f[r] + more;
  }
}

/* Removes from y of row i its part along v; r: which of the lane's two rows it is. */
template <int D>
__device__ __forceinline__ void exclude(const sm90_args &a, const sm90_rows_unit &unit, float (&o)[D / 2], int r, int i,
                                        int lane) {
  const sm90_own<D> v(a, unit.b, unit.kv, i, lane);
  float along = 0;
#pragma unroll
  for (int t = 0; t < D / 8; t++) along = fmaf(o[t * 4 + r * 2 + 1], v[t].y, fmaf(o[t * 4 + r * 2], v[t].x, along));
  along = sum_of_row(along);
  const float part = gate_of(a, unit.h) * along / v.size;
#pragma unroll
  for (int t = 0; t < D / 8; t++) o[t * 4 + r * 2] -= part * v[t].x, o[t * 4 + r * 2 + 1] -= part * v[t].y;
  if (a.exclusive.dot && (lane & 3) == 0 && i < a.T)
    a.exclusive.dot[((int64_t)unit.b * a.H + unit.h) * a.T + i] = along;
}

/* Grid: at most as many blocks as can run at once. */
template <int D, sm90_F KIND>
__global__ void __launch_bounds__(384, 1) sm90_forward(const __grid_constant__ sm90_args a) {
  typedef sm90_forward_room<D, KIND> room;
  constexpr int KEYS = room::KEYS, ST = room::STAGES, PER = 128 / KEYS;
  constexpr bool HELD = D == 64; /* Q in registers: then the products read half as much shared memory */
  WN_SHARED_DYNAMIC(uint8_t, raw);
  uint8_t *sq = raw, *stages = raw + room::Q;
  sm90_forward_bars bars;
  bars.make<ST>(reinterpret_cast<wn_mbarrier *>(raw + room::BARRIERS));
  if (threadIdx.x < 128) {
    wn_registers_fewer<24>();
    if (threadIdx.x == 0) forward_bring<D, KIND>(a, sq, stages, bars);
    return;
  }
  wn_registers_more<240>();
  const int group = (threadIdx.x >> 7) - 1, warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
  const uint8_t *own = sq + group * 8192; /* 64 rows of 128 bytes */
  float s[KEYS / 2], o[D / 2], largest[2], sum[2], f[2];
  uint32_t p[KEYS / 16][4], held[4][4];
  bool counts = false; /* does the unit's head select, and does L_mem need its rows' sums? */
  float kept[2];
  const auto begin = [&](int st, int diagonal, const int(&first)[2], int key) {
    start<KIND>(s, stages + st * room::STAGE + 2 * room::K + group * room::F, warp, lane);
    if (KIND == F_FLOAT && counts) {
      const bool rim = a.doc_start || key + KEYS > diagonal;
#pragma unroll
      for (int e = 0; e < KEYS / 2; e++) {
        const int r = e >> 1 & 1, j = key + acc_column(lane, e);
        const bool is = !rim || (j >= first[r] && j <= diagonal + r * 8);
        kept[r] += is ? fmaxf(s[e] + a.tau, 0.0f) : 0.0f;
      }
    }
  };
  const auto scores = [&](int st) {
    wn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      const uint64_t keys = columns_of<KEYS>(stages + st * room::STAGE, k);
      if (HELD)
        wn_wgmma_rs<false>(s, held[k % 4], keys, KIND != F_NONE || k > 0);
      else
        wn_wgmma_ss<false>(s, columns_of<128>(own, k), keys, KIND != F_NONE || k > 0);
    }
    wn_wgmma_commit();
  };
  const auto values = [&](int st) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wn_wgmma_rs<true>(o, p[k], rows_of<KEYS>(stages + st * room::STAGE + room::K, k), true);
    wn_wgmma_commit();
  };
  turn_first(group);
  int n = 0, turn = 0;
  for (int u; (u = snake(turn, blockIdx.x, gridDim.x)) < rows_units(a); turn++) {
    const sm90_rows_unit unit(a, u);
    const int tiles = unit.tiles<KEYS>(), last = unit.last<KEYS>(), row0 = group * 64 + warp * 16;
    /* the column of the own key of the lane's first row */
    const int diagonal = (unit.end - 2) * 64 + row0 + (lane >> 2);
    int first[2];
    unit.documents(a, row0 + (lane >> 2), first);
    zero(o);
    largest[0] = largest[1] = -INFINITY;
    sum[0] = sum[1] = 0;
    counts = a.M && selects(a, unit.h), kept[0] = kept[1] = 0;
    wn_mbarrier_wait(bars.q_full, turn & 1);
    if (HELD) {
      load_operand(held, own, warp, lane);
      release(lane, bars.q_empty);
    }
    /* The first tile separately: ptxas keeps products and sums apart only if there is no branch between them. */
    wn_mbarrier_wait(&bars.k_full[n % ST], n / ST & 1);
    begin(n % ST, diagonal, first, last * KEYS);
    turn_take(group);
    scores(n % ST);
    turn_give(group);
    wn_wgmma_wait<0>();
    release(lane, &bars.k_empty[n % ST]);
    if (!HELD && tiles == 1) release(lane, bars.q_empty);
    mask(s, row0, (PER - 1) * KEYS, lane);
    if (a.doc_start) mask_documents(s, first, last * KEYS, lane);
    online_softmax(s, largest, sum, f, a.to_log2);
    pack(p, s);
    n++;
    for (int i = 1; i < tiles; i++, n++) {
      const int st = n % ST, old = (n - 1) % ST;
      wn_mbarrier_wait(&bars.k_full[st], n / ST & 1);
      begin(st, diagonal, first, (last - i) * KEYS);
      turn_take(group);
      scores(st);
      wn_mbarrier_wait(&bars.v_full[old], (n - 1) / ST & 1);
      values(old);
      turn_give(group);
      wn_wgmma_wait<1>();
      release(lane, &bars.k_empty[st]);
      if (!HELD && i == tiles - 1) release(lane, bars.q_empty);
      if (i < PER) mask(s, row0, (PER - 1 - i) * KEYS, lane);
      if (a.doc_start) mask_documents(s, first, (last - i) * KEYS, lane);
      online_softmax(s, largest, sum, f, a.to_log2);
      wn_wgmma_wait<0>();
      release(lane, &bars.v_empty[old]);
#pragma unroll
      for (int e = 0; e < D / 2; e++) o[e] *= f[e >> 1 & 1];
      pack(p, s);
    }
    const int old = (n - 1) % ST;
    wn_mbarrier_wait(&bars.v_full[old], (n - 1) / ST & 1);
    wn_wgmma_fence();
    values(old);
    wn_wgmma_wait<0>();
    release(lane, &bars.v_empty[old]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] = sum_of_row(sum[r]);
      if (KIND == F_FLOAT && counts) kept[r] = sum_of_row(kept[r]);
      const int i = unit.row_tile * 128 + row0 + (lane >> 2) + r * 8;
      const float share = 1 / sum[r];
#pragma unroll
      for (int t = 0; t < D / 8; t++) o[t * 4 + r * 2] *= share, o[t * 4 + r * 2 + 1] *= share;
      if (a.exclusive.on) exclude<D>(a, unit, o, r, i, lane);
      if (i >= a.T) continue;
      if (a.lse && (lane & 3) == 0)
        a.lse[((int64_t)unit.b * a.H + unit.h) * a.T + i] =
            (largest[r] * a.to_log2 + log2f(sum[r])) * 0.6931471805599453f;
      if (KIND == F_FLOAT && counts && (lane & 3) == 0)
        a.M[((int64_t)unit.b * a.G + unit.g) * a.T + i] = kept[r] / a.tau;
      uint16_t *y = a.y + unit.b * a.s_y.b + i * a.s_y.t + unit.h * a.s_y.h + (lane & 3) * 2;
#pragma unroll
      for (int t = 0; t < D / 8; t++)
        *reinterpret_cast<uint32_t *>(y + t * 8) = wn_pack_bf16(o[t * 4 + r * 2], o[t * 4 + r * 2 + 1]);
    }
  }
}

} // namespace wn_cuda

#endif
