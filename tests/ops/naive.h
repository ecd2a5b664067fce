/* The measure of the tolerance law: each operation as a plain program in float would compute it. */
#ifndef TESTS_OPS_NAIVE_H
#define TESTS_OPS_NAIVE_H

#include "ops/ops.h"

const struct wn_backend *wn_backend_naive(void);
/* Attention on rows in bf16 rounds its operands to bf16 numbers over `factor`, from 1 to below 2: as near as bf16
 * numbers themselves, and others. 1 at first. */
void wn_naive_shake(float factor);

#endif
