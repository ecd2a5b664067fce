/* winnow: for programs that measure time and memory on a backend. */
#ifndef WINNOW_MEASURE_H
#define WINNOW_MEASURE_H
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* Waits until the context's backend has finished its work, or has failed. A GPU goes on computing after a call has
 * returned, so a clock is stopped after this. On the host there is never anything to wait for. */
wn_status wn_context_wait(wn_context *ctx);
/* Bytes of all arrays in the backend's memory: now, and the peak since the start. Where that is the host's memory,
 * those of wn_memory_info. */
wn_status wn_context_memory(wn_context *ctx, unsigned long long *live_bytes, unsigned long long *peak_bytes);

WN_API_END

#endif
