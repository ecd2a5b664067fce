/* For tests of the cpu backend with every instruction set: a context, and the best set of this machine. */
#ifndef WN_TESTS_OPS_ISA_CONTEXT_H
#define WN_TESTS_OPS_ISA_CONTEXT_H

#include "backends/backends.h"

static wn_context *ctx;
static enum wn_isa best;

static int setup(void **unused) {
  (void)unused;
  assert_int_equal(wn_context_create(NULL, &ctx), WN_OK);
  return wn_cpu_select_isa(ctx, &best) == WN_OK ? 0 : 1;
}
static int teardown(void **unused) {
  (void)unused;
  wn_context_destroy(ctx);
  return 0;
}

#endif
