// Copies rows to other places (equation in ops.h): one thread per number; neighbouring threads copy a row.
#include "backends/cuda/launch.cuh"

struct gather_rows {
  int64_t n, H, T, D, group_heads, groups; // n: numbers in all; group_heads: heads in a group
  wn_stride s_x, s_y;
  const int32_t *index;
  const void *x;
  void *y;
};
// Copies of a launch, which may have 4 KiB of arguments.
enum { GATHERS = 32 };
template <int MOST> struct gather_some { gather_rows rows[MOST]; };

// Grid: blocks of numbers, copies. Into: converts a number that was read to what is stored.
template <class X, class Y, class Into, int MOST>
static __global__ void gather_kernel(const __grid_constant__ gather_some<MOST> some, Into into) {
  const gather_rows &a = some.rows[MOST > 1 ? blockIdx.y : 0];
  const X *x = static_cast<const X *>(a.x);
  Y *y = static_cast<Y *>(a.y);
  WN_GRID_LOOP(i, a.n) {
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

// Which kernel: of floats, of half floats, or from floats to half floats.
enum gather_kind { GATHER_FLOATS, GATHER_HALVES, GATHER_ROUNDED };
static gather_kind gather_kind_of(const struct wn_gather *a) {
  return !a->y_type ? GATHER_FLOATS : a->x_type || !a->x ? GATHER_HALVES : GATHER_ROUNDED;
}

template <int MOST>
static void gather_launch(gather_kind kind, const gather_some<MOST> &some, int count, int64_t most) {
  const dim3 grid(wn_cuda_blocks(most), (unsigned)count);
  if (kind == GATHER_FLOATS)
    WN_LAUNCH(grid, WN_CUDA_THREADS, 0, wn_cuda_work_stream, (gather_kernel<float, float, gather_same, MOST>), some,
              gather_same());
  else if (kind == GATHER_HALVES)
    WN_LAUNCH(grid, WN_CUDA_THREADS, 0, wn_cuda_work_stream, (gather_kernel<uint16_t, uint16_t, gather_same, MOST>),
              some, gather_same());
  else
    WN_LAUNCH(grid, WN_CUDA_THREADS, 0, wn_cuda_work_stream, (gather_kernel<float, uint16_t, gather_half, MOST>), some,
              gather_half());
}

wn_status wn_cuda_gather_together(const struct wn_exec *exec, const struct wn_gather *all, int64_t n) {
  for (int64_t i = 0; i < n;) {
    const gather_kind kind = gather_kind_of(&all[i]);
    gather_some<GATHERS> some = {};
    int count = 0;
    int64_t most = 0;
    for (; i < n && count < GATHERS && gather_kind_of(&all[i]) == kind; i++) {
      const struct wn_gather *a = &all[i];
      const int64_t numbers = a->B * a->H * a->T * a->D, groups = a->groups > 0 ? a->groups : 1;
      if (wn_stored_blocks(a->y_type))
        return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "gather: backend cuda writes no rows in blocks of 8 or 4 bits");
      if (numbers == 0) continue;
      some.rows[count++] = {numbers, a->H, a->T, a->D, a->H / groups, groups, a->s_x, a->s_y, a->index, a->x, a->y};
      most = numbers > most ? numbers : most;
    }
    if (count == 1) gather_launch<1>(kind, {{some.rows[0]}}, 1, most);
    if (count > 1) gather_launch<GATHERS>(kind, some, count, most);
  }
  return wn_cuda_launched(exec, "gather");
}

wn_status wn_cuda_gather_forward(const struct wn_exec *exec, const struct wn_gather *a) {
  return wn_cuda_gather_together(exec, a, 1);
}
