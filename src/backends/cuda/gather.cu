// Copies rows to other places (equation in ops.h): one thread per number; neighbouring threads copy a row.
#include "backends/cuda/launch.cuh"

struct gather_rows {
  int64_t H, T, D, group_heads, groups; // group_heads: heads in a group
  wn_stride s_x, s_y;
  const int32_t *index;
};

// Into: converts a number that was read to what is stored.
template <class X, class Y, class Into>
static __global__ void gather_kernel(int64_t n, gather_rows a, const X *x, Y *y, Into into) {
  WN_GRID_LOOP(i, n) {
    const int64_t d = i % a.D, t = i / a.D % a.T, h = i / a.D / a.T % a.H, b = i / a.D / a.T / a.H;
    const int64_t from = a.index ? a.index[(b * a.groups + h / a.group_heads) * a.T + t] : t;
    y[b * a.s_y.b + h * a.s_y.h + t * a.s_y.t + d] = x ? into(x[b * a.s_x.b + h * a.s_x.h + from * a.s_x.t + d]) : (Y)0;
  }
}

struct gather_same {
  template <class X> __device__ X operator()(X x) const { return x; }
};
struct gather_half {
  __device__ uint16_t operator()(float x) const { return __half_as_ushort(__float2half_rn(x)); }
};

wn_status wn_cuda_gather_forward(const struct wn_exec *exec, const struct wn_gather *a) {
  const int64_t n = a->B * a->H * a->T * a->D, groups = a->groups > 0 ? a->groups : 1;
  if (n == 0) return WN_OK;
  const gather_rows rows = {a->H, a->T, a->D, a->H / groups, groups, a->s_x, a->s_y, a->index};
  if (wn_stored_blocks(a->y_type))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "gather: backend cuda writes no rows in blocks of 8 or 4 bits");
  if (!a->y_type)
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), (gather_kernel<float, float, gather_same>),
              n, rows, static_cast<const float *>(a->x), static_cast<float *>(a->y), gather_same());
  else if (a->x_type || !a->x)
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec),
              (gather_kernel<uint16_t, uint16_t, gather_same>), n, rows, static_cast<const uint16_t *>(a->x),
              static_cast<uint16_t *>(a->y), gather_same());
  else
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, wn_cuda_stream(exec),
              (gather_kernel<float, uint16_t, gather_half>), n, rows, static_cast<const float *>(a->x),
              static_cast<uint16_t *>(a->y), gather_half());
  return wn_cuda_launched(exec, "gather");
}
