/* The CUDA backend: its slots, each launching kernels on arrays that a device can read. The sources are CUDA C++ that
 * the tests also compile for the host (tests/cuda/emulate.h). */
#ifndef WN_BACKENDS_CUDA_CUDA_H
#define WN_BACKENDS_CUDA_CUDA_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WN_CUDA_DECLARE(name, args, has_backward)                                                                      \
  wn_status wn_cuda_##name##_forward(const struct wn_exec *, const args *);                                            \
  wn_status wn_cuda_##name##_backward(const struct wn_exec *, const args *);                                           \
  size_t wn_cuda_##name##_scratch(const struct wn_exec *, const args *, bool backward);
WN_OPS(WN_CUDA_DECLARE)

/* The device's. */
extern const struct wn_memory wn_cuda_memory;

const struct wn_backend *wn_backend_cuda_table(void);

/* A token drawn where the logits lie, by wn_sample's rule: *bad is 1 where a logit is NaN or infinite, 2 where none is
 * above minus infinity. Temperature 0: the largest. Sums are in another order than the CPU's. */
struct wn_cuda_sample {
  const float *logits; /* [V] */
  int64_t V, top_k;
  double temperature, top_p, min_p;
  uint64_t seed, step;
  int32_t *token, *bad; /* [1] */
};
wn_status wn_cuda_sample(const struct wn_exec *exec, const struct wn_cuda_sample *a);

#ifdef __cplusplus
}
#endif

#endif
