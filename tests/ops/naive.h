/* The measure of the tolerance law: each operation as a plain program in float would compute it. */
#ifndef TESTS_OPS_NAIVE_H
#define TESTS_OPS_NAIVE_H

#include "ops/ops.h"

const struct wn_backend *wn_backend_naive(void);

#endif
