// Kernels of a mixture of experts (equations in backends/ref/experts.c). Only the device knows which rows an expert
// has. So a launch covers the possible maximum, and a table of tiles says what there is: blocks without a tile end at
// once, and weights of experts that nobody chose are not read. Every sum has one order.
#ifndef WN_BACKENDS_CUDA_EXPERTS_CUH
#define WN_BACKENDS_CUDA_EXPERTS_CUH

#include "backends/cuda/best.cuh"
#include "backends/cuda/matvec.cuh"
#include "backends/cuda/packed.cuh"
#include "backends/cuda/product.cuh"

enum experts_tile_rows {
  EXPERTS_FEW = 8,  // a warp multiplies up to this many rows with a row of weights
  EXPERTS_MANY = 64 // rows in a tile of a product
};

// ---- where the experts' weights are: set by the host, read by kernels from a table ----

struct experts_matrix {
  const float *dense; // or NULL
  float *d;           // its gradient, or NULL
  wn_packed_matrix packed;
  bool wide; // its rows can be read as in matvec.cuh
};
struct experts_weights {
  experts_matrix in, out; // [2F,C], [C,F]
};
enum { EXPERTS_EACH = 22 }; // experts per launch: kernel arguments are limited to 4 KiB
struct experts_some {
  experts_weights expert[EXPERTS_EACH];
};
static __global__ void experts_table_kernel(const __grid_constant__ experts_some some, int count,
                                            experts_weights *table) {
  if ((int)threadIdx.x < count) table[threadIdx.x] = some.expert[threadIdx.x];
}

// Weight k of row n; K is the row's length.
static __device__ __forceinline__ float experts_weight(const experts_matrix &w, int64_t K, int64_t n, int64_t k) {
  if (w.dense) return w.dense[n * K + k];
  int type;
  const uint8_t *row = wn_packed_at(w.packed, K, n, &type);
  return wn_packed_element(type, row, k);
}
// The weights as operand b of a product (product.cuh), by rows or by columns.
struct experts_by_row {
  const experts_matrix &w;
  int64_t K;
  static constexpr bool along_k = true;
  __device__ __forceinline__ float operator()(int64_t n, int64_t k) const { return experts_weight(w, K, n, k); }
};
struct experts_by_column {
  const experts_matrix &w;
  int64_t N;
  static constexpr bool along_k = false;
  __device__ __forceinline__ float operator()(int64_t n, int64_t k) const { return experts_weight(w, N, k, n); }
};

// ---- routing ----

struct experts_route {
  int64_t M, C;
  int E, top;
  bool normalize;
  float *prob, *weight;  // [M,E] logits, replaced by probabilities; [M,top]
  int32_t *chosen;       // [M,top]
  const float *x, *gate; // [M,C]; [C] or NULL
  float *factor;         // [M] factor of the shared expert, or NULL
};

// One warp per row; lane l has experts l, l + 32 and so on.
static __global__ void experts_choose_kernel(experts_route a) {
  const int64_t m = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (m >= a.M) return;
  float *p = a.prob + m * a.E;
  float most = -INFINITY, sum = 0, all = 0;
  for (int e = lane; e < a.E; e += 32) most = fmaxf(most, p[e]);
  most = wn_warp_max(most);
  for (int e = lane; e < a.E; e += 32) sum += expf(p[e] - most);
  sum = wn_warp_sum(sum);
  for (int e = lane; e < a.E; e += 32) p[e] = expf(p[e] - most) / sum;
  uint32_t taken = 0; // bit j: expert lane + 32 j
  for (int k = 0; k < a.top; k++) {
    best mine = {-INFINITY, INT32_MAX};
    for (int j = 0, e = lane; e < a.E; j++, e += 32) {
      const float v = p[e] == p[e] ? p[e] : -1.0f; // treats NaN as lowest: the choice is then the first experts
      if (!(taken >> j & 1)) mine = best_of(mine, {v, e});
    }
    mine = warp_best(mine);
    if (mine.index % 32 == lane) taken |= 1u << mine.index / 32;
    if (lane == 0) a.chosen[m * a.top + k] = mine.index, a.weight[m * a.top + k] = mine.value;
    all += mine.value;
  }
  __syncwarp();
  for (int k = lane; a.normalize && k < a.top; k += 32) a.weight[m * a.top + k] /= all;
  if (!a.factor) return;
  float z = 0;
  for (int64_t c = lane; a.gate && c < a.C; c += 32) z += a.x[m * a.C + c] * a.gate[c];
  z = wn_warp_sum(z);
  if (lane == 0) a.factor[m] = a.gate ? 1.0f / (1.0f + expf(-z)) : 1.0f;
}

