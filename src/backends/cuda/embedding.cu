// Embedding: rows of tables gathered; backward adds dy's rows to the rows that they came from, in their order.
//
// next[m] is the next row of dy with m's index, found by looking ahead through the indices (M^2 / 2 comparisons at
// most, of integers in shared memory); the first row of each index then walks its list, a block of columns at a time,
// in double: a frequent token's gradient would otherwise be rounded at every addition.
#include "backends/cuda/launch.cuh"
#include "backends/cuda/packed.cuh"

static __global__ void embedding_kernel(int64_t M, int64_t C, const int32_t *ids, const int32_t *positions,
                                        const float *tok, wn_packed_matrix packed, float scale, const float *pos,
                                        float *y) {
  WN_GRID_LOOP(i, M * C) {
    const int64_t m = i / C, c = i % C;
    float t;
    if (packed.count > 0) {
      int type;
      const uint8_t *row = wn_packed_at(packed, C, ids[m], &type);
      t = wn_packed_element(type, row, c);
    } else {
      t = tok[ids[m] * C + c];
    }
    y[i] = pos ? scale * t + pos[positions[m] * C + c] : scale * t;
  }
}

wn_status wn_cuda_embedding_forward(const struct wn_exec *exec, const struct wn_embedding *a) {
  wn_packed_matrix packed = {};
  if (a->packed) packed = wn_packed_matrix_of(a->packed);
  if (a->M * a->C == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->M * a->C), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), embedding_kernel, a->M, a->C, a->ids,
            a->positions, static_cast<const float *>(a->tok), packed, a->scale > 0 ? (float)a->scale : 1.0f,
            static_cast<const float *>(a->pos), static_cast<float *>(a->y));
  return wn_cuda_launched(exec, "embedding");
}

// next[M]: M ends a list. first[M]: 1 where no row before has the index.
static __global__ void embedding_lists(int64_t M, const int32_t *index, int32_t *next, int32_t *first) {
  WN_SHARED(int32_t, seen, [WN_CUDA_THREADS]);
  const int64_t m = (int64_t)blockIdx.x * WN_CUDA_THREADS + threadIdx.x;
  const int32_t mine = m < M ? index[m] : -1;
  int64_t after = M;
  bool is_first = true;
  for (int64_t from = 0; from < M; from += WN_CUDA_THREADS) {
    __syncthreads();
    seen[threadIdx.x] = from + threadIdx.x < M ? index[from + threadIdx.x] : -1;
    __syncthreads();
    if (m >= M || after < M) continue;
    for (int i = 0; i < WN_CUDA_THREADS && from + i < M; i++) {
      if (seen[i] != mine) continue;
      if (from + i < m) is_first = false;
      if (from + i > m) {
        after = from + i;
        break;
      }
    }
  }
  if (m >= M) return;
  next[m] = (int32_t)after;
  first[m] = is_first;
}
static __global__ void embedding_sums(int64_t M, int64_t C, const int32_t *index, const int32_t *next,
                                      const int32_t *first, double scale, const float *dy, float *to) {
  const int64_t m = blockIdx.x;
  if (!first[m]) return;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    double sum = 0;
    for (int64_t i = m; i < M; i = next[i]) sum += (double)dy[i * C + c];
    float *at = to + index[m] * C + c;
    *at = (float)((double)*at + scale * sum);
  }
}

size_t wn_cuda_embedding_scratch(const struct wn_exec *exec, const struct wn_embedding *a, bool backward) {
  (void)exec;
  return backward ? (size_t)a->M * 2 * sizeof(int32_t) : 0;
}
static void embedding_add(const struct wn_exec *exec, int64_t M, int64_t C, const int32_t *index, double scale,
                          const void *dy, void *to) {
  int32_t *next = static_cast<int32_t *>(exec->scratch), *first = next + M;
  const cudaStream_t stream = wn_cuda_stream(exec);
  WN_LAUNCH((unsigned)wn_cuda_parts(M, WN_CUDA_THREADS), WN_CUDA_THREADS, 0, stream, embedding_lists, M, index, next,
            first);
  WN_LAUNCH((unsigned)M, WN_CUDA_THREADS, 0, stream, embedding_sums, M, C, index, static_cast<const int32_t *>(next),
            static_cast<const int32_t *>(first), scale, static_cast<const float *>(dy), static_cast<float *>(to));
}
wn_status wn_cuda_embedding_backward(const struct wn_exec *exec, const struct wn_embedding *a) {
  if (a->M == 0) return WN_OK;
  if (a->dtok) embedding_add(exec, a->M, a->C, a->ids, a->scale > 0 ? a->scale : 1, a->dy, a->dtok);
  if (a->dpos) embedding_add(exec, a->M, a->C, a->positions, 1, a->dy, a->dpos);
  return wn_cuda_launched(exec, "embedding");
}
