/* The checks of each operation's arguments, called by the dispatch before a backend sees them. */
#ifndef WN_OPS_CHECK_H
#define WN_OPS_CHECK_H

#include "ops/ops.h"

#define WN_OP_CHECK(name, args, has_backward)                                                                          \
  wn_status wn_check_##name(const struct wn_exec *exec, const args *a, bool backward);
WN_OPS(WN_OP_CHECK)

#endif
