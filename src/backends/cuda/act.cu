// Activations (equations in backends/ref/act.c). Each thread computes one value of y, or eight consecutive ones.
#include "backends/cuda/launch.cuh"

static __device__ __forceinline__ float gelu_tanh(float v) {
  return tanhf(0.79788456080286535588f * (v + 0.044715f * v * v * v));
}
static __device__ __forceinline__ float gelu(float v) {
  return 0.5f * v * (1.0f + gelu_tanh(v));
}
static __device__ __forceinline__ float gelu_slope(float v) {
  const float t = gelu_tanh(v), slope = 0.79788456080286535588f * (1.0f + 3.0f * 0.044715f * v * v);
  return 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope;
}
#define ROOT_HALF 0.70710678118654752440f
static __device__ __forceinline__ float normal_slope(float v) {
  return 0.5f * erfcf(-v * ROOT_HALF) + v * expf(-0.5f * v * v) * 0.39894228040143267794f;
}
static __device__ __forceinline__ float sigmoid(float v) {
  return 1.0f / (1.0f + expf(-v));
}

static __device__ __forceinline__ float gated(int kind, float g, float u) {
  return kind == WN_ACT_SWIGLU ? g * sigmoid(g) * u : gelu(g) * u;
}
static __device__ __forceinline__ float plain(int kind, float v) {
  return kind == WN_ACT_GELU       ? gelu(v)
         : kind == WN_ACT_GELU_ERF ? 0.5f * v * erfcf(-v * ROOT_HALF)
         : kind == WN_ACT_RELU2    ? (v > 0 ? v * v : 0.0f)
                                   : (v > 0 ? v : 0.0f);
}
static __device__ __forceinline__ float plain_back(int kind, float v, float d) {
  return kind == WN_ACT_GELU       ? d * gelu_slope(v)
         : kind == WN_ACT_GELU_ERF ? d * normal_slope(v)
         : kind == WN_ACT_RELU2    ? (v > 0 ? 2 * v * d : 0.0f)
                                   : (v > 0 ? d : 0.0f);
}
// F and M F are in units of EACH.
template <int EACH>
static __global__ void act_gated_kernel(int kind, int64_t n, int64_t F, wn_numbers x, wn_numbers y) {
  WN_GRID_LOOP(i, n) {
    const int64_t m = i / F, at = (m * 2 * F + i % F) * EACH;
    float g[EACH], u[EACH];
    x.get(at, g);
    x.get(at + F * EACH, u);
#pragma unroll
    for (int k = 0; k < EACH; k++) g[k] = gated(kind, g[k], u[k]);
    y.put(i * EACH, g);
  }
}
template <int EACH> static __global__ void act_plain_kernel(int kind, int64_t n, wn_numbers x, wn_numbers y) {
  WN_GRID_LOOP(i, n) {
    float v[EACH];
    x.get(i * EACH, v);
#pragma unroll
    for (int k = 0; k < EACH; k++) v[k] = plain(kind, v[k]);
    y.put(i * EACH, v);
  }
}

template <int EACH>
static __global__ void act_gated_back_kernel(int kind, int64_t n, int64_t F, wn_numbers x, wn_numbers dy,
                                             wn_numbers dx) {
  WN_GRID_LOOP(i, n) {
    const int64_t m = i / F, at = (m * 2 * F + i % F) * EACH;
    float g[EACH], u[EACH], d[EACH];
    x.get(at, g);
    x.get(at + F * EACH, u);
    dy.get(i * EACH, d);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const float gate = g[k], up = u[k];
      if (kind == WN_ACT_SWIGLU) {
        const float s = sigmoid(gate);
        g[k] = d[k] * up * s * (1.0f + gate * (1.0f - s));
        u[k] = d[k] * gate * s;
      } else {
        g[k] = d[k] * up * gelu_slope(gate);
        u[k] = d[k] * gelu(gate);
      }
    }
    dx.put(at, g);
    dx.put(at + F * EACH, u);
  }
}
template <int EACH>
static __global__ void act_plain_back_kernel(int kind, int64_t n, wn_numbers x, wn_numbers dy, wn_numbers dx) {
  WN_GRID_LOOP(i, n) {
    float v[EACH], d[EACH];
    x.get(i * EACH, v);
    dy.get(i * EACH, d);
#pragma unroll
    for (int k = 0; k < EACH; k++) v[k] = plain_back(kind, v[k], d[k]);
    dx.put(i * EACH, v);
  }
}

template <int EACH> static void act_launch(const struct wn_exec *exec, const struct wn_act *a, bool backward) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype);
  const wn_numbers x = wn_numbers_of(a->x, t), y = wn_numbers_of(a->y, t);
  const wn_numbers dy = wn_numbers_of(a->dy, t), dx = wn_numbers_of(a->dx, t);
  const int kind = (int)a->kind;
  const int64_t F = a->F / EACH, n = a->M * F;
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (wn_act_has_gate(a->kind) && !backward)
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, stream, act_gated_kernel<EACH>, kind, n, F, x, y);
  else if (wn_act_has_gate(a->kind))
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, stream, act_gated_back_kernel<EACH>, kind, n, F, x, dy, dx);
  else if (!backward)
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, stream, act_plain_kernel<EACH>, kind, n, x, y);
  else
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, stream, act_plain_back_kernel<EACH>, kind, n, x, dy, dx);
}
static wn_status act_run(const struct wn_exec *exec, const struct wn_act *a, bool backward) {
  const void *arrays[] = {a->x, backward ? a->dy : a->y, backward ? a->dx : nullptr};
  bool eights = true;
  if (a->M * a->F == 0) return WN_OK;
  for (const void *x : arrays) eights = eights && wn_by_eights(x, a->F);
  if (eights)
    act_launch<8>(exec, a, backward);
  else
    act_launch<1>(exec, a, backward);
  return wn_cuda_launched(exec, "act");
}

wn_status wn_cuda_act_forward(const struct wn_exec *exec, const struct wn_act *a) {
  return act_run(exec, a, false);
}
wn_status wn_cuda_act_backward(const struct wn_exec *exec, const struct wn_act *a) {
  return act_run(exec, a, true);
}

static __global__ void silu_kernel(int64_t n, const float *x, float *y) {
  WN_GRID_LOOP(i, n) y[i] = x[i] * sigmoid(x[i]);
}
static __global__ void silu_back_kernel(int64_t n, const float *x, const float *dy, float *dx) {
  WN_GRID_LOOP(i, n) {
    const float s = sigmoid(x[i]);
    dx[i] = dy[i] * s * (1.0f + x[i] * (1.0f - s));
  }
}
wn_status wn_cuda_silu_forward(const struct wn_exec *exec, const struct wn_silu *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), silu_kernel, a->n,
            static_cast<const float *>(a->x), static_cast<float *>(a->y));
  return wn_cuda_launched(exec, "silu");
}
wn_status wn_cuda_silu_backward(const struct wn_exec *exec, const struct wn_silu *a) {
  if (a->n == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), silu_back_kernel, a->n,
            static_cast<const float *>(a->x), static_cast<const float *>(a->dy), static_cast<float *>(a->dx));
  return wn_cuda_launched(exec, "silu");
}
