/* Attention on rows in bf16 by a kernel that computes on exec->dtype: the rows are copied to its type in scratch, the
 * kernel runs, and what it wrote is rounded back. The same numbers as a call on the values that the rows stand for,
 * with y, dq, dk and dv rounded at the end. Costs a pass over the arrays, and their size again. */
#ifndef WN_BACKENDS_WIDE_ROWS_H
#define WN_BACKENDS_WIDE_ROWS_H

#include "ops/ops.h"

typedef wn_status wn_attention_slot(const struct wn_exec *, const struct wn_attention *);
typedef size_t wn_attention_scratch_slot(const struct wn_exec *, const struct wn_attention *, bool backward);

/* The call a->row_type asks for: `slot` itself unless its rows are in bf16. */
wn_status wn_wide_rows_run(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                           wn_attention_slot *slot);
/* Its scratch; enough for fewer and shorter sequences where that of `scratch` is. */
size_t wn_wide_rows_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                            wn_attention_scratch_slot *scratch);

#endif
