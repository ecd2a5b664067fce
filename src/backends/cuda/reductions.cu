// What a step reports (equations in ops.h): sequential sums in double, bitwise the same as on the CPU; and the
// gradients of losses. One thread adds each sum; the others bring its terms to shared memory.
#include "backends/cuda/best.cuh"
#include "backends/cuda/launch.cuh"
#include "ops/gates.h"

enum { TERMS = 1024 }; // terms brought at a time

// sum + term(0) + term(1) + ... in this order; valid on thread 0.
template <class Term> static __device__ double sum_in_order(double sum, int64_t n, Term term) {
  WN_SHARED(double, terms, [TERMS]);
  for (int64_t from = 0; from < n; from += TERMS) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < TERMS && from + i < n; i += blockDim.x) terms[i] = term(from + i);
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = n - from < TERMS ? (int)(n - from) : TERMS;
#pragma unroll 8
      for (int i = 0; i < count; i++) sum += terms[i];
    }
  }
  return sum;
}

// A position without a target adds zero, which does not change the sum.
static __global__ void loss_sums_kernel(int64_t M, const double *loss, const uint8_t *hit, const int32_t *targets,
                                        double *sums) {
  const double total = sum_in_order(sums[0], M, [=](int64_t m) { return targets[m] < 0 ? 0.0 : loss[m]; });
  int hits = 0;
  for (int64_t m = threadIdx.x; m < M; m += blockDim.x) hits += targets[m] >= 0 && hit[m] != 0;
  const int all = wn_block_sum(hits);
  if (threadIdx.x == 0) sums[0] = total, sums[1] += (double)all;
}
wn_status wn_cuda_loss_sums_forward(const struct wn_exec *exec, const struct wn_loss_sums *a) {
  WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), loss_sums_kernel, a->M, a->loss, a->hit, a->targets, a->sums);
  return wn_cuda_launched(exec, "loss_sums");
}

static __device__ __forceinline__ bool span_counts(const int32_t *row_count, int64_t T, int64_t row) {
  return !row_count || row % T < row_count[row / T];
}
static __global__ void span_sum_kernel(int64_t rows, int64_t heads, int64_t T, const int32_t *row_count, double tokens,
                                       const float *z, double *sum) {
  const double total = sum_in_order(
      0.0, rows * heads, [=](int64_t i) { return span_counts(row_count, T, i / heads) ? (double)z[i] : 0.0; });
  if (threadIdx.x == 0) *sum = total / tokens;
}
static __global__ void span_back_kernel(int64_t rows, int64_t heads, int64_t T, const int32_t *row_count, double each,
                                        float *dz) {
  WN_GRID_LOOP(i, rows * heads)
  if (span_counts(row_count, T, i / heads)) dz[i] = (float)((double)dz[i] + each);
}
wn_status wn_cuda_span_sum_forward(const struct wn_exec *exec, const struct wn_span_sum *a) {
  WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), span_sum_kernel, a->rows, a->heads, a->T, a->row_count,
            a->tokens, static_cast<const float *>(a->z), a->sum);
  return wn_cuda_launched(exec, "span_sum");
}
wn_status wn_cuda_span_sum_backward(const struct wn_exec *exec, const struct wn_span_sum *a) {
  if (a->rows == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->rows * a->heads), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), span_back_kernel, a->rows,
            a->heads, a->T, a->row_count, a->scale / a->tokens, static_cast<float *>(a->dz));
  return wn_cuda_launched(exec, "span_sum");
}

