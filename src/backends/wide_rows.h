/* Attention on bf16 rows with a kernel that computes in exec->dtype: the rows are copied to that type in scratch, the
 * kernel runs, and its results are rounded back. The result is that of a call with the converted values, with y, dq, dk
 * and dv rounded at the end. Costs a pass over the arrays, and scratch for the copies. */
#ifndef WN_BACKENDS_WIDE_ROWS_H
#define WN_BACKENDS_WIDE_ROWS_H

#include "ops/ops.h"

typedef wn_status wn_attention_slot(const struct wn_exec *, const struct wn_attention *);
typedef size_t wn_attention_scratch_slot(const struct wn_exec *, const struct wn_attention *, bool backward);

/* Runs the call: calls `slot` directly unless rows are bf16. */
wn_status wn_wide_rows_run(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                           wn_attention_slot *slot);
/* Bytes of scratch. It suffices for fewer and shorter sequences if that of `scratch` does. */
size_t wn_wide_rows_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                            wn_attention_scratch_slot *scratch);

/* The same for forward on keys and values that a cache stores in another type (k_type, v_type): decoded to floats. */
wn_status wn_wide_keys_run(const struct wn_exec *exec, const struct wn_attention *a, wn_attention_slot *slot);
size_t wn_wide_keys_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                            wn_attention_scratch_slot *scratch);

#endif
