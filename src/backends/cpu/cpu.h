/* The cpu backend's inside: what its files offer to its table. Single precision only (the dispatch refuses F64). */
#ifndef WN_BACKENDS_CPU_CPU_H
#define WN_BACKENDS_CPU_CPU_H

#include "backends/backends.h"

/* linear.c: products through oneDNN's sgemm. */
wn_status wn_cpu_linear_forward(const struct wn_exec *exec, const struct wn_linear *a);
wn_status wn_cpu_linear_backward(const struct wn_exec *exec, const struct wn_linear *a);

#endif