struct memory_rows {
  int64_t B, G, T;
  const int32_t *doc_start, *count;
};
// If a document begins at row t of sequence b: its end; else 0.
static __device__ int64_t document_end(const memory_rows &a, int64_t b, int64_t t) {
  const int64_t count = a.count ? a.count[b] : a.T;
  const int32_t *start = a.doc_start ? a.doc_start + b * a.T : nullptr;
  if (t >= count || (t > 0 && (!start || start[t] == start[t - 1]))) return 0;
  int64_t end = t + 1;
  while (end < count && (!start || start[end] == start[t])) end++;
  return end;
}
// Terms are ordered by document, then by selection; rows where no document begins add zeros.
static __global__ void memory_loss_kernel(memory_rows a, const float *M, double *sum) {
  const double total = sum_in_order(0.0, a.B * a.T * a.G, [=](int64_t i) {
    const int64_t b = i / (a.T * a.G), t = i / a.G % a.T, end = document_end(a, b, t);
    if (end == 0) return 0.0;
    const float *row = M + (b * a.G + i % a.G) * a.T;
    float longest = row[t];
    for (int64_t k = t + 1; k < end; k++) longest = row[k] > longest ? row[k] : longest;
    return (double)longest / (double)(end - t);
  });
  if (threadIdx.x == 0) *sum = total;
}
// One block per row of M; documents in order.
static __global__ void memory_back_kernel(memory_rows a, double scale, float *M) {
  const int64_t b = blockIdx.x / a.G, count = a.count ? a.count[b] : a.T;
  float *row = M + (int64_t)blockIdx.x * a.T;
  for (int64_t first = 0; first < count;) {
    const int64_t end = document_end(a, b, first);
    best longest = {-INFINITY, INT32_MAX};
    for (int64_t t = first + threadIdx.x; t < end; t += blockDim.x) longest = best_of(longest, best{row[t], (int)t});
    longest = block_best(longest);
    for (int64_t t = first + threadIdx.x; t < end; t += blockDim.x)
      row[t] = t == longest.index ? (float)(scale / (double)(end - first)) : 0.0f;
    first = end;
  }
  for (int64_t t = count + threadIdx.x; t < a.T; t += blockDim.x) row[t] = 0;
}
static memory_rows memory_rows_of(const struct wn_memory_loss *a) {
  return {a->B, a->G, a->T, a->doc_start, a->count};
}
wn_status wn_cuda_memory_loss_forward(const struct wn_exec *exec, const struct wn_memory_loss *a) {
  WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), memory_loss_kernel, memory_rows_of(a),
            static_cast<const float *>(a->M), a->sum);
  return wn_cuda_launched(exec, "memory_loss");
}
wn_status wn_cuda_memory_loss_backward(const struct wn_exec *exec, const struct wn_memory_loss *a) {
  if (a->B == 0) return WN_OK;
  WN_LAUNCH((unsigned)(a->B * a->G), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), memory_back_kernel, memory_rows_of(a),
            a->scale, static_cast<float *>(a->M));
  return wn_cuda_launched(exec, "memory_loss");
}

