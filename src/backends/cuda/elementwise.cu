// Kernels that take one pass over n values: residual addition, soft-capping, scaling, dropout, the optimizers. And the
// sum of squares, whose order depends only on n.
#include "backends/cuda/launch.cuh"
#include "base/rng.h"
#include "ops/gates.h"

static __global__ void add_kernel(int64_t n, const float *x, const float *z, float *y) {
  WN_GRID_LOOP(i, n) y[i] = x[i] + z[i];
}
wn_status wn_cuda_add_forward(const struct wn_exec *exec, const struct wn_add *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), add_kernel, a->n,
            static_cast<const float *>(a->x), static_cast<const float *>(a->z), static_cast<float *>(a->y));
  return wn_cuda_launched(exec, "add");
}

static __global__ void softcap_kernel(int64_t n, float cap, float *x) {
  WN_GRID_LOOP(i, n) x[i] = cap * tanhf(x[i] / cap);
}
wn_status wn_cuda_softcap_forward(const struct wn_exec *exec, const struct wn_softcap *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), softcap_kernel, a->n, (float)a->cap,
            static_cast<float *>(a->x));
  return wn_cuda_launched(exec, "softcap");
}

static __global__ void scale_kernel(int64_t n, float factor, float *x) {
  WN_GRID_LOOP(i, n) x[i] *= factor;
}
wn_status wn_cuda_scale_forward(const struct wn_exec *exec, const struct wn_scale *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), scale_kernel, a->n, (float)a->factor,
            static_cast<float *>(a->x));
  return wn_cuda_launched(exec, "scale");
}

// A thread has the four values of one counter. limit: the smallest word that keeps.
static __global__ void dropout_kernel(int64_t n, uint64_t limit, float factor, uint64_t seed, uint64_t stream,
                                      wn_numbers x) {
  WN_GRID_LOOP(four, (n + 3) / 4) {
    uint32_t word[4];
    wn_philox(seed, stream, (uint64_t)four, word);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int64_t i = four * 4 + k;
      if (i < n) x.set(i, word[k] >= limit ? x[i] * factor : 0.0f);
    }
  }
}
wn_status wn_cuda_dropout_forward(const struct wn_exec *exec, const struct wn_dropout *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks((a->n + 3) / 4), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), dropout_kernel, a->n,
            (uint64_t)ceil(a->p * 4294967296.0), (float)(1.0 / (1.0 - a->p)), a->seed, a->stream,
            wn_numbers_of(a->x, wn_array_type(a->type, exec->dtype)));
  return wn_cuda_launched(exec, "dropout");
}

// A thread has the four values of one counter.
static __global__ void noise_kernel(int64_t n, uint64_t seed, uint64_t stream, float *x) {
  WN_GRID_LOOP(four, (n + 3) / 4) {
    uint32_t word[4];
    wn_philox(seed, stream, (uint64_t)four, word);
    for (int64_t i = four * 4; i < n && i < four * 4 + 4; i++)
      x[i] = (float)((double)x[i] + wn_gate_noise(word[i - four * 4]));
  }
}
wn_status wn_cuda_noise_forward(const struct wn_exec *exec, const struct wn_noise *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks((a->n + 3) / 4), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), noise_kernel, a->n, a->seed,
            a->stream, static_cast<float *>(a->x));
  return wn_cuda_launched(exec, "noise");
}

struct adamw {
  float beta1, rest1, beta2, rest2, lr, decay, eps, g, c1, c2; // rest: 1 - beta; c: 1 / (1 - beta^step)
};
static __global__ void adamw_kernel(int64_t n, adamw o, float *p, const float *g, float *m, float *v) {
  WN_GRID_LOOP(i, n) {
    const float d = g[i] * o.g;
    const float m1 = o.beta1 * m[i] + o.rest1 * d, v1 = o.beta2 * v[i] + o.rest2 * d * d;
    m[i] = m1;
    v[i] = v1;
    p[i] -= o.lr * (m1 * o.c1 / (sqrtf(v1 * o.c2) + o.eps) + o.decay * p[i]);
  }
}
wn_status wn_cuda_adamw_forward(const struct wn_exec *exec, const struct wn_adamw *a) {
  if (a->n == 0) return WN_OK;
  adamw o;
  o.beta1 = (float)a->beta1, o.rest1 = (float)(1.0 - a->beta1);
  o.beta2 = (float)a->beta2, o.rest2 = (float)(1.0 - a->beta2);
  o.lr = (float)a->lr, o.decay = (float)a->weight_decay, o.eps = (float)a->eps, o.g = (float)a->grad_scale;
  o.c1 = (float)(1.0 / (1.0 - pow(a->beta1, (double)a->step)));
  o.c2 = (float)(1.0 / (1.0 - pow(a->beta2, (double)a->step)));
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), adamw_kernel, a->n, o,
            static_cast<float *>(a->p), static_cast<const float *>(a->g), static_cast<float *>(a->m),
            static_cast<float *>(a->v));
  return wn_cuda_launched(exec, "adamw");
}

static __global__ void adagrad_kernel(int64_t n, float lr, float decay, float eps, float scale, float *p,
                                      const float *g, float *v) {
  WN_GRID_LOOP(i, n) {
    const float d = g[i] * scale, v1 = v[i] + d * d;
    v[i] = v1;
    p[i] -= lr * (d / (sqrtf(v1) + eps) + decay * p[i]);
  }
}
wn_status wn_cuda_adagrad_forward(const struct wn_exec *exec, const struct wn_adagrad *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), adagrad_kernel, a->n, (float)a->lr,
            (float)a->weight_decay, (float)a->eps, (float)a->grad_scale, static_cast<float *>(a->p),
            static_cast<const float *>(a->g), static_cast<float *>(a->v));
  return wn_cuda_launched(exec, "adagrad");
}

// Block b sums SUMSQ_EACH consecutive values into part[b]; then one block adds the parts. In double.
enum { SUMSQ_EACH = 1 << 11 };
static __global__ void sumsq_parts(int64_t n, const float *x, double *part) {
  const int64_t first = (int64_t)blockIdx.x * SUMSQ_EACH;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < SUMSQ_EACH / WN_CUDA_THREADS; k++) { // all reads before the first use
    const int64_t i = first + k * WN_CUDA_THREADS + threadIdx.x;
    const double v = i < n ? (double)x[i] : 0.0;
    sum += v * v;
  }
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
static __global__ void sumsq_whole(int64_t parts, const double *part, double *out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += part[i];
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}
size_t wn_cuda_sumsq_scratch(const struct wn_exec *exec, const struct wn_sumsq *a, bool backward) {
  (void)exec, (void)backward;
  return (size_t)(a->n / SUMSQ_EACH + 1) * sizeof(double);
}
wn_status wn_cuda_sumsq_forward(const struct wn_exec *exec, const struct wn_sumsq *a) {
  const int64_t parts = a->n > 0 ? wn_cuda_parts(a->n, SUMSQ_EACH) : 0;
  double *part = static_cast<double *>(exec->scratch);
  if (parts > 0)
    WN_LAUNCH((unsigned)parts, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), sumsq_parts, a->n,
              static_cast<const float *>(a->x), part);
  WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), sumsq_whole, parts, static_cast<const double *>(part), a->out);
  return wn_cuda_launched(exec, "sumsq");
}
