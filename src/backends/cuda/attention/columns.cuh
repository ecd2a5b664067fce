/* The selection over stored logits. A thread has one key and loops over the rows of the chunk, in forward from the
 * first, in backward from the last (arXiv 2410.02703, §3.2; select.cuh has the equations). For open rows F is the sum
 * over all rows except the row itself. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_COLUMNS_CUH
#define WN_BACKENDS_CUDA_ATTENTION_COLUMNS_CUH

#include "backends/cuda/attention/stored.cuh"

namespace wn_cuda {

struct column_place {
  int j, g, b, head, kv; /* of the selecting head, and of its key-value head */
  bool bilinear;
  __device__ __forceinline__ column_place(const stored_args &s)
      : j(blockIdx.x * STORED_THREADS + threadIdx.x), g(blockIdx.y), b(blockIdx.z),
        head(blockIdx.y * (s.a.H / s.a.G) + s.a.sel.head), kv(head / (s.a.H / s.a.Hkv)), bilinear(!s.a.sel.joins) {}
  __device__ __forceinline__ bool may(const stored_args &s, const row_place &row) const {
    if (j < row.first || j > row.last || row.position > row.last) return false;
    if (s.a.sel.protect_self && j == row.position) return false;
    return !(s.a.sel.protect_first && (s.a.at ? s.a.at[slot_row(s.a, b, kv) + j] == 0 : j == row.first));
  }
};

/* Computes F of the chunk's rows from S, which is replaced by the selecting logits. Grid: keys in blocks, groups,
 * sequences. */
template <bool KEYED> __global__ void __launch_bounds__(STORED_THREADS) stored_select(const stored_args s) {
  const attention_args &a = s.a;
  const column_place c(s);
  if (c.j >= s.ld) return;
  const float strength = a.sel.strength ? a.sel.strength[c.g] : 1.0f;
  const int64_t group = (int64_t)c.b * a.G + c.g;
  const head_terms terms(s, c.head);
  float run = 0;
  if (s.run)
    run = s.run[group * s.ld + c.j];
  else if (a.sel.f_in && c.j < a.Tk)
    run = a.sel.f_in[group * a.sel.f_stride + c.j];
  for (int i = 0; i < a.rows; i++) {
    const row_place row(s, c.b, i);
    float *S = s.S + matrix_row(s, c.b, a.G, c.g, i, s.ld) + c.j;
    float base = 0, selected = 0;
    if (c.may(s, row)) {
      if (c.bilinear) {
        base = a.scale * *S;
      } else {
        const float *by_distance =
            s.relative.P > 0 ? s.relative.row + matrix_row(s, c.b, a.H, c.head, i, s.relative.ld) : nullptr;
        base = stored_logit<KEYED>(s, terms, *S, by_distance, stored_distance(s, c.b, c.kv, row, c.j),
                                   {c.b, c.head, a.H / a.Hkv, row.position, c.j});
      }
      if (!a.sel.relu || base > 0) selected = strength * base;
    }
    *S = base;
    const float before = run;
    run += selected;
    if (s.F && !s.open) s.F[matrix_row(s, c.b, a.G, c.g, i, s.ld) + c.j] = a.sel.shift ? before : run;
    if (s.inspect && !s.open && c.j < a.Tk)
      s.inspect[(group * a.Tq + row.i) * a.Tk + c.j] = c.j < row.first || c.j > row.last || !a.sel.shift ? run : before;
  }
  if (s.run_out) s.run_out[group * s.ld + c.j] = run;
  if (a.sel.f_out && a.last_rows && c.j < a.Tk) a.sel.f_out[group * a.sel.f_stride + c.j] = run;
  if (!s.open) return;
  for (int i = 0; i < a.rows; i++) { /* the chunk has all rows */
    const row_place row(s, c.b, i);
    const int64_t at = matrix_row(s, c.b, a.G, c.g, i, s.ld) + c.j;
    const float base = s.S[at];
    const bool own = a.sel.shift && c.may(s, row) && (!a.sel.relu || base > 0);
    const float F = run - (own ? strength * base : 0.0f);
    s.F[at] = F;
    if (s.inspect && c.j < a.Tk) s.inspect[(group * a.Tq + i) * a.Tk + c.j] = F;
  }
}

/* M of L_mem (ops/attention.h), one warp per row. Grid: rows in fours, groups, sequences. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_memory(const stored_args s) {
  const int i = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31, g = blockIdx.y, b = blockIdx.z;
  if (i >= s.a.rows) return;
  const row_place row(s, b, i);
  const float *F = s.F + matrix_row(s, b, s.a.G, g, i, s.ld);
  float sum = 0;
  for (int j = row.first + lane; j <= row.last; j += 32) sum += 1 - fminf(F[j], s.a.sel.tau) / s.a.sel.tau;
  sum = wn_warp_sum(sum); /* sums what remains of each key: no large numbers cancel */
  if (lane == 0) s.a.sel.M[((int64_t)b * s.a.G + g) * s.a.Tq + row.i] = sum;
}

/* The gradient of F in a row, without L_mem's: what all heads of the group contribute. */
__device__ __forceinline__ float lost(const stored_args &s, const column_place &c, const row_place &row, int i) {
  if (c.j < row.first || c.j > row.last) return 0;
  const int share = s.a.H / s.a.G;
  float sum = 0;
  for (int h = c.g * share; h < (c.g + 1) * share; h++) sum -= s.dA[matrix_row(s, c.b, s.a.H, h, i, s.ld) + c.j];
  return sum;
}

/* Replaces S by the gradient of the selecting logits. Grid: as for stored_select. */
static __global__ void __launch_bounds__(STORED_THREADS) stored_select_back(const stored_args s) {
  const attention_args &a = s.a;
  const column_place c(s);
  if (c.j >= s.ld) return;
  const float strength = a.sel.strength ? a.sel.strength[c.g] : 1.0f;
  const int64_t group = (int64_t)c.b * a.G + c.g;
  float down = a.last_rows ? 0.0f : s.back[group * s.ld + c.j], by_strength = 0, all = 0;
  if (s.open)
    for (int i = 0; i < a.rows; i++) all += lost(s, c, row_place(s, c.b, i), i);
  for (int i = a.rows - 1; i >= 0; i--) {
    const row_place row(s, c.b, i);
    const int64_t at = matrix_row(s, c.b, a.G, c.g, i, s.ld) + c.j;
    float here = lost(s, c, row, i);
    if (a.sel.dM && c.j >= row.first && c.j <= row.last && s.F[at] < a.sel.tau)
      here -= a.sel.dM[group * a.Tq + row.i] / a.sel.tau;
    if (s.open)
      down = a.sel.shift ? all - here : all;
    else if (!a.sel.shift)
      down += here;
    const float base = s.S[at];
    const bool on = c.may(s, row) && (!a.sel.relu || base > 0);
    if (on) by_strength = fmaf(down, base, by_strength);
    s.S[at] = on ? strength * down : 0.0f;
    if (!s.open && a.sel.shift) down += here;
  }
  s.back[group * s.ld + c.j] = down;
  if (!a.sel.dstrength) return;
  float *to = a.sel.dstrength + group * s.ld + c.j;
  *to = a.last_rows ? by_strength : *to + by_strength;
}

} // namespace wn_cuda

#endif
