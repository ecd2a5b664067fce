// RMSNorm and LayerNorm (equations in backends/ref/norm.c). A vector is held in the registers of 8, 16 or 32 lanes, or
// if it is longer, in forward, of a block, which read it once, by eights. If it is too long or not aligned, a warp or a
// block loops over it. Sums are trees of fixed shape that depends on the width alone. Gradients of gain and shift: each
// block sums over some vectors (together with dx, if vectors are in registers); then eight threads per column add these
// partial sums.
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

enum { NORM_SHORT = 256 }; // the longest vector that a warp loops over
// The longest in registers of a warp and of a block; backward, which would spill beyond it.
enum { NORM_LONG_WARP = 2048, NORM_LONG = 16384, NORM_LONG_BACK = 1024 };

// WHOLE: the block has one vector; else each warp has one.
template <bool WHOLE> __device__ __forceinline__ float norm_total(float x) {
  return WHOLE ? wn_block_sum(x) : wn_warp_sum(x);
}
template <bool WHOLE> __device__ __forceinline__ int64_t norm_vector() {
  return WHOLE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}

template <bool WHOLE> static __global__ void norm_kernel(norm_call a) {
  const int64_t n = norm_vector<WHOLE>();
  if (n >= a.vectors) return; // true for whole warps
  const int first = WHOLE ? threadIdx.x : threadIdx.x % 32, step = WHOLE ? blockDim.x : 32;
  const int64_t r = n / a.groups, off = n % a.groups * a.width, W = a.width;
  const int64_t in = a.add ? r * a.ldsum + off : r * a.ldx + off;
  if (a.add)
    for (int64_t c = first; c < W; c += step) a.sum[in + c] = a.x[r * a.ldx + off + c] + a.add[r * a.ldadd + off + c];
  // a thread reads only what it wrote itself
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

// x: the input of the norm.
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

// ---- vectors held in registers ----

// LANES lanes of a warp, or a block's, hold a vector of at most LANES x EACH x 8 numbers: lane l has those from
// 8 (l + LANES e) on.

struct norm_place {
  int64_t row;
  int off; // of the vector in its row
};
static __device__ __forceinline__ norm_place norm_where(const norm_call &a, int64_t n) {
  const uint32_t vector = (uint32_t)n, groups = (uint32_t)a.groups; // below 2^31: norm_fits
  return {vector / groups, (int)(vector % groups * (uint32_t)a.width)};
}

template <int LANES> static __device__ __forceinline__ float norm_lanes_sum(float x) {
  if constexpr (LANES > 32)
    return wn_block_sum(x);
  else
    return wn_lanes_sum<LANES>(x);
}

template <int LANES, int EACH> static __global__ void __launch_bounds__(WN_CUDA_THREADS) norm_lanes(norm_call a) {
  const int64_t n = ((int64_t)blockIdx.x * WN_CUDA_THREADS + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES, W = (int)a.width;
  const bool mine = n < a.vectors;
  const norm_place at = norm_where(a, mine ? n : 0);
  const wn_numbers add = {const_cast<float *>(a.add), false}, to = {a.sum, false};
  const wn_numbers gain = {const_cast<float *>(a.gain), false}, shift = {const_cast<float *>(a.shift), false};
  float v[EACH][8] = {}, mean = 0, square = 0;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int c = (lane + LANES * e) * 8;
    if (!mine || c >= W) continue;
    a.x.get(at.row * a.ldx + at.off + c, v[e]);
    if (a.add) {
      float z[8];
      add.get(at.row * a.ldadd + at.off + c, z);
#pragma unroll
      for (int k = 0; k < 8; k++) v[e][k] += z[k];
      to.put(at.row * a.ldsum + at.off + c, v[e]);
    }
  }
  if (a.layer) {
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
      for (int k = 0; k < 8; k++) mean += v[e][k];
    mean = norm_lanes_sum<LANES>(mean) / (float)W;
  }
#pragma unroll
  for (int e = 0; e < EACH; e++)
    if ((lane + LANES * e) * 8 < W)
#pragma unroll
      for (int k = 0; k < 8; k++) square += (v[e][k] - mean) * (v[e][k] - mean);
  const float s = 1.0f / sqrtf(norm_lanes_sum<LANES>(square) / (float)W + a.eps);
  if (!mine) return;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int c = (lane + LANES * e) * 8;
    float g[8], h[8] = {};
    if (c >= W) continue;
    gain.get(c, g);
    if (a.shift) shift.get(c, h);
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] = g[k] * ((v[e][k] - mean) * s) + h[k];
    a.y.put(at.row * a.ldy + at.off + c, v[e]);
  }
  if (lane != 0) return;
  if (a.rstd) a.rstd[n] = s;
  if (a.mean && a.layer) a.mean[n] = mean;
}

