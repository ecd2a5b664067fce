// RMSNorm and LayerNorm (equations in backends/ref/norm.c). A vector is a warp's where it is short (heads), else a
// block's; its sums are trees of fixed shape. Gradients of gain and shift: runs of rows by blocks, then the runs in
// order.
#include "backends/cuda/launch.cuh"

struct norm_call {
  int64_t vectors, groups, width;
  bool layer;
  float eps;
  wn_numbers x;
  int64_t ldx;
  const float *add;
  int64_t ldadd;
  float *sum;
  int64_t ldsum;
  const float *gain, *shift;
  wn_numbers y;
  int64_t ldy;
  float *rstd, *mean;
  wn_numbers dy;
  int64_t lddy;
  wn_numbers dx;
  int64_t lddx;
  bool accumulate_dx;
};

enum { NORM_SHORT = 256 }; // the longest vector of a warp

// WHOLE: the block has one vector; else a warp has.
template <bool WHOLE> __device__ __forceinline__ float norm_total(float x) {
  return WHOLE ? wn_block_sum(x) : wn_warp_sum(x);
}
template <bool WHOLE> __device__ __forceinline__ int64_t norm_vector() {
  return WHOLE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}

template <bool WHOLE> static __global__ void norm_kernel(norm_call a) {
  const int64_t n = norm_vector<WHOLE>();
  if (n >= a.vectors) return; // a whole warp
  const int first = WHOLE ? threadIdx.x : threadIdx.x % 32, step = WHOLE ? blockDim.x : 32;
  const int64_t r = n / a.groups, off = n % a.groups * a.width, W = a.width;
  const int64_t in = a.add ? r * a.ldsum + off : r * a.ldx + off;
  if (a.add)
    for (int64_t c = first; c < W; c += step) a.sum[in + c] = a.x[r * a.ldx + off + c] + a.add[r * a.ldadd + off + c];
  // What a thread wrote it reads itself.
  const wn_numbers x = a.add ? wn_numbers{a.sum, false} : a.x;
  float mean = 0, square = 0;
  if (a.layer) {
    for (int64_t c = first; c < W; c += step) mean += x[in + c];
    mean = norm_total<WHOLE>(mean) / (float)W;
  }
  for (int64_t c = first; c < W; c += step) square += (x[in + c] - mean) * (x[in + c] - mean);
  const float s = 1.0f / sqrtf(norm_total<WHOLE>(square) / (float)W + a.eps);
  for (int64_t c = first; c < W; c += step)
    a.y.set(r * a.ldy + off + c, a.gain[c] * ((x[in + c] - mean) * s) + (a.shift ? a.shift[c] : 0.0f));
  if (first != 0) return;
  if (a.rstd) a.rstd[n] = s;
  if (a.mean && a.layer) a.mean[n] = mean;
}

// x: what was normed.
template <bool WHOLE> static __global__ void norm_back_kernel(norm_call a) {
  const int64_t n = norm_vector<WHOLE>();
  if (n >= a.vectors) return;
  const int first = WHOLE ? threadIdx.x : threadIdx.x % 32, step = WHOLE ? blockDim.x : 32;
  const int64_t r = n / a.groups, off = n % a.groups * a.width, W = a.width;
  const int64_t in = r * a.ldx + off, dy = r * a.lddy + off, dx = r * a.lddx + off;
  const float s = a.rstd[n], mean = a.layer ? a.mean[n] : 0.0f;
  float along = 0, level = 0;
  for (int64_t c = first; c < W; c += step) {
    const float u = a.gain[c] * a.dy[dy + c];
    along += u * ((a.x[in + c] - mean) * s);
    level += u;
  }
  along = norm_total<WHOLE>(along) / (float)W;
  level = a.layer ? norm_total<WHOLE>(level) / (float)W : 0.0f;
  for (int64_t c = first; c < W; c += step) {
    const float u = a.gain[c] * a.dy[dy + c];
    const float v = s * (u - (a.x[in + c] - mean) * s * along - level);
    a.dx.set(dx + c, a.accumulate_dx ? a.dx[dx + c] + v : v);
  }
}

