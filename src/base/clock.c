#include "base/clock.h"

#include <time.h>

double wn_seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t wn_wall_nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void wn_cond_init(pthread_cond_t *cond) {
  pthread_condattr_t how;
  pthread_condattr_init(&how);
  pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &how);
  pthread_condattr_destroy(&how);
}

void wn_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double until) {
  const double whole = (double)(int64_t)until;
  const struct timespec t = {.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (until - whole))};
  pthread_cond_timedwait(cond, lock, &t);
}