// Sums each column over the vectors of a block, into part[columns]: shuffles add the vectors of a warp, then warps are
// added in order.
template <int LANES, int EACH>
static __device__ __forceinline__ void norm_block_columns(float (&v)[EACH][8], int W, float *part) {
  WN_SHARED(float, of_warps, [WN_CUDA_THREADS / 32][LANES * 8]);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 8; k++) {
#pragma unroll
      for (int by = 16; by >= LANES; by /= 2) v[e][k] += __shfl_xor_sync(~0u, v[e][k], by);
      if (lane < LANES) of_warps[threadIdx.x / 32][lane * 8 + k] = v[e][k];
    }
    __syncthreads();
    const int c = e * LANES * 8 + (int)threadIdx.x;
    if (threadIdx.x >= LANES * 8 || c >= W) continue;
    float sum = 0;
    for (int w = 0; w < WN_CUDA_THREADS / 32; w++) sum += of_warps[w][threadIdx.x];
    part[c] = sum;
  }
}

// A block has vectors [b each, +each). Computes dx, if wanted, and if part is given the sums for the gradients of gain
// and (LayerNorm) shift: [block][2][width].
template <int LANES, int EACH, bool LAYER>
static __global__ void __launch_bounds__(WN_CUDA_THREADS) norm_lanes_back(norm_call a, int64_t each, float *part) {
  const int lane = threadIdx.x % LANES, W = (int)a.width, at_once = WN_CUDA_THREADS / LANES;
  const int64_t first = (int64_t)blockIdx.x * each, end = first + each < a.vectors ? first + each : a.vectors;
  const wn_numbers gain = {const_cast<float *>(a.gain), false};
  float gains[EACH][8], of_gain[EACH][8], of_shift[LAYER ? EACH : 1][8];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int c = (lane + LANES * e) * 8;
#pragma unroll
    for (int k = 0; k < 8; k++) gains[e][k] = of_gain[e][k] = of_shift[LAYER ? e : 0][k] = 0;
    if (c < W) gain.get(c, gains[e]);
  }
  for (int64_t from = first; from < end; from += at_once) {
    const int64_t n = from + threadIdx.x / LANES;
    const bool mine = n < end;
    const norm_place at = norm_where(a, mine ? n : 0);
    const float s = mine ? a.rstd[n] : 0.0f, mean = LAYER && mine ? a.mean[n] : 0.0f;
    float x[EACH][8] = {}, d[EACH][8] = {}, along = 0, level = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int c = (lane + LANES * e) * 8;
      if (!mine || c >= W) continue;
      a.x.get(at.row * a.ldx + at.off + c, x[e]);
      a.dy.get(at.row * a.lddy + at.off + c, d[e]);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
      for (int k = 0; k < 8; k++) {
        x[e][k] = (lane + LANES * e) * 8 < W ? (x[e][k] - mean) * s : 0.0f;
        of_gain[e][k] += d[e][k] * x[e][k];
        if (LAYER) of_shift[LAYER ? e : 0][k] += d[e][k];
        d[e][k] *= gains[e][k];
        along += d[e][k] * x[e][k];
        level += d[e][k];
      }
    if (!a.dx.p) continue;
    along = wn_lanes_sum<LANES>(along) / (float)W;
    level = LAYER ? wn_lanes_sum<LANES>(level) / (float)W : 0.0f;
    if (!mine) continue;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int c = (lane + LANES * e) * 8;
      const int64_t to = at.row * a.lddx + at.off + c;
      if (c >= W) continue;
#pragma unroll
      for (int k = 0; k < 8; k++) d[e][k] = s * (d[e][k] - x[e][k] * along - level);
      if (a.accumulate_dx) {
        a.dx.get(to, x[e]);
#pragma unroll
        for (int k = 0; k < 8; k++) d[e][k] = x[e][k] + d[e][k];
      }
      a.dx.put(to, d[e]);
    }
  }
  if (!part) return;
  norm_block_columns<LANES, EACH>(of_gain, W, part + (int64_t)blockIdx.x * 2 * W);
  if constexpr (LAYER) norm_block_columns<LANES, EACH>(of_shift, W, part + ((int64_t)blockIdx.x * 2 + 1) * W);
}

