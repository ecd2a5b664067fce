/* Fused attention of the cpu backend: dense and selective, forward, backward and decoding. */
#ifndef WN_BACKENDS_CPU_ATTENTION_H
#define WN_BACKENDS_CPU_ATTENTION_H

#include "base/context.h"
#include "ops/attention.h"
#include "ops/ops.h"

/* Replaces the attention slots of `table` by the kernels for isa; changes nothing for WN_ISA_REF. */
void wn_cpu_attention_fill(struct wn_backend *table, enum wn_isa isa);

#endif
