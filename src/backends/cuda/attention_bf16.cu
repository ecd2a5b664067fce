/* Attention's kernels for bf16 rows, on tensor cores. */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/bf16.cuh"
#include "backends/cuda/attention/run.cuh"

namespace wn_cuda {

outcome run_bf16(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  return run<bf16, no_terms>(what, c, scratch, rows, stream);
}

} // namespace wn_cuda
