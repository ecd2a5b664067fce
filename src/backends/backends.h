/* The backends of this build. */
#ifndef WN_BACKENDS_BACKENDS_H
#define WN_BACKENDS_BACKENDS_H

#include "ops/ops.h"

const struct wn_backend *wn_backend_ref(void);
/* ref's slots overridden by what this CPU has kernels for, chosen by isa; F32 only. */
const struct wn_backend *wn_backend_cpu(enum wn_isa isa);
/* Every backend of WN_BACKENDS: its table for an instruction set, as far as it has several. */
#define WN_BACKEND_DECLARE(name) const struct wn_backend *wn_backend_##name##_for(enum wn_isa isa);
WN_BACKENDS(WN_BACKEND_DECLARE, )
/* The context's. cuda's comes from a module, which this opens: why there is none, or no device, is its error. */
wn_status wn_backend_of(wn_context *ctx, const struct wn_backend **out);
wn_status wn_backend_cuda_open(wn_context *ctx, const struct wn_backend **out);
/* In place of the module: a program that is linked with the backend itself says so (tests/cuda). */
void wn_backend_cuda_linked(const struct wn_backend *backend);
/* As wn_device_info_get. */
wn_status wn_backend_cuda_device(wn_context *ctx, int index, wn_device_info *out);
/* A backend of the host's that computes what this one does: itself, where its memory is the host's. */
const struct wn_backend *wn_backend_beside(const wn_context *ctx, const struct wn_backend *backend);
/* How the context's backend multiplies with the precision WN_BF16: "AMX" (its tiles), "AVX512_BF16", or "float32", of
 * rounded numbers. */
const char *wn_backend_bf16(const wn_context *ctx);
/* Likewise prompts with packed weights: "AMX", "AVX512_VNNI" or "float32". */
const char *wn_backend_prompts(const wn_context *ctx);
/* NULL-terminated names; NULL-terminated "library version" strings of the libraries linked in. */
const char *const *wn_backend_names(void);
const char *const *wn_backend_libraries(void);

#endif