// The rows of token t's document from t on; 0: padding. Starts never fall along a sequence.
static __device__ int64_t rows_left(const memory_rows &a, int64_t b, int64_t t) {
  const int64_t count = a.count ? a.count[b] : a.T;
  const int32_t *start = a.doc_start ? a.doc_start + b * a.T : nullptr;
  if (t >= count) return 0;
  int64_t low = t + 1, high = count;
  while (start && low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (start[middle] == start[t])
      low = middle + 1;
    else
      high = middle;
  }
  return high - t;
}
// What all keys would count if nothing were given up, for every thread; 1 without keys. Whole numbers, in any order.
static __device__ double gate_all(const memory_rows &a, bool ages) {
  double mine = 0;
  for (int64_t i = threadIdx.x; i < a.B * a.T; i += blockDim.x) {
    const int64_t left = rows_left(a, i / a.T, i % a.T);
    mine += (double)(ages || left == 0 ? left : 1);
  }
  const double all = wn_block_sum(mine);
  return all > 0 ? all * (double)a.G : 1;
}
// a.G is the number of heads.
static __global__ void gate_share_kernel(memory_rows a, bool ages, const float *c, double *sum) {
  const double all = gate_all(a, ages);
  const double total = sum_in_order(0.0, a.B * a.T * a.G, [=](int64_t i) {
    const int64_t left = rows_left(a, i / a.G / a.T, i / a.G % a.T);
    double slope;
    return left > 0 ? wn_gate_kept(ages, (double)c[i], left, &slope) : 0.0;
  });
  if (threadIdx.x == 0) *sum = total / all;
}
struct gate_limit {
  double scale, most;
  const double *sums;
  int64_t layers;
};
static __global__ void gate_share_back_kernel(memory_rows a, bool ages, gate_limit of, const float *c, float *dc) {
  double kept = 0;
  for (int64_t l = 0; of.sums && l < of.layers; l++) kept += of.sums[l] / (double)of.layers;
  if (of.sums && !(kept > of.most)) return;
  const double each = of.scale / gate_all(a, ages);
  WN_GRID_LOOP(i, a.B * a.T * a.G) {
    const int64_t left = rows_left(a, i / a.G / a.T, i / a.G % a.T);
    double slope;
    if (left == 0) continue;
    wn_gate_kept(ages, (double)c[i], left, &slope);
    dc[i] = (float)((double)dc[i] + each * slope);
  }
}
static memory_rows gate_rows_of(const struct wn_gate_share *a) {
  return {a->B, a->heads, a->T, a->doc_start, a->count};
}
wn_status wn_cuda_gate_share_forward(const struct wn_exec *exec, const struct wn_gate_share *a) {
  WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), gate_share_kernel, gate_rows_of(a), a->ages,
            static_cast<const float *>(a->c), a->sum);
  return wn_cuda_launched(exec, "gate_share");
}
// Few blocks, as each counts the keys.
wn_status wn_cuda_gate_share_backward(const struct wn_exec *exec, const struct wn_gate_share *a) {
  const unsigned blocks = wn_cuda_blocks(a->B * a->T * a->heads);
  WN_LAUNCH(blocks < 32 ? blocks : 32, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), gate_share_back_kernel,
            gate_rows_of(a), a->ages, gate_limit{a->scale, a->most, a->sums, a->layers},
            static_cast<const float *>(a->c), static_cast<float *>(a->dc));
  return wn_cuda_launched(exec, "gate_share");
}

// y = f x + h y.
static __global__ void mix_kernel(int64_t n, double f, double h, const double *sumsq, const float *x, float *y) {
  const float factor = (float)(sumsq ? f / (sqrt(*sumsq) + 1e-7) : f), rest = (float)h;
  WN_GRID_LOOP(i, n) y[i] = rest != 0 ? factor * x[i] + rest * y[i] : factor * x[i];
}
wn_status wn_cuda_mix_forward(const struct wn_exec *exec, const struct wn_mix *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), mix_kernel, a->n, a->f, a->h, a->sumsq,
            static_cast<const float *>(a->x), static_cast<float *>(a->y));
  return wn_cuda_launched(exec, "mix");
}

static __global__ void clamp_kernel(int64_t n, float low, float high, float *x) {
  WN_GRID_LOOP(i, n) x[i] = fminf(fmaxf(x[i], low), high);
}
wn_status wn_cuda_clamp_forward(const struct wn_exec *exec, const struct wn_clamp *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), clamp_kernel, a->n, (float)a->low,
            (float)a->high, static_cast<float *>(a->x));
  return wn_cuda_launched(exec, "clamp");
}

static __global__ void convert_kernel(int64_t n, wn_numbers x, wn_numbers y) {
  WN_GRID_LOOP(i, n) y.set(i, x[i]);
}
wn_status wn_cuda_convert_forward(const struct wn_exec *exec, const struct wn_convert *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), convert_kernel, a->n,
            wn_numbers_of(a->x, a->x_type), wn_numbers_of(a->y, a->y_type));
  return wn_cuda_launched(exec, "convert");
}

