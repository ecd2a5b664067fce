/* What the headers of terms share. A header in this folder has a term's mathematics, forward and backward, in plain C
 * that compiles into the reference (double), the CPU kernels of every instruction set, and CUDA. */
#ifndef WN_OPS_TERM_TERM_H
#define WN_OPS_TERM_TERM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/both.h"

/* Inline also in functions for an instruction set. */
#define WN_TERM WN_BOTH __attribute__((always_inline))

/* Whole numbers from first to last; none if last < first. */
struct wn_interval {
  int64_t first, last;
};

#endif
