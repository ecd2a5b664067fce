// Embedding: gathers rows of tables; backward adds each row of dy to the table row that it came from, in order.
//
// Rows of dy are divided into tiles of 256. A table tells which tiles contain an index of each bucket (indices that are
// equal modulo BUCKETS), so a block finds the rows with its index in few comparisons. It adds them in double: otherwise
// a frequent token's gradient would be rounded at every addition.
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

enum { TILE = WN_CUDA_THREADS, BUCKETS = 4096 };
static __device__ __forceinline__ int64_t embedding_bucket(int32_t index) {
  return index % BUCKETS;
}

// seen[bucket][tiles]: does the tile have an index of that bucket? One block per tile.
static __global__ void embedding_tiles(int64_t M, const int32_t *index, uint8_t *seen) {
  const int64_t tiles = gridDim.x, t = blockIdx.x, m = t * TILE + threadIdx.x;
  for (int64_t b = threadIdx.x; b < BUCKETS; b += TILE) seen[b * tiles + t] = 0;
  __syncthreads();
  if (m < M) seen[embedding_bucket(index[m]) * tiles + t] = 1;
}

// Searches for a block's index: in 256 tiles at a time, and in the rows of a tile.
struct embedding_search {
  const int32_t *index;
  const uint8_t *of_bucket; // [tiles]
  int32_t mine;
  uint32_t *word; // [8], in shared memory: bits of the last result
  __device__ __forceinline__ void answer(bool yes) const {
    const uint32_t bits = __ballot_sync(~0u, yes);
    __syncthreads(); // words may still be read
    if (threadIdx.x % 32 == 0) word[threadIdx.x / 32] = bits;
    __syncthreads();
  }
  // Finds tiles in [from, from + 256), below `end`, that may have the index.
  __device__ __forceinline__ void in_tiles(int64_t from, int64_t end) const {
    const int64_t t = from + threadIdx.x;
    answer(t < end && of_bucket[t]);
  }
  // Finds rows of tile t in [from, end) that have it.
  __device__ __forceinline__ void in_rows(int64_t t, int64_t from, int64_t end) const {
    const int64_t m = t * TILE + threadIdx.x;
    answer(m >= from && m < end && index[m] == mine);
  }
  __device__ __forceinline__ int count() const {
    int all = 0;
    for (int w = 0; w < TILE / 32; w++) all += __popc(word[w]);
    return all;
  }
  // Lists the positions found, in order.
  __device__ __forceinline__ void list(uint8_t *place) const {
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    int before = __popc(word[w] & ((1u << lane) - 1));
    for (int i = 0; i < w; i++) before += __popc(word[i]);
    if (word[w] >> lane & 1) place[before] = (uint8_t)threadIdx.x;
    __syncthreads();
  }
};

// One block per row of dy. The block of the first row with an index adds all rows that have it, in order: COLUMNS per
// thread, AT_ONCE rows at a time.
enum { COLUMNS = 4, AT_ONCE = 8 };
static __global__ void embedding_sums(int64_t M, int64_t C, int64_t tiles, const int32_t *index, const uint8_t *seen,
                                      double scale, const float *dy, float *to) {
  WN_SHARED(uint32_t, rows_found, [TILE / 32]);
  WN_SHARED(uint32_t, tiles_found, [TILE / 32]);
  WN_SHARED(uint8_t, row, [TILE]);
  const int64_t first = blockIdx.x, own = first / TILE;
  const int32_t mine = index[first];
  embedding_search rows = {index, seen + embedding_bucket(mine) * tiles, mine, rows_found};
  embedding_search places = rows;
  places.word = tiles_found;
  rows.in_rows(own, own * TILE, first);
  if (rows.count() > 0) return;
  for (int64_t from = 0; from < own; from += TILE) {
    places.in_tiles(from, own);
    for (int t = 0; t < TILE; t++) {
      if (!(tiles_found[t / 32] >> t % 32 & 1)) continue;
      rows.in_rows(from + t, 0, M);
      if (rows.count() > 0) return;
    }
  }
  for (int64_t c0 = 0; c0 < C; c0 += COLUMNS * TILE) {
    double sum[COLUMNS] = {};
    for (int64_t from = own; from < tiles; from += TILE) {
      places.in_tiles(from, tiles);
      for (int t = 0; t < TILE; t++) {
        if (!(tiles_found[t / 32] >> t % 32 & 1)) continue;
        rows.in_rows(from + t, first, M);
        const int count = rows.count();
        rows.list(row);
        for (int i = 0; i < count; i += AT_ONCE) {
          float x[AT_ONCE][COLUMNS];
#pragma unroll
          for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
              const int64_t c = c0 + k * TILE + threadIdx.x;
              x[j][k] = i + j < count && c < C ? dy[((from + t) * TILE + row[i + j]) * C + c] : 0.0f;
            }
#pragma unroll
          for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) sum[k] += (double)x[j][k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
      const int64_t c = c0 + k * TILE + threadIdx.x;
      float *at = to + mine * C + c;
      if (c < C) *at = (float)((double)*at + scale * sum[k]);
    }
  }
}

size_t wn_cuda_embedding_scratch(const struct wn_exec *exec, const struct wn_embedding *a, bool backward) {
  (void)exec;
  return backward ? (size_t)wn_cuda_parts(a->M, TILE) * BUCKETS : 0;
}
static void embedding_add(const struct wn_exec *exec, int64_t M, int64_t C, const int32_t *index, double scale,
                          const void *dy, void *to) {
  uint8_t *seen = static_cast<uint8_t *>(exec->scratch);
  const int64_t tiles = wn_cuda_parts(M, TILE);
  const cudaStream_t stream = wn_cuda_stream(exec);
  WN_LAUNCH((unsigned)tiles, TILE, 0, stream, embedding_tiles, M, index, seen);
  WN_LAUNCH((unsigned)M, TILE, 0, stream, embedding_sums, M, C, tiles, index, static_cast<const uint8_t *>(seen), scale,
            static_cast<const float *>(dy), static_cast<float *>(to));
}
wn_status wn_cuda_embedding_backward(const struct wn_exec *exec, const struct wn_embedding *a) {
  if (a->M == 0) return WN_OK;
  if (a->dtok) embedding_add(exec, a->M, a->C, a->ids, a->scale > 0 ? a->scale : 1, a->dy, a->dtok);
  if (a->dpos) embedding_add(exec, a->M, a->C, a->positions, 1, a->dy, a->dpos);
  return wn_cuda_launched(exec, "embedding");
}
