/* Attention's kernels for bf16 rows, on tensor cores, with the terms that only some calls have
 * (attention/terms.cuh). */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/bf16.cuh"
#include "backends/cuda/attention/run.cuh"

namespace wn_cuda {

outcome run_bf16_terms(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  return run<bf16, all_terms>(what, c, scratch, rows, stream);
}

} // namespace wn_cuda
