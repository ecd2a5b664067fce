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

/* Of n independent calls, call i with exec[i]. */
wn_status wn_cuda_attention_together(const struct wn_exec *exec, const struct wn_attention *a, int64_t n);
wn_status wn_cuda_gather_together(const struct wn_exec *exec, const struct wn_gather *a, int64_t n);

/* Finds the device and creates what copies and waits need; later calls do nothing but make it the calling thread's.
 * _choose, before: the number of this process among those on its machine, each of which takes a device of its own where
 * there are several. Below: information on one of the devices. */
wn_status wn_cuda_begin(wn_context *ctx);
void wn_cuda_choose(int place);
wn_status wn_cuda_device(wn_context *ctx, int index, wn_device_info *out);

/* For tests: runs steps launch by launch, not as graphs (steps.cu). */
void wn_cuda_graphs_off(bool off);
/* For tests: runs the launches of a call one after the other, without overlap (beside.cu). */
void wn_cuda_overlap_off(bool off);
/* For wn_memory. */
void wn_cuda_step_begin(wn_context *ctx);
wn_status wn_cuda_step_end(wn_context *ctx);

/* For tests: uses winnow's own kernels for products even if there is cuBLASLt. */
void wn_cuda_blas_off(bool off);
/* Opens a shared library by name or path, through the winnow library (module.c); NULL: it is not there. */
void *wn_cuda_open_library(const char *path);

/* Device memory. */
extern const struct wn_memory wn_cuda_memory;
/* Messages between the devices of several processes (nccl.cu). */
extern const struct wn_dist_device wn_cuda_nccl;

const struct wn_backend *wn_backend_cuda_table(void);

#ifdef __cplusplus
}
#endif

#endif
