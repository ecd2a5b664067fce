/* Gated outputs, wrapped around kernels without gates. Forward: y is saved, then multiplied in place. Backward: the
 * kernels get the saved y and its gradient, dz = dy * g, dg = dy * z (summed over the head where it has one gate) Costs
 * a pass over y, backward one over dy, and the size of y in scratch. */
#ifndef WN_BACKENDS_CPU_ATTENTION_GATE_H
#define WN_BACKENDS_CPU_ATTENTION_GATE_H

#include "backends/wide_rows.h"
#include "ops/attention.h"

typedef wn_status wn_attention_kernels(const struct wn_exec *exec, const struct wn_attention *a, bool backward);

/* Runs the kernels directly if the call has no gates. Rows are floats. */
wn_status wn_gate_run(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                      wn_attention_kernels *kernels);
/* Bytes of scratch. It suffices for fewer and shorter sequences if that of `scratch` does. */
size_t wn_gate_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                       wn_attention_scratch_slot *scratch);

#endif
