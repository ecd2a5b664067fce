// A few rows of x times quantised weights: launches the kernels of matvec.cuh.
#include "backends/cuda/few_rows.cuh"
#include "backends/cuda/matvec.cuh"

template <int TYPE, int MOST> static bool staged_rows(cudaStream_t stream, const wn_matvec_call &c, int rows) {
  typedef wn_staged<TYPE, MOST> S;
  const auto kernel = wn_staged_kernel<TYPE, MOST>;
  if (wn_shared_limit(kernel, S::BYTES) != cudaSuccess) return false;
  WN_LAUNCH((unsigned)wn_cuda_parts(c.N, S::ROWS * WN_STAGED_THREADS / 32), WN_STAGED_THREADS, S::BYTES, stream, kernel,
            c, rows);
  return true;
}

template <int TYPE> static bool few_rows(const struct wn_exec *exec, wn_matvec_call c, int64_t M) {
  if (!wn_matvec_reads<TYPE>(c.w, c.K)) return false;
  const wn_packed_shape s = wn_packed_shape_of(TYPE);
  const cudaStream_t stream = wn_cuda_stream(exec);
  c.row_bytes = c.K / s.weights * s.bytes;
  for (int64_t done = 0, rows; done < M; done += rows) {
    rows = wn_cuda_min(M - done, 16);
    if (rows == 1)
      WN_LAUNCH((unsigned)wn_cuda_parts(c.N, WN_MATVEC_ROWS * WN_MATVEC_THREADS / 32), WN_MATVEC_THREADS, 0, stream,
                wn_matvec_kernel<TYPE>, c);
    else if (!(rows <= 8 ? staged_rows<TYPE, 8> : staged_rows<TYPE, 16>)(stream, c, (int)rows))
      return false;
    c.x += rows * c.ldx, c.y += rows * c.ldy;
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
