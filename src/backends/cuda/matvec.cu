// A few rows of x times quantised weights: launches the kernels of matvec.cuh.
#include "backends/cuda/few_rows.cuh"
#include "backends/cuda/matvec.cuh"

template <int TYPE> static bool few_rows(const struct wn_exec *exec, wn_matvec_call c, int64_t M) {
  if (!wn_matvec_reads<TYPE>(c.w, c.K)) return false;
  const wn_packed_shape s = wn_packed_shape_of(TYPE);
  c.row_bytes = c.K / s.weights * s.bytes;
  const unsigned blocks = (unsigned)wn_cuda_parts(c.N, WN_MATVEC_ROWS * WN_MATVEC_THREADS / 32);
  for (int64_t done = 0; done < M;) {
    const int64_t left = M - done;
    const int rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto kernel = rows == 8   ? wn_matvec_kernel<TYPE, 8>
                        : rows == 4 ? wn_matvec_kernel<TYPE, 4>
                        : rows == 2 ? wn_matvec_kernel<TYPE, 2>
                                    : wn_matvec_kernel<TYPE, 1>;
    WN_LAUNCH(blocks, WN_MATVEC_THREADS, 0, wn_cuda_stream(exec), kernel, c);
    c.x += rows * c.ldx, c.y += rows * c.ldy, done += rows;
  }
  return true;
}

bool wn_cuda_few_rows(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t M, int64_t K,
                      const float *x, int64_t ldx, const float *b, float *y, int64_t ldy, bool accumulate) {
  const wn_matvec_call c = {part->rows, K, 0, static_cast<const uint8_t *>(part->data), x, b, ldx, y, ldy, accumulate};
  if (reinterpret_cast<uintptr_t>(x) % 16 != 0 || ldx % 4 != 0) return false;
  switch (part->type) {
#define WN_CASE(type)                                                                                                  \
  case type:                                                                                                           \
    return few_rows<type>(exec, c, M);
    WN_PACKED_TYPES(WN_CASE)
#undef WN_CASE
  default:
    return false;
  }
}
