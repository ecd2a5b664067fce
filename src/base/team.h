/* How many threads work at the moment: no more than there are CPUs that other programs leave free. A thread that waits
 * for one that has no CPU spends its time in vain: on two CPUs with two other busy programs, two threads were 10 to 25
 * times slower than one. */
#ifndef WN_BASE_TEAM_H
#define WN_BASE_TEAM_H

#include "base/context.h"

/* Threads of the next parallel region of at most `threads`: fewer where ctx chose its threads by itself and others use
 * this process's CPUs. Work is divided by `threads`, so results do not depend on the answer. ctx NULL: `threads`. */
int wn_team(const wn_context *ctx, int threads);
/* Begins the watch over other programs; wn_context_create calls it. */
void wn_team_watch(void);

/* `bytes` of zeros, by so many threads. */
void wn_zero(int threads, size_t bytes, void *to);

/* The rule alone: threads for the next while, of `cpus` CPUs of which others used `others` while `now` threads worked.
 * It gives up a thread sooner than it takes one back, so that it does not swing. */
int wn_team_size(int cpus, double others, int now);

#endif
