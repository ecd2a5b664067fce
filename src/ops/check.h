/* Checks of each operation's arguments, called by the dispatch before the backend. */
#ifndef WN_OPS_CHECK_H
#define WN_OPS_CHECK_H

#include "ops/ops.h"

/* What is being checked, for messages. */
struct wn_check {
  const struct wn_exec *exec;
  const char *op;
};
wn_status wn_check_pointer(struct wn_check c, const char *field, const void *p); /* not NULL */
wn_status wn_check_least(struct wn_check c, const char *field, int64_t value, int64_t low);
wn_status wn_check_number(struct wn_check c, const char *field, double value, bool ok, const char *expected);
/* Checks that a product of sizes stays a valid index: x*y*z*8 bytes within 2^62. */
wn_status wn_check_product(struct wn_check c, const char *what, int64_t x, int64_t y, int64_t z);
/* The matrix [rows,K] that an operation reads: dense, or packed in whole blocks. */
wn_status wn_check_weights(struct wn_check c, const char *field, const void *dense, const struct wn_packed *p,
                           int64_t rows, int64_t K);
#define WN_OP_CHECK(name, args, has_backward)                                                                          \
  wn_status wn_check_##name(const struct wn_exec *exec, const args *a, bool backward);
WN_OPS(WN_OP_CHECK)

#endif
