/* The backends of this build. */
#ifndef WN_BACKENDS_BACKENDS_H
#define WN_BACKENDS_BACKENDS_H

#include "base/parallel.h"
#include "ops/ops.h"

const struct wn_backend *wn_backend_ref(void);
/* ref's table, with the slots replaced that this CPU has kernels for (chosen by isa); F32 only. */
const struct wn_backend *wn_backend_cpu(enum wn_isa isa);
/* Each backend of WN_BACKENDS has a table, or one for each instruction set. */
#define WN_BACKEND_DECLARE(name) const struct wn_backend *wn_backend_##name##_for(enum wn_isa isa);
WN_BACKENDS(WN_BACKEND_DECLARE, )
/* The context's backend. cuda's is in a module, which this call opens; without a module or a device it fails and says
 * why. */
wn_status wn_backend_of(wn_context *ctx, const struct wn_backend **out);
wn_status wn_backend_cuda_open(wn_context *ctx, const struct wn_backend **out);
/* For a program that links the backend itself and needs no module (tests/cuda). */
void wn_backend_cuda_linked(const struct wn_backend *backend);
/* Like wn_device_info_get. */
wn_status wn_backend_cuda_device(wn_context *ctx, int index, wn_device_info *out);
/* A host backend that computes the same as this one; the backend itself, if its memory is the host's. */
const struct wn_backend *wn_backend_beside(const wn_context *ctx, const struct wn_backend *backend);
/* How the context's backend multiplies with precision WN_BF16: "AMX" (in tiles), "AVX512_BF16", or "float32" (of
 * numbers rounded to bf16). */
const char *wn_backend_bf16(const wn_context *ctx);
/* How it multiplies prompts with quantised weights: "AMX", "AVX512_VNNI" or "float32". */
const char *wn_backend_prompts(const wn_context *ctx);
/* Below: NULL-terminated lists of names, and of "library version" strings of the linked libraries. */
const char *const *wn_backend_names(void);
const char *const *wn_backend_libraries(void);

/* What the threads of an operation are given. */
struct wn_call {
  const struct wn_exec *exec;
  const void *a;
};
/* Defines slot(exec, a), an operation whose rows 0..n-1 are shared by `threads` threads: `each` computes rows
 * from..to-1, where `from` is a multiple of `block`. Expressions may use exec and a. */
#define WN_ROWS(slot, args, threads, n, block, each)                                                                   \
  static void slot##_shared(void *call, int64_t from, int64_t to) {                                                    \
    const struct wn_exec *exec = ((const struct wn_call *)call)->exec;                                                 \
    const args *a = ((const struct wn_call *)call)->a;                                                                 \
    (void)exec;                                                                                                        \
    each;                                                                                                              \
  }                                                                                                                    \
  wn_status slot(const struct wn_exec *exec, const args *a) {                                                          \
    wn_parallel_blocks(threads, n, block, slot##_shared, &(struct wn_call){exec, a});                                  \
    return WN_OK;                                                                                                      \
  }

#endif
