/* How many threads to use now: no more than the CPUs that other programs leave free. A thread that waits for another
 * that has no CPU wastes its time: on two CPUs with two other busy programs, two threads were 10 to 25 times slower
 * than one. */
#ifndef WN_BASE_TEAM_H
#define WN_BASE_TEAM_H

#include "base/context.h"

/* Threads for the next parallel region, at most `threads`: fewer if ctx chose its thread count itself and other
 * programs use this process's CPUs. Work is still divided by `threads`, so results do not depend on the answer. ctx
 * NULL: `threads`. */
int wn_team(const wn_context *ctx, int threads);
/* Starts the measurement; wn_context_create calls it. */
void wn_team_watch(void);

/* Zeros `bytes` bytes on this many threads. */
void wn_zero(int threads, size_t bytes, void *to);

/* The rule alone: the thread count for the next window, on `cpus` CPUs of which other programs used `others` while
 * `now` threads worked. It drops a thread sooner than it adds one, so that the count does not oscillate. */
int wn_team_size(int cpus, double others, int now);

#endif
