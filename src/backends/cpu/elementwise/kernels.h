/* What a kernel file compiled for one instruction set shares: helpers over vec.h. Included by kernels.inc only. */
#ifndef WN_BACKENDS_CPU_ELEMENTWISE_KERNELS_H
#define WN_BACKENDS_CPU_ELEMENTWISE_KERNELS_H

#include <math.h>
#include <string.h>
#include "backends/cpu/cpu.h"
#include "backends/cpu/vec.h"
#include "base/team.h"

/* The first n <= VL floats, and back. */
V_INLINE vf v_load_upto(const float *p, int64_t n) {
  return n >= VL ? v_load(p) : v_loadn(p, (int)n);
}
V_INLINE void v_store_upto(float *p, vf a, int64_t n) {
  if (n >= VL)
    v_store(p, a);
  else
    v_storen(p, a, (int)n);
}

V_INLINE int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Waking the other threads costs some microseconds: not for what one thread does in that time. */
V_INLINE int threads_for(const struct wn_exec *exec, int64_t elements) {
  return elements < 16384 ? 1 : exec->threads;
}

#endif
