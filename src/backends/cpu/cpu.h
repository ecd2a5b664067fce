/* The cpu backend's inside: what its files offer to its table. Single precision only (the dispatch refuses F64). */
#ifndef WN_BACKENDS_CPU_CPU_H
#define WN_BACKENDS_CPU_CPU_H

#include "backends/backends.h"

/* linear.c: products through oneDNN's sgemm. */
wn_status wn_cpu_linear_forward(const struct wn_exec *exec, const struct wn_linear *a);
wn_status wn_cpu_linear_backward(const struct wn_exec *exec, const struct wn_linear *a);

/* Up to this many rows of x (decoding) the forward product is bound by reading the weights and has its own kernel. */
#define WN_CPU_GEMV_ROWS 8

/* kernels.inc: every slot but attention's. Reached only where the CPU has the instruction set. */
void wn_cpu_fill_avx2(struct wn_backend *table);
void wn_cpu_fill_avx512(struct wn_backend *table);

#endif
