/* Attention's kernels for float rows, with the terms that only some calls have (attention/terms.cuh). */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/floats.cuh"
#include "backends/cuda/attention/run.cuh"

namespace wn_cuda {

outcome run_floats_terms(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  return run<floats, all_terms>(what, c, scratch, rows, stream);
}

} // namespace wn_cuda