// Rows first to first + rows - 1 of `in`, which belong to one expert.
struct experts_tile {
  int32_t expert, first, rows;
};
struct experts_places {
  int A, E; // A: M top
  const int32_t *chosen;
  int32_t *place, *order; // [A] each; inverse permutations
  int32_t *count, *end;   // [E] an expert's number of rows, and the place after its last row
  int tile_rows, tiles;   // tiles: length of the table
  experts_tile *tile;     // in the order of experts
};

// One block per expert.
static __global__ void experts_count_kernel(experts_places a) {
  int count = 0;
  for (int i = threadIdx.x; i < a.A; i += blockDim.x) count += a.chosen[i] == (int)blockIdx.x;
  count = wn_block_sum(count);
  if (threadIdx.x == 0) a.count[blockIdx.x] = count;
}
// Sorted by expert, then by row.
static __global__ void experts_place_kernel(experts_places a) {
  WN_SHARED(int, by_warp, [WN_CUDA_THREADS / 32]);
  const int e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int first = 0, first_tile = 0;
  for (int before = threadIdx.x; before < e; before += blockDim.x) {
    first += a.count[before];
    first_tile += (a.count[before] + a.tile_rows - 1) / a.tile_rows;
  }
  first = wn_block_sum(first), first_tile = wn_block_sum(first_tile);
  const int count = a.count[e], tiles = (count + a.tile_rows - 1) / a.tile_rows;
  if (threadIdx.x == 0) a.end[e] = first + count;
  for (int t = threadIdx.x; t < tiles; t += blockDim.x)
    a.tile[first_tile + t] = {e, first + t * a.tile_rows, min(a.tile_rows, count - t * a.tile_rows)};
  if (e == a.E - 1)
    for (int t = first_tile + tiles + threadIdx.x; t < a.tiles; t += blockDim.x) a.tile[t] = {0, 0, 0};
  int next = first;
  for (int i0 = 0; i0 < a.A; i0 += blockDim.x) {
    const int i = i0 + threadIdx.x;
    const bool mine = i < a.A && a.chosen[i] == e;
    const uint32_t lanes = __ballot_sync(~0u, mine);
    __syncthreads(); // by_warp may still be read
    if (lane == 0) by_warp[warp] = __popc(lanes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) before += w < warp ? by_warp[w] : 0, all += by_warp[w];
    if (mine) {
      const int at = next + before + __popc(lanes & ((1u << lane) - 1));
      a.place[i] = at, a.order[at] = i;
    }
    next += all;
  }
}

// ---- load balance ----

struct experts_load {
  int64_t M, T;
  int E, top;
  const float *prob;
  const int32_t *chosen, *row_count; // row_count NULL: all
  double *share, *mean, *rows;       // [E]: number of rows that choose e, sum of e's probabilities; [1] number of rows;
                                     // only rows that count
};
static __device__ __forceinline__ bool experts_counts(const int32_t *row_count, int64_t T, int64_t m) {
  return !row_count || m % T < row_count[m / T];
}
// One block per expert.
static __global__ void experts_load_kernel(experts_load a) {
  const int e = blockIdx.x;
  double share = 0, mean = 0, rows = 0;
  for (int64_t m = threadIdx.x; m < a.M; m += blockDim.x) {
    if (!experts_counts(a.row_count, a.T, m)) continue;
    rows += 1, mean += (double)a.prob[m * a.E + e];
    for (int k = 0; k < a.top; k++) share += a.chosen[m * a.top + k] == e;
  }
  share = wn_block_sum(share), mean = wn_block_sum(mean), rows = wn_block_sum(rows);
  if (threadIdx.x) return;
  a.share[e] = share, a.mean[e] = mean;
  if (e == 0) *a.rows = rows;
}
static __global__ void experts_balance_kernel(experts_load a, double *balance) {
  const double rows = *a.rows;
  double sum = 0;
  for (int e = threadIdx.x; e < a.E && rows > 0; e += blockDim.x) sum += a.share[e] / rows * (a.mean[e] / rows);
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) *balance = (double)a.E * sum;
}

// ---- products ----

// to[place] = from[the row at that place]
static __global__ void experts_gather_kernel(int64_t A, int64_t C, int top, const int32_t *order, const float *from,
                                             float *to) {
  WN_GRID_LOOP(i, A * C) to[i] = from[order[i / C] / top * C + i % C];
}

