/* Helpers on top of vec.h for kernels compiled for one instruction set. Included only by kernels.inc. */
#ifndef WN_BACKENDS_CPU_ELEMENTWISE_KERNELS_H
#define WN_BACKENDS_CPU_ELEMENTWISE_KERNELS_H

#include <math.h>
#include <string.h>
#include "backends/cpu/cpu.h"
#include "backends/cpu/vec.h"
#include "base/alloc.h"

/* Loads, and below stores, the first n <= VL floats. */
V_INLINE vf v_load_upto(const float *p, int64_t n) {
  return n >= VL ? v_load(p) : v_loadn(p, (int)n);
}
V_INLINE void v_store_upto(float *p, vf a, int64_t n) {
  if (n >= VL)
    v_store(p, a);
  else
    v_storen(p, a, (int)n);
}

/* Loads, and below stores, n <= VL elements from element i on, in an array of floats or bf16. */
V_INLINE vf v_load_as(const void *base, int64_t i, int64_t n, bool bf16) {
  const uint16_t *p = (const uint16_t *)base + i;
  if (!bf16) return v_load_upto((const float *)base + i, n);
  return n >= VL ? v_load_bf16(p) : v_loadn_bf16(p, (int)n);
}
V_INLINE void v_store_as(void *base, int64_t i, vf a, int64_t n, bool bf16) {
  uint16_t *p = (uint16_t *)base + i;
  if (!bf16)
    v_store_upto((float *)base + i, a, n);
  else if (n >= VL)
    v_store_bf16(p, a);
  else
    v_storen_bf16(p, a, (int)n);
}

V_INLINE int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Waking the other threads takes some microseconds: not worthwhile for what one thread does in that time. */
V_INLINE int threads_for(const struct wn_exec *exec, int64_t elements) {
  return elements < 16384 ? 1 : exec->threads;
}
#define ROWS(slot, args, elements, n, block, each)                                                                     \
  static wn_status slot(const struct wn_exec *exec, const args *a);                                                    \
  WN_ROWS(slot, args, threads_for(exec, elements), n, block, each)

#endif
