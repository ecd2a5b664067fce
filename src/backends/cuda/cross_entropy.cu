// Softmax cross-entropy (equations in ops.h), one block per row; and the sums of attention weights over rows.
#include "backends/cuda/best.cuh"
#include "backends/cuda/launch.cuh"

// V and ld are in units of EACH.
template <int EACH>
static __global__ void cross_entropy_kernel(int64_t V, wn_numbers logits, int64_t ld, const int32_t *targets,
                                            float scale, float cap, wn_numbers dlogits, double *loss, uint8_t *hit) {
  const int64_t m = blockIdx.x, at = m * ld;
  const int32_t target = targets[m];
  float x[EACH];
  best top = {-INFINITY, INT32_MAX};
  for (int64_t v = threadIdx.x; v < V; v += blockDim.x) {
    logits.get((at + v) * EACH, x);
#pragma unroll
    for (int k = 0; k < EACH; k++) top = best_of(top, best{x[k], (int)(v * EACH) + k});
  }
  top = block_best(top);
  if (hit && threadIdx.x == 0) hit[m] = target == top.index;
  if (target < 0) {
    if (threadIdx.x == 0) loss[m] = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) x[k] = 0;
    if (dlogits.p)
      for (int64_t v = threadIdx.x; v < V; v += blockDim.x) dlogits.put((at + v) * EACH, x);
    return;
  }
  float sum = 0;
  for (int64_t v = threadIdx.x; v < V; v += blockDim.x) {
    logits.get((at + v) * EACH, x);
#pragma unroll
    for (int k = 0; k < EACH; k++) sum += expf(x[k] - top.value);
  }
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) loss[m] = (double)top.value + log((double)sum) - (double)logits[at * EACH + target];
  if (!dlogits.p) return;
  const float share = 1.0f / sum;
  __syncthreads(); // dlogits may alias logits
  for (int64_t v = threadIdx.x; v < V; v += blockDim.x) {
    logits.get((at + v) * EACH, x);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const float through = cap > 0 ? 1.0f - x[k] / cap * (x[k] / cap) : 1.0f;
      x[k] = (expf(x[k] - top.value) * share - (v * EACH + k == target ? 1.0f : 0.0f)) * scale * through;
    }
    dlogits.put((at + v) * EACH, x);
  }
}

wn_status wn_cuda_cross_entropy_forward(const struct wn_exec *exec, const struct wn_cross_entropy *a) {
  const wn_numbers logits = wn_numbers_of(a->logits, WN_F32), dlogits = wn_numbers_of(a->dlogits, WN_F32);
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (a->M == 0) return WN_OK;
  if (a->V % 8 == 0 && wn_by_eights(a->logits, a->ld) && wn_by_eights(a->dlogits, a->ld))
    WN_LAUNCH((unsigned)a->M, WN_CUDA_THREADS, 0, stream, cross_entropy_kernel<8>, a->V / 8, logits, a->ld / 8,
              a->targets, (float)a->scale, (float)a->cap, dlogits, a->loss, a->hit);
  else
    WN_LAUNCH((unsigned)a->M, WN_CUDA_THREADS, 0, stream, cross_entropy_kernel<1>, a->V, logits, a->ld, a->targets,
              (float)a->scale, (float)a->cap, dlogits, a->loss, a->hit);
  return wn_cuda_launched(exec, "cross_entropy");
}

struct sums {
  int64_t R, N, S, ld, share, ld_sink;
  float scale;
  const float *logits, *add, *extra, *factor, *sink;
  float *of_row; // [R,2]: the row's largest logit, and its sum of exponentials
  float *to;
};
static __device__ __forceinline__ float sums_logit(const sums &a, int64_t r, int64_t c) {
  const float L = a.scale * a.logits[r * a.ld + c] + a.add[r / a.share * a.N + c];
  return a.extra ? L + a.extra[r * a.N + c] : L;
}
static __device__ __forceinline__ float sums_weight(const sums &a, int64_t r, int64_t c, float top) {
  const float e = expf(sums_logit(a, r, c) - top);
  return a.factor ? a.factor[r * a.N + c] * e : e;
}
static __global__ void sums_rows(sums a) {
  const int64_t r = blockIdx.x;
  best top = {-INFINITY, INT32_MAX};
  for (int64_t c = threadIdx.x; c < a.N; c += blockDim.x) top = best_of(top, best{sums_logit(a, r, c), 0});
  for (int64_t s = threadIdx.x; s < a.S; s += blockDim.x)
    top = best_of(top, best{a.scale * a.sink[r * a.ld_sink + s], 0});
  top = block_best(top);
  float sum = 0;
  if (top.value > -INFINITY) {
    for (int64_t s = threadIdx.x; s < a.S; s += blockDim.x)
      sum += expf(a.scale * a.sink[r * a.ld_sink + s] - top.value);
    for (int64_t c = threadIdx.x; c < a.N; c += blockDim.x) sum += sums_weight(a, r, c, top.value);
  }
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) a.of_row[2 * r] = top.value, a.of_row[2 * r + 1] = sum;
}
static __global__ void sums_columns(sums a) {
  WN_GRID_LOOP(c, a.N) {
    float sum = a.to[c];
    for (int64_t r = 0; r < a.R; r++) {
      const float top = a.of_row[2 * r], of_row = a.of_row[2 * r + 1];
      if (of_row > 0) sum += sums_weight(a, r, c, top) / of_row;
    }
    a.to[c] = sum;
  }
}

size_t wn_cuda_attention_sums_scratch(const struct wn_exec *exec, const struct wn_attention_sums *a, bool backward) {
  (void)exec, (void)backward;
  return (size_t)a->R * 2 * sizeof(float);
}
wn_status wn_cuda_attention_sums_forward(const struct wn_exec *exec, const struct wn_attention_sums *a) {
  if (a->R == 0 || a->N == 0) return WN_OK;
  sums k;
  k.R = a->R, k.N = a->N, k.S = a->S, k.ld = a->ld, k.share = a->share, k.ld_sink = a->ld_sink;
  k.scale = (float)a->scale, k.logits = static_cast<const float *>(a->logits),
  k.add = static_cast<const float *>(a->add);
  k.extra = static_cast<const float *>(a->extra), k.factor = static_cast<const float *>(a->factor);
  k.sink = static_cast<const float *>(a->sink), k.of_row = static_cast<float *>(exec->scratch);
  k.to = static_cast<float *>(a->sums);
  WN_LAUNCH((unsigned)k.R, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), sums_rows, k);
  WN_LAUNCH(wn_cuda_blocks(k.N), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), sums_columns, k);
  return wn_cuda_launched(exec, "attention_sums");
}
