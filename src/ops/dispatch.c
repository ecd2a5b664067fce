/* wn_op_<name>_forward, _backward, _scratch: checks the arguments (every backend relies on it), then calls the
 * backend's slot. An empty slot is WN_ERR_UNSUPPORTED with operation and backend; no other backend steps in. */
#include "base/alloc.h"
#include "ops/attention.h"
#include "ops/check.h"

static wn_status check_exec(const struct wn_exec *exec, const char *name, const void *args) {
  if (!exec) return WN_ERR_ARGUMENT;
  if (!args || !exec->backend) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "%s: no arguments or no backend", name);
  if (exec->threads < 1) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "%s: %d threads", name, exec->threads);
  if (exec->dtype != WN_F32 && exec->dtype != WN_F64)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "%s: dtype %s; operations compute in F32 or F64", name,
                   wn_dtype_name(exec->dtype));
  if (exec->dtype == WN_F64 && !exec->backend->doubles)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "%s: backend %s computes in F32 only; F64 needs ref", name,
                   exec->backend->name);
  if (exec->precision != WN_F32 && (exec->precision != WN_BF16 || exec->dtype != WN_F32))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "%s: precision %s with dtype %s; only BF16 with F32 is served", name,
                   wn_dtype_name(exec->precision), wn_dtype_name(exec->dtype));
  return WN_OK;
}

static wn_status check_scratch(const struct wn_exec *exec, const char *name, size_t needed) {
  if (needed == 0) return WN_OK;
  if (!exec->scratch || exec->scratch_bytes < needed)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "%s: scratch of %zu bytes, needs %zu", name,
                   exec->scratch ? exec->scratch_bytes : 0, needed);
  if ((uintptr_t)exec->scratch % WN_ALIGN)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "%s: scratch is not aligned to %d bytes", name, WN_ALIGN);
  return WN_OK;
}

static wn_status missing(const struct wn_exec *exec, const char *name, const char *direction) {
  return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "operation %s %s: backend %s does not have it", name, direction,
                 exec->backend->name);
}

#define DEFINE_SLOT(name, args, direction, backward)                                                                   \
  static wn_status check_##name##_##direction(const struct wn_exec *exec, const args *a) {                             \
    WN_TRY(check_exec(exec, #name, a));                                                                                \
    if (!exec->backend->name##_##direction) return missing(exec, #name, #direction);                                   \
    WN_TRY(wn_check_##name(exec, a, backward));                                                                        \
    if (exec->backend->name##_scratch)                                                                                 \
      WN_TRY(check_scratch(exec, #name, exec->backend->name##_scratch(exec, a, backward)));                            \
    return WN_OK;                                                                                                      \
  }                                                                                                                    \
  wn_status wn_op_##name##_##direction(const struct wn_exec *exec, const args *a) {                                    \
    WN_TRY(check_##name##_##direction(exec, a));                                                                       \
    return exec->backend->name##_##direction(exec, a);                                                                 \
  }

#define DEFINE(name, args, has_backward)                                                                               \
  DEFINE_SLOT(name, args, forward, false)                                                                              \
  DEFINE_SLOT(name, args, backward, true)                                                                              \
  size_t wn_op_##name##_scratch(const struct wn_exec *exec, const args *a, bool backward) {                            \
    if (!exec || !exec->backend || !a || !exec->backend->name##_scratch) return 0;                                     \
    return exec->backend->name##_scratch(exec, a, backward);                                                           \
  }

WN_OPS(DEFINE)

#define DEFINE_TOGETHER(name, args)                                                                                    \
  wn_status wn_op_##name##_together(const struct wn_exec *exec, const args *a, int64_t n) {                            \
    const bool together = n > 0 && exec->backend && exec->backend->name##_together;                                    \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      WN_TRY((together ? check_##name##_forward : wn_op_##name##_forward)(&exec[i], &a[i]));                           \
    return together ? exec->backend->name##_together(exec, a, n) : WN_OK;                                              \
  }
DEFINE_TOGETHER(attention, struct wn_attention)
DEFINE_TOGETHER(gather, struct wn_gather)
