// Activations (equations in backends/ref/act.c), one thread a value of y.
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

static __global__ void act_kernel(int kind, int64_t M, int64_t F, wn_numbers x, wn_numbers y) {
  WN_GRID_LOOP(i, M * F) {
    const int64_t m = i / F, f = i % F;
    float value;
    if (kind == WN_ACT_SWIGLU || kind == WN_ACT_GEGLU) {
      const float g = x[m * 2 * F + f], u = x[m * 2 * F + F + f];
      value = kind == WN_ACT_SWIGLU ? g * sigmoid(g) * u : gelu(g) * u;
    } else {
      const float v = x[i];
      value = kind == WN_ACT_GELU       ? gelu(v)
              : kind == WN_ACT_GELU_ERF ? 0.5f * v * erfcf(-v * ROOT_HALF)
                                        : (v > 0 ? v : 0.0f);
    }
    y.set(i, value);
  }
}

static __global__ void act_back_kernel(int kind, int64_t M, int64_t F, wn_numbers x, wn_numbers dy, wn_numbers dx) {
  WN_GRID_LOOP(i, M * F) {
    const int64_t m = i / F, f = i % F, at = m * 2 * F + f;
    const float d = dy[i];
    if (kind == WN_ACT_SWIGLU) {
      const float g = x[at], u = x[at + F], s = sigmoid(g);
      dx.set(at, d * u * s * (1.0f + g * (1.0f - s)));
      dx.set(at + F, d * g * s);
    } else if (kind == WN_ACT_GEGLU) {
      const float g = x[at], u = x[at + F];
      dx.set(at, d * u * gelu_slope(g));
      dx.set(at + F, d * gelu(g));
    } else {
      const float v = x[i];
      dx.set(i, kind == WN_ACT_GELU       ? d * gelu_slope(v)
                : kind == WN_ACT_GELU_ERF ? d * normal_slope(v)
                : v > 0                   ? d
                                          : 0.0f);
    }
  }
}

wn_status wn_cuda_act_forward(const struct wn_exec *exec, const struct wn_act *a) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype);
  if (a->M * a->F == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->M * a->F), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), act_kernel, (int)a->kind, a->M, a->F,
            wn_numbers_of(a->x, t), wn_numbers_of(a->y, t));
  return wn_cuda_launched(exec, "act");
}

wn_status wn_cuda_act_backward(const struct wn_exec *exec, const struct wn_act *a) {
  const wn_dtype t = wn_array_type(a->type, exec->dtype);
  if (a->M * a->F == 0) return WN_OK;
  WN_LAUNCH(wn_cuda_blocks(a->M * a->F), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), act_back_kernel, (int)a->kind, a->M,
            a->F, wn_numbers_of(a->x, t), wn_numbers_of(a->dy, t), wn_numbers_of(a->dx, t));
  return wn_cuda_launched(exec, "act");
}
