/* The measure for the tolerance rule: each operation as a plain program in float would compute it. */
#ifndef TESTS_OPS_NAIVE_H
#define TESTS_OPS_NAIVE_H

#include "ops/ops.h"

const struct wn_backend *wn_backend_naive(void);
/* For bf16 rows attention rounds its operands to bf16 numbers divided by `factor`, which is at least 1 (the default)
 * and below 2: a grid as fine as that of bf16, but with other numbers. */
void wn_naive_shake(float factor);

#endif
