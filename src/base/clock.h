/* Elapsed time. */
#ifndef WN_BASE_CLOCK_H
#define WN_BASE_CLOCK_H

/* Seconds of a clock that only runs forward, from an arbitrary start. */
double wn_seconds_now(void);

#endif
