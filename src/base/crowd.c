/* Which number of threads gets more done beside other programs. */
#include "base/crowd.h"

#include <stdatomic.h>

#define CROWD_ALONE 0.75 /* of the CPUs wanted: who gets these runs alone */
#define CROWD_WORTH 0.97 /* fewer threads are taken if they need as much time: so does everybody else */
#define CROWD_CLEAR 1.15 /* times as much time: one window of one try is enough */
#define CROWD_KEEP 0.75  /* a window counts so much when the next one is over */
/* Windows of a try at most; windows between tries; of tries that agree, before fewer threads are taken. */
enum {
  CROWD_UNCLEAR = 4,
  CROWD_PAUSE = 10,
  CROWD_AGAIN = 5,
  CROWD_WHILE_FEW = 20,
  CROWD_FEW_LONGEST = 40,
  CROWD_LONGEST = 80,
  CROWD_TRIES = 2
};

static bool crowd_has_few(const struct wn_crowd *crowd) {
  return crowd->few != crowd->trying;
}

int wn_crowd_threads(const struct wn_crowd *crowd, int wanted) {
  return crowd_has_few(crowd) && crowd->fewer < wanted ? crowd->fewer : wanted;
}

static void crowd_begin(struct wn_crowd *crowd, int wanted) {
  *crowd = (struct wn_crowd){.wanted = wanted, .fewer = wanted, .left = 1, .pause = CROWD_PAUSE};
}

/* The share of their sums that the regions with all threads, or with fewer, keep. */
static void crowd_fade(struct wn_crowd *crowd, bool few, double share) {
  for (struct wn_crowd_region *r = crowd->regions; r < crowd->regions + WN_CROWD_REGIONS; r++)
    r->time[few] *= share, r->count[few] *= share;
}

static void crowd_note(struct wn_crowd *crowd, uint64_t key, double time) {
  struct wn_crowd_region *r = &crowd->regions[key % WN_CROWD_REGIONS];
  const bool few = crowd_has_few(crowd);
  if (r->key != key) *r = (struct wn_crowd_region){.key = key};
  r->time[few] += time, r->count[few]++;
}

/* The time of the regions that are known with both, with fewer threads: a share of that with all. */
static double crowd_ratio(const struct wn_crowd *crowd) {
  double sum[2] = {0};
  for (const struct wn_crowd_region *r = crowd->regions; r < crowd->regions + WN_CROWD_REGIONS; r++)
    for (int few = 0; few < 2 && r->count[0] > 0 && r->count[1] > 0; few++)
      sum[few] += (r->count[0] + r->count[1]) * r->time[few] / r->count[few];
  return sum[0] > 0 ? sum[1] / sum[0] : 1;
}

/* After a window with the other number. While fewer are taken, CPUs that become free must be noticed soon. */
static void crowd_choose(struct wn_crowd *crowd) {
  const double ratio = crowd_ratio(crowd);
  if (ratio > 1 / CROWD_CLEAR && ratio < CROWD_CLEAR && ++crowd->tried < CROWD_UNCLEAR) return;
  const bool few = ratio < CROWD_WORTH, clear = ratio <= 1 / CROWD_CLEAR;
  crowd->trying = false, crowd->settling = few == crowd->few;
  if (few && !crowd->few && !clear && ++crowd->better < CROWD_TRIES) { /* the scheduler's luck is not enough */
    crowd->settling = true, crowd->left = CROWD_AGAIN;
    return;
  }
  crowd->better = 0;
  const int longest = few ? CROWD_FEW_LONGEST : CROWD_LONGEST;
  crowd->pause = few == crowd->few ? 2 * crowd->pause : few ? CROWD_WHILE_FEW : CROWD_PAUSE;
  if (crowd->pause > longest) crowd->pause = longest;
  crowd->few = few, crowd->left = crowd->pause;
}

static void crowd_try(struct wn_crowd *crowd) {
  if (!crowd->few) { /* more than all threads got: fewer wait less */
    crowd->fewer = (int)crowd->got + 1;
    if (crowd->fewer >= crowd->wanted) crowd->fewer = crowd->wanted - 1;
  } else {
    crowd->got = 0;
  }
  crowd_fade(crowd, !crowd->few, 0);
  crowd->trying = crowd->settling = true, crowd->tried = 0;
}

bool wn_crowd_add(struct wn_crowd *crowd, int wanted, uint64_t key, double time, double cpu) {
  if (wanted > crowd->wanted) crowd_begin(crowd, wanted);
  if (wanted < crowd->wanted) return true; /* a region too small for all threads says nothing */
  if (!crowd->settling) crowd_note(crowd, key, time);
  crowd->time += time;
  if (cpu >= 0) crowd->cpu += cpu, crowd->asked += time;
  if (crowd->time < WN_CROWD_WINDOW || crowd->asked <= 0) return true;
  const double got = crowd->cpu / crowd->asked;
  const bool settled = !crowd->settling;
  crowd->time = crowd->cpu = crowd->asked = 0, crowd->settling = false;
  if (!settled) return true;
  if (!crowd_has_few(crowd)) {
    crowd->got = crowd->got > 0 ? 0.5 * (crowd->got + got) : got;
    if (crowd->got > CROWD_ALONE * wanted) {
      crowd_begin(crowd, wanted);
      return false;
    }
  }
  if (crowd->trying)
    crowd_choose(crowd);
  else if (--crowd->left <= 0 || (crowd->few && crowd_ratio(crowd) >= CROWD_WORTH))
    crowd_try(crowd);
  else
    crowd_fade(crowd, crowd->few, CROWD_KEEP);
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
