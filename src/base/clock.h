/* Elapsed time. */
#ifndef WN_BASE_CLOCK_H
#define WN_BASE_CLOCK_H

/* Seconds on a monotonic clock; the zero point is arbitrary. */
double wn_seconds_now(void);

#endif
