/* How many threads parallel regions take while other programs run (base/parallel.c). */
#ifndef WN_BASE_CROWD_H
#define WN_BASE_CROWD_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that shares its CPU with another program is away half the time, and whenever it is away inside a region the
 * others wait for it. Beside fewer programs than CPUs it is therefore better to leave each program a CPU and to take
 * the rest; beside as many or more, every thread that asks gets a share, and all threads together may get more than a
 * few would: it depends on how often they wait for each other. Which of the two holds is not guessed but tried: windows
 * of WN_CROWD_WINDOW are run with all threads and with fewer, and the time that the same regions take decides. */
struct wn_crowd_region {
  uint64_t key;
  double time[2], count[2]; /* with all threads, with fewer; older windows count less */
};
enum { WN_CROWD_REGIONS = 64 };
struct wn_crowd {
  int wanted, fewer; /* numbers of threads that are compared; 0: nothing known */
  bool few;          /* the choice: fewer */
  bool trying;       /* this window is run with the other number */
  bool settling;     /* the number has changed: the scheduler moves threads, and this window does not count */
  int better;        /* tries in succession that were for fewer */
  int tried;         /* windows of this try so far */
  int left, pause;   /* windows to go until the next try; windows between tries */
  double time;       /* seconds, of this window so far */
  double cpu, asked; /* CPU seconds of those regions of the window that were asked for them; their time */
  double got;        /* CPUs of all threads, averaged over the last windows; 0: unknown */
  struct wn_crowd_region regions[WN_CROWD_REGIONS]; /* by key, the last one of a place */
};
#define WN_CROWD_WINDOW 0.05 /* seconds inside regions */

/* Threads of the next region, of `wanted` > 1. */
int wn_crowd_threads(const struct wn_crowd *crowd, int wanted);

/* Adds a region that took `time` seconds and, where cpu >= 0, so many of CPUs: that is a system call, and a token's
 * regions are many and short, so a part of them is asked. Regions of one `key` have the same work. False: nobody else
 * runs, and there is nothing to measure until a thread is late again. */
bool wn_crowd_add(struct wn_crowd *crowd, int wanted, uint64_t key, double time, double cpu);

/* Contexts with a number of threads have exactly that many: while there is one, as any number of others, no region has
 * fewer. +1: such a context is created (`exact`), or one that takes what is free; -1: destroyed. */
void wn_crowd_context(bool exact, int change);
bool wn_crowd_yields(void);

#endif
