/* Functions that are compiled for the processor's widest vectors as well. */
#ifndef WN_BASE_WIDE_H
#define WN_BASE_WIDE_H

#include <stdint.h> /* __GLIBC__ */

/* Before a function: which of its forms runs is chosen when the program is loaded. Sums are in the order written and
 * nothing is contracted, so that all forms have the same bits. Only where the loader can choose; not under a
 * sanitizer, which is not set up when it does. For static functions (others would be exported) of what is not a kernel
 * of a backend. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(WN_SANITIZED)
#define WN_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WN_WIDE
#endif

/* The larger one, and the smaller; b where one is no number. Unlike fmax and fmin they are one instruction. */
static inline double wn_larger(double a, double b) {
  return a > b ? a : b;
}
static inline double wn_smaller(double a, double b) {
  return a < b ? a : b;
}

#endif