// Part p of column c: rows [p * each, +each) of all vectors, by eight threads a column, whose sums meet in order.
enum { PARTS_EACH = 512, PARTS_MOST = 256 };
static int64_t norm_parts(int64_t vectors) {
  return wn_cuda_min(PARTS_MOST, wn_cuda_parts(vectors, PARTS_EACH));
}
static __global__ void norm_parts_kernel(norm_call a, int64_t each, float *part) {
  WN_SHARED(float, gains, [8][32]);
  WN_SHARED(float, shifts, [8][32]);
  const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x, first = (int64_t)blockIdx.y * each;
  float gain = 0, shift = 0;
  if (c < a.width)
    for (int64_t n = first + threadIdx.y; n < a.vectors && n < first + each; n += 8) {
      const int64_t r = n / a.groups, off = n % a.groups * a.width + c;
      const float d = a.dy[r * a.lddy + off];
      gain += d * ((a.x[r * a.ldx + off] - (a.layer ? a.mean[n] : 0.0f)) * a.rstd[n]);
      shift += d;
    }
  gains[threadIdx.y][threadIdx.x] = gain;
  shifts[threadIdx.y][threadIdx.x] = shift;
  __syncthreads();
  if (threadIdx.y > 0 || c >= a.width) return;
  for (int i = 1; i < 8; i++) gain += gains[i][threadIdx.x], shift += shifts[i][threadIdx.x];
  part[(int64_t)blockIdx.y * 2 * a.width + c] = gain;
  part[((int64_t)blockIdx.y * 2 + 1) * a.width + c] = shift;
}
static __global__ void norm_whole_kernel(int64_t width, int64_t parts, const float *part, float *dgain, float *dshift) {
  WN_GRID_LOOP(c, width) {
    float gain = 0, shift = 0;
    for (int64_t p = 0; p < parts; p++) gain += part[p * 2 * width + c], shift += part[(p * 2 + 1) * width + c];
    if (dgain) dgain[c] += gain;
    if (dshift) dshift[c] += shift;
  }
}

static norm_call norm_of(const struct wn_exec *exec, const struct wn_norm *a) {
  const wn_dtype t = exec->dtype;
  norm_call k;
  k.vectors = a->rows * a->groups, k.groups = a->groups, k.width = a->width, k.layer = a->layer, k.eps = (float)a->eps;
  k.x = wn_numbers_of(a->x, wn_array_type(a->x_type, t)), k.ldx = a->ldx;
  k.add = static_cast<const float *>(a->add), k.ldadd = a->ldadd, k.sum = static_cast<float *>(a->sum);
  k.ldsum = a->ldsum, k.gain = static_cast<const float *>(a->gain), k.shift = static_cast<const float *>(a->shift);
  k.y = wn_numbers_of(a->y, wn_array_type(a->y_type, t)), k.ldy = a->ldy;
  k.rstd = static_cast<float *>(a->rstd), k.mean = static_cast<float *>(a->mean);
  k.dy = wn_numbers_of(a->dy, wn_array_type(a->dy_type, t)), k.lddy = a->lddy;
  k.dx = wn_numbers_of(a->dx, wn_array_type(a->dx_type, t)), k.lddx = a->lddx, k.accumulate_dx = a->accumulate_dx;
  return k;
}

wn_status wn_cuda_norm_forward(const struct wn_exec *exec, const struct wn_norm *a) {
  const norm_call k = norm_of(exec, a);
  if (k.vectors == 0) return WN_OK;
  if (k.width <= NORM_SHORT)
    WN_LAUNCH((unsigned)wn_cuda_parts(k.vectors, 4), 128, 0, wn_cuda_stream(exec), norm_kernel<false>, k);
  else
    WN_LAUNCH((unsigned)k.vectors, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), norm_kernel<true>, k);
  return wn_cuda_launched(exec, "norm");
}

size_t wn_cuda_norm_scratch(const struct wn_exec *exec, const struct wn_norm *a, bool backward) {
  (void)exec;
  return backward && (a->dgain || a->dshift) ? (size_t)(norm_parts(a->rows * a->groups) * 2 * a->width) * sizeof(float)
                                             : 0;
}
wn_status wn_cuda_norm_backward(const struct wn_exec *exec, const struct wn_norm *a) {
  norm_call k = norm_of(exec, a);
  if (k.vectors == 0) return WN_OK;
  if (a->add) k.x = {a->sum, false}, k.ldx = a->ldsum;
  if (a->dgain || a->dshift) { // first: dx may overwrite dy
    const int64_t parts = norm_parts(k.vectors), each = wn_cuda_parts(k.vectors, parts);
    float *part = static_cast<float *>(exec->scratch);
    WN_LAUNCH(dim3((unsigned)wn_cuda_parts(k.width, 32), (unsigned)parts), dim3(32, 8), 0, wn_cuda_stream(exec),
              norm_parts_kernel, k, each, part);
    WN_LAUNCH(wn_cuda_blocks(k.width), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), norm_whole_kernel, k.width, parts,
              static_cast<const float *>(part), static_cast<float *>(a->dgain), static_cast<float *>(a->dshift));
  }
  if (a->dx && k.width <= NORM_SHORT)
    WN_LAUNCH((unsigned)wn_cuda_parts(k.vectors, 4), 128, 0, wn_cuda_stream(exec), norm_back_kernel<false>, k);
  else if (a->dx)
    WN_LAUNCH((unsigned)k.vectors, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), norm_back_kernel<true>, k);
  return wn_cuda_launched(exec, "norm");
}
