/* For programs that measure: when a backend is done, and what its arrays take. */
#ifndef WINNOW_MEASURE_H
#define WINNOW_MEASURE_H
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* Waits until the context's backend has done all that was asked of it, or has failed. A GPU goes on after a call has
 * returned, so a clock is stopped behind this; on the host nothing is ever left to do. */
wn_status wn_context_wait(wn_context *ctx);
/* Bytes of all arrays in the backend's own memory, now and at most since the start; where that is the host's, of
 * wn_memory_info. */
wn_status wn_context_memory(wn_context *ctx, unsigned long long *live_bytes, unsigned long long *peak_bytes);

WN_API_END

#endif