// ---- vectors that are looped over ----

// Number of parts: enough that blocks of vectors in registers fill a device.
enum { PARTS_EACH = 64, PARTS_MOST = 256, PARTS_MOST_SHORT = 1024 };
static int64_t norm_parts(int64_t vectors, int64_t width) {
  return wn_cuda_min(width <= NORM_SHORT ? PARTS_MOST_SHORT : PARTS_MOST, wn_cuda_parts(vectors, PARTS_EACH));
}
// Adds, in order, the sums of the eight threads of each of 32 columns. The first of them gets the result and true.
static __device__ __forceinline__ bool norm_meet(float &gain, float &shift) {
  WN_SHARED(float, gains, [8][32]);
  WN_SHARED(float, shifts, [8][32]);
  gains[threadIdx.y][threadIdx.x] = gain;
  shifts[threadIdx.y][threadIdx.x] = shift;
  __syncthreads();
  if (threadIdx.y > 0) return false;
  for (int i = 1; i < 8; i++) gain += gains[i][threadIdx.x], shift += shifts[i][threadIdx.x];
  return true;
}
// Part p of column c: vectors [p * each, +each).
static __global__ void norm_parts_kernel(norm_call a, int64_t each, float *part) {
  const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x, first = (int64_t)blockIdx.y * each;
  float gain = 0, shift = 0;
  if (c < a.width)
    for (int64_t n = first + threadIdx.y; n < a.vectors && n < first + each; n += 8) {
      const int64_t r = n / a.groups, off = n % a.groups * a.width + c;
      const float d = a.dy[r * a.lddy + off];
      gain += d * ((a.x[r * a.ldx + off] - (a.layer ? a.mean[n] : 0.0f)) * a.rstd[n]);
      shift += d;
    }
  if (!norm_meet(gain, shift) || c >= a.width) return;
  part[(int64_t)blockIdx.y * 2 * a.width + c] = gain;
  part[((int64_t)blockIdx.y * 2 + 1) * a.width + c] = shift;
}
// shifts: parts have sums for shift.
static __global__ void norm_whole_kernel(int64_t width, int64_t parts, bool shifts, const float *part, float *dgain,
                                         float *dshift) {
  const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
  float gain = 0, shift = 0;
  if (c < width)
    for (int64_t p = threadIdx.y; p < parts; p += 8) {
      gain += part[p * 2 * width + c];
      if (shifts) shift += part[(p * 2 + 1) * width + c];
    }
  if (!norm_meet(gain, shift) || c >= width) return;
  if (dgain) dgain[c] += gain;
  if (dshift) dshift[c] += shift;
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

// Are vectors aligned so that lanes can read them by eights?
static bool norm_fits(const norm_call &k, bool backward) {
  const struct {
    const void *p;
    int64_t ld;
  } arrays[] = {{k.x.p, k.ldx},
                {k.gain, 0},
                {k.add, k.ldadd},
                {k.add ? k.sum : nullptr, k.ldsum},
                {backward ? k.dy.p : k.y.p, backward ? k.lddy : k.ldy},
                {backward ? k.dx.p : k.shift, backward ? k.lddx : 0}};
  for (const auto &x : arrays)
    if (!wn_by_eights(x.p, x.ld)) return false;
  return k.width % 8 == 0 && k.width <= (backward ? NORM_LONG_BACK : NORM_LONG) && k.vectors <= INT32_MAX &&
         k.groups * k.width <= INT32_MAX;
}
// Calls Use<LANES, EACH>::launch for vectors of this width, at most MOST.
template <int MOST, template <int, int> class Use, class... A> static void norm_by_width(int64_t width, const A &...a) {
  if (width <= 64)
    Use<8, 1>::launch(a...);
  else if (width <= 128)
    Use<16, 1>::launch(a...);
  else if (width <= 256)
    Use<32, 1>::launch(a...);
  else if (width <= 512)
    Use<32, 2>::launch(a...);
  else if (width <= 768)
    Use<32, 3>::launch(a...);
  else if (width <= 1024)
    Use<32, 4>::launch(a...);
  else if constexpr (MOST > 1024) {
    if (width <= NORM_LONG_WARP)
      Use<32, 8>::launch(a...);
    else if (width <= 4096)
      Use<WN_CUDA_THREADS, 2>::launch(a...);
    else if (width <= 8192)
      Use<WN_CUDA_THREADS, 4>::launch(a...);
    else
      Use<WN_CUDA_THREADS, 8>::launch(a...);
  }
}
template <int LANES, int EACH> struct norm_lanes_forward {
  static void launch(cudaStream_t stream, const norm_call &k) {
    WN_LAUNCH((unsigned)wn_cuda_parts(k.vectors, WN_CUDA_THREADS / LANES), WN_CUDA_THREADS, 0, stream,
              (norm_lanes<LANES, EACH>), k);
  }
};
template <int LANES, int EACH> struct norm_lanes_backward {
  static void launch(cudaStream_t stream, const norm_call &k, int64_t parts, int64_t each, float *part) {
    if (k.layer)
      WN_LAUNCH((unsigned)parts, WN_CUDA_THREADS, 0, stream, (norm_lanes_back<LANES, EACH, true>), k, each, part);
    else
      WN_LAUNCH((unsigned)parts, WN_CUDA_THREADS, 0, stream, (norm_lanes_back<LANES, EACH, false>), k, each, part);
  }
};

wn_status wn_cuda_norm_forward(const struct wn_exec *exec, const struct wn_norm *a) {
  const norm_call k = norm_of(exec, a);
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (k.vectors == 0) return WN_OK;
  if (norm_fits(k, false))
    norm_by_width<NORM_LONG, norm_lanes_forward>(k.width, stream, k);
  else if (k.width <= NORM_SHORT)
    WN_LAUNCH((unsigned)wn_cuda_parts(k.vectors, 4), 128, 0, stream, norm_kernel<false>, k);
  else
    WN_LAUNCH((unsigned)k.vectors, WN_CUDA_THREADS, 0, stream, norm_kernel<true>, k);
  return wn_cuda_launched(exec, "norm");
}

size_t wn_cuda_norm_scratch(const struct wn_exec *exec, const struct wn_norm *a, bool backward) {
  (void)exec;
  return backward && (a->dgain || a->dshift)
             ? (size_t)(norm_parts(a->rows * a->groups, a->width) * 2 * a->width) * sizeof(float)
             : 0;
}
wn_status wn_cuda_norm_backward(const struct wn_exec *exec, const struct wn_norm *a) {
  norm_call k = norm_of(exec, a);
  const cudaStream_t stream = wn_cuda_stream(exec);
  const bool sums = a->dgain || a->dshift;
  if (k.vectors == 0) return WN_OK;
  if (a->add) k.x = {a->sum, false}, k.ldx = a->ldsum, k.add = nullptr;
  const int64_t parts = norm_parts(k.vectors, k.width), each = wn_cuda_parts(k.vectors, parts);
  float *part = sums ? static_cast<float *>(exec->scratch) : nullptr;
  const bool fits = norm_fits(k, true) && (k.layer || !a->dshift);
  if (fits)
    norm_by_width<NORM_LONG_BACK, norm_lanes_backward>(k.width, stream, k, parts, each, part);
  else if (sums) // first: dx may overwrite dy
    WN_LAUNCH(dim3((unsigned)wn_cuda_parts(k.width, 32), (unsigned)parts), dim3(32, 8), 0, stream, norm_parts_kernel, k,
              each, part);
  if (sums)
    WN_LAUNCH((unsigned)wn_cuda_parts(k.width, 32), dim3(32, 8), 0, stream, norm_whole_kernel, k.width, parts,
              !fits || k.layer, static_cast<const float *>(part), static_cast<float *>(a->dgain),
              static_cast<float *>(a->dshift));
  if (!fits && a->dx && k.width <= NORM_SHORT)
    WN_LAUNCH((unsigned)wn_cuda_parts(k.vectors, 4), 128, 0, stream, norm_back_kernel<false>, k);
  else if (!fits && a->dx)
    WN_LAUNCH((unsigned)k.vectors, WN_CUDA_THREADS, 0, stream, norm_back_kernel<true>, k);
  return wn_cuda_launched(exec, "norm");
}
