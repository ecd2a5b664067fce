/* Attention's kernels with stored attention weights, for float and bf16 rows; and the evictions of a call, which start
 * with the same products. */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/walk_run.cuh"
#include "backends/cuda/launch.cuh"

namespace wn_cuda {

outcome run_stored(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  stored_call x;
  x.c = c, x.stream = stream;
  x.backward_pass = what == BACKWARD || what == MEASURE_BACKWARD;
  x.scratch = {static_cast<char *>(scratch), 0};
  x.plan(rows);
  if (what == FORWARD) return {0, x.forward()};
  if (what == BACKWARD) return {0, x.backward()};
  x.lay();
  return {x.scratch.used, nullptr};
}

} // namespace wn_cuda
