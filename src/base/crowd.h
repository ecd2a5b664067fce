/* How many threads parallel regions take while other programs run (base/regions.c). */
#ifndef WN_BASE_CROWD_H
#define WN_BASE_CROWD_H

#include <stdbool.h>

/* A thread that shares its CPU with another program is away half the time, and whenever it is away inside a region the
 * others wait for it. Beside fewer programs than CPUs it is therefore better to leave each program a CPU and to take
 * the rest; beside as many or more, every thread that asks gets a share, and all threads together get more than a few
 * would. Which of the two holds is not guessed but tried: windows of WN_CROWD_WINDOW are run with all threads and with
 * fewer, and the number of CPUs that each gets (processor time over time, inside regions) decides. */
struct wn_crowd {
  int wanted, fewer; /* numbers of threads that are compared; 0: nothing known */
  bool few;          /* the choice: fewer */
  bool trying;       /* this window is run with the other number */
  int better;        /* tries in succession that were for fewer */
  int left, pause;   /* windows to go until the next try; windows between tries */
  double time, cpu;  /* seconds, of this window so far */
  double got[2];     /* CPUs, averaged over the last windows: with all threads, with fewer; 0: unknown */
};
#define WN_CROWD_WINDOW 0.05 /* seconds inside regions */

/* Threads of the next region, of `wanted` > 1. */
int wn_crowd_threads(const struct wn_crowd *crowd, int wanted);

/* Adds a region that took `time` and `cpu` seconds. False: nobody else runs, and there is nothing to measure until a
 * thread is late again. */
bool wn_crowd_add(struct wn_crowd *crowd, int wanted, double time, double cpu);

/* Contexts with a number of threads have exactly that many: while there is one, as any number of others, no region has
 * fewer. +1: such a context is created (`exact`), or one that takes what is free; -1: destroyed. */
void wn_crowd_context(bool exact, int change);
bool wn_crowd_yields(void);

#endif