struct experts_product {
  const experts_weights *table;
  const experts_tile *tile;
  bool out; // use the expert's `out`, else its `in`
  int64_t N, K;
  const float *a; // [A,K] by place; for few rows also by row, if order is set
  const int32_t *order;
  int top;
  float *c; // [A,N] by place
};
static __device__ __forceinline__ const experts_matrix &experts_of(const experts_weights *table, bool out, int e) {
  return out ? table[e].out : table[e].in;
}

// Grid: tiles, columns in 64s. COLUMNS: multiplies with the weights' columns, for backward.
template <bool COLUMNS, bool BF16>
static __global__ void __launch_bounds__(256) experts_product_kernel(experts_product x) {
  const experts_tile tile = x.tile[blockIdx.x];
  if (tile.rows == 0) return;
  const experts_matrix &w = experts_of(x.table, x.out, tile.expert);
  wn_product p = {};
  p.M = tile.rows, p.N = x.N, p.K = x.K;
  p.a = {const_cast<float *>(x.a) + tile.first * x.K, false}, p.a_row = x.K, p.a_k = 1;
  p.c = {x.c + tile.first * x.N, false}, p.c_row = x.N;
  const int64_t n0 = (int64_t)blockIdx.y * 64;
  if (COLUMNS) {
    const experts_by_column b = {w, x.N};
    BF16 ? wn_product_bf16_tile(p, b, 0, n0) : wn_product_tile(p, b, 0, n0);
  } else {
    const experts_by_row b = {w, x.K};
    BF16 ? wn_product_bf16_tile(p, b, 0, n0) : wn_product_tile(p, b, 0, n0);
  }
}

// The lane's share of a row of weights times the rows of a tile: one row (M 1) or up to EXPERTS_FEW.
template <int M, class X>
static __device__ __forceinline__ void experts_few(float (&sum)[1][M], const experts_matrix &w, int64_t K, int64_t n,
                                                   const X &x, int rows, int lane) {
  int type = WN_GGUF_F32;
  const uint8_t *row[1] = {reinterpret_cast<const uint8_t *>(w.dense + n * K)};
  if (!w.dense) row[0] = wn_packed_at(w.packed, K, n, &type);
  if (w.wide) switch (type) {
#define WN_CASE(type)                                                                                                  \
  case type:                                                                                                           \
    return wn_matvec < type, M, 1, M == 1 ? 2 : 1 > (sum, row, K, x, lane);
      WN_PACKED_TYPES(WN_CASE)
#undef WN_CASE
    }
  for (int64_t k = lane; k < K; k += 32) {
    const float weight = experts_weight(w, K, n, k);
#pragma unroll
    for (int m = 0; m < M; m++)
      if (m < rows) sum[0][m] += x(m)[k] * weight;
  }
}
// One warp per row of weights, for all rows of a tile. Grid: tiles, rows of weights in eights.
template <int M> static __device__ __forceinline__ void experts_few_rows(const experts_product &p, experts_tile tile) {
  const int64_t n = (int64_t)blockIdx.y * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (n >= p.N) return;
  const auto x = [&](int m) {
    const int at = tile.first + min(m, tile.rows - 1);
    return p.a + (int64_t)(p.order ? p.order[at] / p.top : at) * p.K;
  };
  float sum[1][M] = {};
  experts_few<M>(sum, experts_of(p.table, p.out, tile.expert), p.K, n, x, tile.rows, lane);
#pragma unroll
  for (int m = 0; m < M; m++) {
    if (m >= tile.rows) continue;
    const float total = wn_warp_sum(sum[0][m]);
    if (lane == 0) p.c[(tile.first + m) * p.N + n] = total;
  }
}
static __global__ void __launch_bounds__(256, 2) experts_few_kernel(experts_product p) {
  const experts_tile tile = p.tile[blockIdx.x];
  if (tile.rows == 1)
    experts_few_rows<1>(p, tile);
  else if (tile.rows > 1)
    experts_few_rows<EXPERTS_FEW>(p, tile);
}

// d [M,N] += u^T v over an expert's rows; u [A,M], v [A,N]. Grid: columns and rows of d in 64s, experts.
struct experts_gradient {
  const experts_weights *table;
  const int32_t *count, *end;
  bool out;
  int64_t M, N;
  const float *u, *v;
};
template <bool BF16> static __global__ void __launch_bounds__(256) experts_gradient_kernel(experts_gradient x) {
  const int e = blockIdx.z, rows = x.count[e];
  const int64_t first = x.end[e] - rows;
  const experts_matrix &w = experts_of(x.table, x.out, e);
  if (rows == 0 || !w.d) return;
  wn_product p = {};
  p.M = x.M, p.N = x.N, p.K = rows, p.accumulate = true;
  p.a = {const_cast<float *>(x.u) + first * x.M, false}, p.a_row = 1, p.a_k = x.M;
  p.c = {w.d, false}, p.c_row = x.N;
  const wn_product_strided b = {{const_cast<float *>(x.v) + first * x.N, false}, 1, x.N, false};
  const int64_t m0 = (int64_t)blockIdx.y * 64, n0 = (int64_t)blockIdx.x * 64;
  BF16 ? wn_product_bf16_tile(p, b, m0, n0) : wn_product_tile(p, b, m0, n0);
}

