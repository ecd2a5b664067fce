/* Which number of threads gets more done beside other programs. */
#include "base/crowd.h"

#include <stdatomic.h>

#define CROWD_ALONE 0.75 /* of the CPUs wanted: who gets these runs alone */
#define CROWD_WORTH 1.15 /* all threads must get as many times the CPUs of fewer: they also wait for each other */
enum { CROWD_PAUSE = 10, CROWD_LONGEST = 80, CROWD_TRIES = 2 };

int wn_crowd_threads(const struct wn_crowd *crowd, int wanted) {
  const bool few = crowd->few != crowd->trying;
  return few && crowd->fewer < wanted ? crowd->fewer : wanted;
}

static void crowd_begin(struct wn_crowd *crowd, int wanted) {
  *crowd = (struct wn_crowd){.wanted = wanted, .fewer = wanted, .left = 1, .pause = CROWD_PAUSE};
}

static bool crowd_few_better(const struct wn_crowd *crowd) {
  return crowd->got[0] < CROWD_WORTH * crowd->got[1];
}

/* After a window with the other number. While fewer are taken, CPUs that become free must be noticed soon. */
static void crowd_choose(struct wn_crowd *crowd) {
  const bool few = crowd_few_better(crowd);
  if (few && !crowd->few && ++crowd->better < CROWD_TRIES) { /* the scheduler's luck in one window is not enough */
    crowd->trying = false, crowd->left = CROWD_PAUSE / 2;
    return;
  }
  crowd->better = 0;
  crowd->pause = few || few != crowd->few ? CROWD_PAUSE : 2 * crowd->pause;
  if (crowd->pause > CROWD_LONGEST) crowd->pause = CROWD_LONGEST;
  crowd->few = few, crowd->trying = false, crowd->left = crowd->pause;
}

static void crowd_try(struct wn_crowd *crowd) {
  if (!crowd->few) { /* the whole CPUs that all threads got: what the others leave */
    crowd->fewer = (int)(crowd->got[0] + 0.5);
    if (crowd->fewer < 1) crowd->fewer = 1;
    if (crowd->fewer >= crowd->wanted) crowd->fewer = crowd->wanted - 1;
  }
  crowd->trying = true;
  crowd->got[!crowd->few] = 0;
}

bool wn_crowd_add(struct wn_crowd *crowd, int wanted, double time, double cpu) {
  if (wanted > crowd->wanted) crowd_begin(crowd, wanted);
  if (wanted < crowd->wanted) return true; /* a region too small for all threads says nothing */
  crowd->time += time, crowd->cpu += cpu;
  if (crowd->time < WN_CROWD_WINDOW) return true;
  const bool few = crowd->few != crowd->trying;
  const double got = crowd->cpu / crowd->time;
  crowd->time = crowd->cpu = 0;
  crowd->got[few] = crowd->got[few] > 0 ? 0.5 * (crowd->got[few] + got) : got;
  if (!few && crowd->got[0] > CROWD_ALONE * wanted) {
    crowd_begin(crowd, wanted);
    return false;
  }
  if (crowd->trying)
    crowd_choose(crowd);
  else if (--crowd->left <= 0 || (crowd->few && !crowd_few_better(crowd)))
    crowd_try(crowd);
  return true;
}

static atomic_int crowd_contexts[2]; /* those that take what is free, those with a number of threads */

void wn_crowd_context(bool exact, int change) {
  atomic_fetch_add(&crowd_contexts[exact], change);
}

bool wn_crowd_yields(void) {
  return atomic_load_explicit(&crowd_contexts[0], memory_order_relaxed) > 0 &&
         atomic_load_explicit(&crowd_contexts[1], memory_order_relaxed) == 0;
}
