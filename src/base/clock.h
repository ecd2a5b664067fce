/* Elapsed time, and waiting for it. A clock that is set back must not prolong a wait, so waits follow the monotonic
 * clock; the wall clock is only for what is written down (tools/check-silent). */
#ifndef WN_BASE_CLOCK_H
#define WN_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

/* Seconds on a monotonic clock; the zero point is arbitrary. */
double wn_seconds_now(void);
/* Nanoseconds since 1970 on the wall clock: for dates and seeds, never for waits. */
int64_t wn_wall_nanoseconds(void);

/* A condition variable for wn_cond_wait_until. */
void wn_cond_init(pthread_cond_t *cond);
/* Waits for a signal, until wn_seconds_now is `until` at the latest. Like pthread_cond_wait it may return early. */
void wn_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double until);

#endif
