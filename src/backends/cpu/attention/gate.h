/* Gated outputs around the kernels, which know nothing of them: forward, the rows of y are noted and multiplied where
 * the kernels left them; backward, the kernels get those rows and their gradient, dz = dy * g,  dg = dy * z   (summed
 * over the head where it has one gate) Costs a pass over y, backward one over dy, and the size of y in scratch. */
#ifndef WN_BACKENDS_CPU_ATTENTION_GATE_H
#define WN_BACKENDS_CPU_ATTENTION_GATE_H

#include "backends/wide_rows.h"
#include "ops/attention.h"

typedef wn_status wn_attention_kernels(const struct wn_exec *exec, const struct wn_attention *a, bool avx512,
                                       bool backward);

/* `kernels` itself where the call has no gates. Rows are in float. */
wn_status wn_gate_run(const struct wn_exec *exec, const struct wn_attention *a, bool avx512, bool backward,
                      wn_attention_kernels *kernels);
/* Its scratch; enough for fewer and shorter sequences where that of `scratch` is. */
size_t wn_gate_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                       wn_attention_scratch_slot *scratch);

#endif
