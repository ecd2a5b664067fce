/* The slots of the operation evictions (ops/evictions.h). Its kernels are in attention/walk.cuh, next to those for the
 * products. */
#include "backends/cuda/attention/call.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/policy.cuh"

extern "C" {
#include "ops/evictions.h"
}

size_t wn_cuda_evictions_scratch(const struct wn_exec *, const struct wn_evictions *a, bool) {
  if (wn_cuda_attend_lacks(a->a, false)) return 0;
  return wn_cuda::run_evictions(wn_cuda::MEASURE_FORWARD, a, nullptr, nullptr).bytes;
}

wn_status wn_cuda_evictions_forward(const struct wn_exec *exec, const struct wn_evictions *a) {
  const char *lacks = wn_cuda_attend_lacks(a->a, false);
  if (lacks) return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "evictions: backend cuda does not serve %s", lacks);
  if (a->rule.by == WN_EVICT_KIND && !wn_cuda::policy_kernels_for(a->rule.kind))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "evictions: backend cuda has no kernels of this policy");
  if (a->a->B == 0 || a->a->Tq == 0) return WN_OK;
  const char *error = wn_cuda::run_evictions(wn_cuda::FORWARD, a, exec->scratch, wn_cuda_stream(exec)).error;
  if (error) return wn_fail(exec->ctx, WN_ERR_IO, "evictions on cuda: %s", error);
  return wn_cuda_launched(exec, "evictions");
}
