// A few rows of x times quantised weights: launches the kernels of matvec.cuh. And rows of weights unpacked.
#include "backends/cuda/few_rows.cuh"
#include "backends/cuda/launch.cuh"
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

// A thread unpacks a unit of a row. Neighbouring threads have neighbouring units, so that each writes the whole of what
// a sector of memory has, 16 bytes of runs beside each other, or eight threads 64 bytes.
template <int TYPE>
static __global__ void __launch_bounds__(256)
    wn_unpack_kernel(const uint8_t *w, int64_t row_bytes, int64_t rows, int units, int64_t K, __nv_bfloat16 *out) {
  typedef wn_packed_unit<TYPE> T;
  typedef typename T::unit unit;
  constexpr int RUNS = unit::RUNS, SCALES = unit::SCALES, EACH = RUNS / SCALES;
  WN_GRID_LOOP(i, rows * units) {
    const int64_t row = (uint32_t)i / (uint32_t)units; // a panel has far fewer units than 2^32
    const int u = (int)(i - row * units);
    const typename T::raw raw = T::load(w + row * row_bytes, u);
    __nv_bfloat16 *to = out + row * K;
#pragma unroll
    for (int s = 0; s < SCALES; s++) {
      unit q;
      uint32_t two[EACH][2];
      T::unpack(q, raw, u, s);
#pragma unroll
      for (int r = 0; r < EACH; r++) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          v[k] = __fmul_rn(q.scale[s], q.q[s * EACH + r][k]);
          if (T::SHIFTS) v[k] = __fadd_rn(v[k], q.shift[s]);
        }
        two[r][0] = wn_pack_bf16(v[0], v[1]), two[r][1] = wn_pack_bf16(v[2], v[3]);
      }
#pragma unroll
      for (int r = 0; r<EACH; r += EACH> 1 ? 2 : 1) {
        __nv_bfloat16 *at = to + T::at(u, s * EACH + r);
        if constexpr (EACH > 1) // runs r and r + 1 follow each other
          *reinterpret_cast<uint4 *>(at) = {two[r][0], two[r][1], two[r + 1][0], two[r + 1][1]};
        else
          *reinterpret_cast<uint2 *>(at) = {two[r][0], two[r][1]};
      }
    }
  }
}

template <int TYPE>
static bool unpack(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t first, int64_t rows,
                   int64_t K, void *out) {
  if (!wn_matvec_reads<TYPE>(part->data, K) || reinterpret_cast<uintptr_t>(out) % 16 != 0 || K % 8 != 0) return false;
  const wn_packed_shape s = wn_packed_shape_of(TYPE);
  const int64_t row_bytes = K / s.weights * s.bytes;
  const int units = (int)(K / wn_packed_unit<TYPE>::WEIGHTS);
  WN_LAUNCH(wn_cuda_blocks(rows * units), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), wn_unpack_kernel<TYPE>,
            static_cast<const uint8_t *>(part->data) + first * row_bytes, row_bytes, rows, units, K,
            static_cast<__nv_bfloat16 *>(out));
  return true;
}

bool wn_cuda_unpack(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t first, int64_t rows,
                    int64_t K, void *out) {
  switch (part->type) {
#define WN_CASE(type)                                                                                                  \
  case type:                                                                                                           \
    return unpack<type>(exec, part, first, rows, K, out);
    WN_PACKED_TYPES(WN_CASE)
#undef WN_CASE
  default:
    return false;
  }
}