static __global__ void sigmoid_kernel(int64_t n, float *x) {
  WN_GRID_LOOP(i, n) x[i] = 1.0f / (1.0f + expf(-x[i]));
}
static __global__ void sigmoid_back_kernel(int64_t n, const float *x, float *dx) {
  WN_GRID_LOOP(i, n) dx[i] *= x[i] * (1.0f - x[i]);
}
static __global__ void log_sigmoid_kernel(int64_t n, double floor, float *x) {
  WN_GRID_LOOP(i, n) x[i] = (float)wn_gate_log((double)x[i], floor, false);
}
static __global__ void log_sigmoid_back_kernel(int64_t n, float least, const float *x, float *dx) {
  WN_GRID_LOOP(i, n) dx[i] = x[i] <= least ? 0.0f : (float)((double)dx[i] * -expm1((double)x[i]));
}
// set(t, `sum` and the terms up to t): a block has a column, a thread a run of its tokens.
template <class Term, class Set> static __device__ void running_sums(double sum, int64_t T, Term term, Set set) {
  WN_SHARED(double, parts, [WN_CUDA_THREADS]);
  const int64_t each = (T + WN_CUDA_THREADS - 1) / WN_CUDA_THREADS, from = threadIdx.x * each;
  const int64_t to = from + each < T ? from + each : T;
  double mine = 0;
  for (int64_t t = from; t < to; t++) mine += term(t);
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (int n = 0; n < (int)threadIdx.x; n++) sum += parts[n];
  for (int64_t t = from; t < to; t++) set(t, sum += term(t));
}
// Forward's sums are exact (ops.h), so their bits are the CPU's whatever their order is.
static __global__ void sums_kernel(int64_t T, int64_t W, struct wn_stride s, float *x, const double *before,
                                   double *after) {
  const int64_t w = blockIdx.x;
  float *at = x + w / W * s.b + w % W * s.h;
  running_sums(
      before ? before[w] : 0.0, T, [=](int64_t t) { return (double)at[t * s.t]; },
      [=](int64_t t, double sum) {
        at[t * s.t] = (float)sum;
        if (after && t == T - 1) after[w] = sum;
      });
}
static __global__ void sums_back_kernel(int64_t T, int64_t W, const float *x, float *dx) {
  const int64_t first = blockIdx.x / W * T * W + blockIdx.x % W;
  const float *at = x + first;
  float *d = dx + first;
  running_sums(
      0.0, T, [=](int64_t t) { return (double)d[(T - 1 - t) * W]; },
      [=](int64_t t, double sum) {
        const int64_t i = T - 1 - t;
        d[i * W] = (float)(sum * -expm1((double)at[i * W] - (i > 0 ? (double)at[(i - 1) * W] : 0.0)));
      });
}
wn_status wn_cuda_sigmoid_forward(const struct wn_exec *exec, const struct wn_sigmoid *a) {
  float *x = static_cast<float *>(a->x);
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (a->n == 0) return WN_OK;
  if (a->kind == WN_SIGMOID)
    WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, stream, sigmoid_kernel, a->n, x);
  else if (a->kind == WN_SIGMOID_LOG)
    WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, stream, log_sigmoid_kernel, a->n, a->floor, x);
  else
    WN_LAUNCH((unsigned)(a->n / a->T), WN_CUDA_THREADS, 0, stream, sums_kernel, a->T, a->W, wn_sums_stride(a), x,
              a->from, a->to);
  return wn_cuda_launched(exec, "sigmoid");
}
wn_status wn_cuda_sigmoid_backward(const struct wn_exec *exec, const struct wn_sigmoid *a) {
  const float *x = static_cast<const float *>(a->x);
  float *dx = static_cast<float *>(a->dx);
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (a->n == 0) return WN_OK;
  if (a->kind == WN_SIGMOID)
    WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, stream, sigmoid_back_kernel, a->n, x, dx);
  else if (a->kind == WN_SIGMOID_LOG)
    WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, stream, log_sigmoid_back_kernel, a->n,
              (float)wn_gate_rounded(log(a->floor), false), x, dx);
  else
    WN_LAUNCH((unsigned)(a->n / a->T), WN_CUDA_THREADS, 0, stream, sums_back_kernel, a->T, a->W, x, dx);
  return wn_cuda_launched(exec, "sigmoid");
}
