/* Biases (ops/score.h) over stored logits: sums of the logits' gradients by distance, the gradients of parameters from
 * these, and the kernels of a map that the backend does not compile itself, such as a test's. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_SCORE_CUH
#define WN_BACKENDS_CUDA_ATTENTION_SCORE_CUH

#include "backends/cuda/attention/stored.cuh"

namespace wn_cuda {

/* What these kernels get. */
struct score_args {
  stored_args s;
  wn_score_map map;
  bool selecting; /* values: of the selecting heads, [B,G,R,ld] */
  float *sums;    /* [H][distances] by distance, from `first` on */
  int first, distances;
};

/* sums += the gradients of the chunk's logits. Grid: distances in blocks, heads. */
static __global__ void __launch_bounds__(STORED_THREADS) score_sum(const score_args w) {
  const stored_args &s = w.s;
  const int u = blockIdx.x * STORED_THREADS + threadIdx.x, h = blockIdx.y;
  if (u >= w.distances) return;
  float sum = 0;
  for (int b = 0; b < s.a.B; b++)
    for (int i = 0; i < s.a.rows; i++) {
      const row_place row(s, b, i);
      const int j = row.position - (w.first + u);
      if (j >= row.first && j <= row.last) sum += s.dA[matrix_row(s, b, s.a.H, h, i, s.ld) + j];
    }
  w.sums[(int64_t)h * w.distances + u] += sum;
}

/* The functions of a map. */
typedef double score_head(const wn_score_map *, wn_score_at);
typedef double score_value(const wn_score_map *, double, wn_score_at);
typedef double score_slope(const wn_score_map *, wn_score_at, int64_t);
typedef wn_interval score_reach(const wn_score_map *, bool, int64_t);

/* Adds a map's values, in units of the products. Grid: rows, heads, sequences. */
template <score_head HEAD, score_value VALUE>
__global__ void __launch_bounds__(STORED_THREADS) score_values(const score_args w) {
  const stored_args &s = w.s;
  const int n = blockIdx.y, b = blockIdx.z, heads = w.selecting ? s.a.G : s.a.H;
  const int h = w.selecting ? n * (s.a.H / s.a.G) + s.a.sel.head : n;
  const row_place row(s, b, blockIdx.x);
  wn_score_at at = model_head(s.a, h);
  at.open = s.open;
  const double of_head = HEAD(&w.map, at);
  float *x = (w.selecting ? s.S : s.raw) + matrix_row(s, b, heads, n, blockIdx.x, s.ld);
  for (int j = row.first + threadIdx.x; j <= row.last; j += STORED_THREADS) {
    at.x = stored_distance(s, b, h / (s.a.H / s.a.Hkv), row, j);
    x[j] += (float)(VALUE(&w.map, of_head, at) / (double)s.a.scale);
  }
}

/* Adds to dtheta from the sums by distance. Grid: parameters, heads. */
template <score_slope SLOPE, score_reach REACH>
__global__ void __launch_bounds__(STORED_THREADS) score_gradient(const score_args w) {
  const int64_t k = blockIdx.x;
  const int h = blockIdx.y, end = w.first + w.distances - 1;
  wn_score_at at = model_head(w.s.a, h);
  at.open = w.s.open;
  const wn_interval reach = REACH(&w.map, at.open, k);
  const int low = (int)(reach.first > w.first ? reach.first : w.first),
            high = (int)(reach.last < end ? reach.last : end);
  float sum = 0;
  for (int x = low + threadIdx.x; x <= high; x += STORED_THREADS) {
    at.x = x;
    sum += w.sums[(int64_t)h * w.distances + x - w.first] * (float)SLOPE(&w.map, at, k);
  }
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) static_cast<float *>(w.map.dtheta)[k * w.map.stride + at.head] += sum;
}

/* A map's kernels. */
struct score_kernels {
  void (*values)(const score_args &w, dim3 grid, cudaStream_t stream);
  void (*gradient)(const score_args &w, dim3 grid, cudaStream_t stream);
};
/* Makes NAME_kernels from the functions of ops/score.h. */
#define WN_SCORE_KERNELS(NAME)                                                                                         \
  static void NAME##_add(const score_args &w, dim3 grid, cudaStream_t stream) {                                        \
    WN_LAUNCH(grid, dim3(STORED_THREADS), 0, stream, (score_values<NAME##_head, NAME##_value>), w);                    \
  }                                                                                                                    \
  static void NAME##_back(const score_args &w, dim3 grid, cudaStream_t stream) {                                       \
    WN_LAUNCH(grid, dim3(STORED_THREADS), 0, stream, (score_gradient<NAME##_slope, NAME##_reach>), w);                 \
  }                                                                                                                    \
  static const score_kernels NAME##_kernels = {NAME##_add, NAME##_back};

WN_SCORE_KERNELS(buckets)

/* The kernels of a map; NULL: it has none. */
inline const score_kernels *score_kernels_for(const wn_score_kind *kind) {
  return kind->id == WN_SCORE_BUCKETS ? &buckets_kernels : static_cast<const score_kernels *>(kind->kernels);
}

} // namespace wn_cuda

#endif
