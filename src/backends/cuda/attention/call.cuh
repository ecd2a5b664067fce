/* What the sources that launch attention's kernels say to each other (attention.cu). */
#ifndef WN_BACKENDS_CUDA_ATTENTION_CALL_CUH
#define WN_BACKENDS_CUDA_ATTENTION_CALL_CUH

#include "backends/cuda/device.cuh"

#include "backends/cuda/attention.h"

struct wn_evictions;

namespace wn_cuda {

/* Scratch is measured with base NULL and laid out with the same calls. */
struct room {
  char *base;
  size_t used;
  template <class T> T *take(int64_t n) {
    T *p = base ? reinterpret_cast<T *>(base + used) : nullptr;
    used += (size_t)(n * (int64_t)sizeof(T) + 255) / 256 * 256;
    return p;
  }
};

enum pass { MEASURE_FORWARD, MEASURE_BACKWARD, FORWARD, BACKWARD };
struct outcome {
  size_t bytes;
  const char *error;
};
outcome run_floats(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
outcome run_bf16(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
outcome run_stored(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
/* The evictions of a call's rows; what they need of scratch: MEASURE_FORWARD. */
outcome run_evictions(pass what, const wn_evictions *op, void *scratch, cudaStream_t stream);
bool serves_score(const wn_score_kind *kind); /* does run_stored know the map? */
outcome run_sm90(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
/* A few rows over a cache: forward, where they are served. */
enum { DECODE_ROWS = 8 };
bool is_decode(const wn_attention *c);
outcome run_decode(pass what, const wn_attention *c, void *scratch, cudaStream_t stream);

} // namespace wn_cuda

#endif