// y = the shared expert times its factor, plus the row's experts times their weights, largest first.
struct experts_sum {
  int64_t M, C;
  int top;
  const float *shared, *factor; // [M,C], [M]; or NULL
  const float *out, *weight;    // [A,C] by place; [M,top] or NULL: all 1
  const int32_t *place;
  float *y; // [M,C]
  bool accumulate;
};
static __global__ void experts_sum_kernel(experts_sum a) {
  WN_GRID_LOOP(i, a.M * a.C) {
    const int64_t m = i / a.C, c = i % a.C;
    float y = a.shared ? a.factor[m] * a.shared[i] : a.accumulate ? a.y[i] : 0.0f;
    for (int k = 0; k < a.top; k++) {
      const float out = a.out[a.place[m * a.top + k] * a.C + c];
      y += a.weight ? a.weight[m * a.top + k] * out : out;
    }
    a.y[i] = y;
  }
}

// ---- backward ----

// For each row: the gradient of its factor, hidden . d_hidden; then multiplies both by the factor. One warp per row.
struct experts_scale {
  int64_t rows, F;
  float *hidden, *d_hidden; // [rows,F]
  const float *factor;
  const int32_t *order; // row r uses factor[order[r]]; NULL: factor[r]
  float *dw;            // [rows], or NULL
};
static __global__ void experts_scale_kernel(experts_scale a) {
  const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (r >= a.rows) return;
  const float factor = a.factor[a.order ? a.order[r] : r];
  float sum = 0;
  for (int64_t f = lane; f < a.F; f += 32) {
    const float h = a.hidden[r * a.F + f], d = a.d_hidden[r * a.F + f];
    sum += h * d;
    a.hidden[r * a.F + f] = factor * h, a.d_hidden[r * a.F + f] = factor * d;
  }
  sum = wn_warp_sum(sum);
  if (lane == 0 && a.dw) a.dw[r] = sum;
}

// The gradient of the input of the shared expert's sigmoid. One warp per row.
static __global__ void experts_gate_back_kernel(int64_t M, int64_t C, const float *dy, const float *out,
                                                const float *factor, float *z) {
  const int64_t m = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (m >= M) return;
  float sum = 0;
  for (int64_t c = lane; c < C; c += 32) sum += dy[m * C + c] * out[m * C + c];
  sum = wn_warp_sum(sum);
  if (lane == 0) z[m] = sum * factor[m] * (1.0f - factor[m]);
}

// From the gradients of the weights to those of the logits. One warp per row.
struct experts_route_back {
  int64_t M, T;
  int E, top;
  bool normalize;
  const float *prob, *weight, *dw; // [M,E], [M,top], [A] by place
  const int32_t *chosen, *place, *row_count;
  const double *share, *rows; // or NULL: no balance loss
  double balance_scale;
  float *dlogits; // [M,E]
};
static __global__ void experts_route_back_kernel(experts_route_back a) {
  const int64_t m = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (m >= a.M) return;
  const float *p = a.prob + m * a.E, *w = a.weight + m * a.top;
  const int32_t *chosen = a.chosen + m * a.top, *place = a.place + m * a.top;
  float *d = a.dlogits + m * a.E;
  const bool counts = a.share && experts_counts(a.row_count, a.T, m);
  float taken = 0, mean = 0, all = 0;
  for (int k = 0; k < a.top; k++) taken += p[chosen[k]], mean += w[k] * a.dw[place[k]];
  for (int e = lane; e < a.E; e += 32) {
    float x = counts ? (float)(a.balance_scale * a.E * a.share[e] / (*a.rows * *a.rows)) : 0.0f;
    for (int k = 0; k < a.top; k++)
      if (chosen[k] == e) x += a.normalize ? (a.dw[place[k]] - mean) / taken : a.dw[place[k]];
    d[e] = x;
    all += p[e] * x;
  }
  all = wn_warp_sum(all);
  for (int e = lane; e < a.E; e += 32) d[e] = p[e] * (d[e] - all);
}

#endif
