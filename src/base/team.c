/* Estimates how many CPUs other programs leave free: the busy time of this process's CPUs in /proc/stat, minus the
 * process's own CPU time, over windows of 0.2 s, averaged over a few windows. Without /proc/stat all CPUs count as
 * free. One reading takes about 30 microseconds; a call within a window only reads the clock.
 *
 * Time at lower priority (nice) counts only if this process also runs at lower priority; otherwise such programs give
 * way. */
#include "base/team.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/open.h"

enum { TEAM_CPUS = CPU_SETSIZE, TEAM_TEXT = 1 << 16 };
#define TEAM_WINDOW 0.2 /* seconds */

struct reading {
  double busy, own, at; /* seconds: busy time of our CPUs, CPU time of this process, clock */
  int cpus;
};

static atomic_flag team_reading = ATOMIC_FLAG_INIT; /* one thread reads at a time */
static _Atomic double team_next;                    /* when the window ends; 0: before the first reading */
static atomic_int team_free = INT_MAX;              /* CPUs available to our threads */
static struct reading team_last;                    /* guarded by team_reading */
static double team_others = -1;                     /* likewise: CPUs that others use, averaged; negative: unknown */
static char team_text[TEAM_TEXT];                   /* likewise */

int wn_team_size(int cpus, double others, int now) {
  const int fewer = (int)(cpus - others + 0.4), more = (int)(cpus - others + 0.2);
  const int size = now < more ? more : now < fewer ? now : fewer;
  return size < 1 ? 1 : size > cpus ? cpus : size;
}

/* Seconds that the CPUs of `set` were busy, from the lines "cpu0 user nice system idle iowait irq softirq ..." */
static bool team_busy(const char *text, const cpu_set_t *set, bool with_nice, double *busy, int *cpus) {
  const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
  *busy = 0, *cpus = 0;
  for (const char *line = text; line; line = strchr(line, '\n')) {
    int cpu;
    unsigned long long t[7];
    if (*line == '\n') line++;
    if (sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu", &cpu, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
               &t[6]) != 8 ||
        cpu < 0 || cpu >= TEAM_CPUS || !CPU_ISSET((size_t)cpu, set))
      continue;
    *busy += tick * (double)(t[0] + (with_nice ? t[1] : 0) + t[2] + t[5] + t[6]);
    ++*cpus;
  }
  return *cpus > 0 && *cpus == CPU_COUNT(set);
}

static bool team_read(struct reading *out) {
  cpu_set_t set;
  struct timespec own;
  if (sched_getaffinity(0, sizeof set, &set) != 0 || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return false;
  FILE *f = wn_open_system("/proc/stat");
  if (!f) return false;
  const size_t n = fread(team_text, 1, sizeof team_text - 1, f);
  fclose(f);
  team_text[n] = 0;
  char *rest = strstr(team_text, "\nintr"); /* cuts off the interrupts, often thousands */
  if (rest) *rest = 0;
  out->at = wn_seconds_now();
  out->own = (double)own.tv_sec + 1e-9 * (double)own.tv_nsec;
  return team_busy(team_text, &set, getpriority(PRIO_PROCESS, 0) > 0, &out->busy, &out->cpus);
}

static void team_update(double now) {
  struct reading r;
  atomic_store(&team_next, now + TEAM_WINDOW);
  if (!team_read(&r)) {
    atomic_store(&team_free, INT_MAX);
    team_others = -1;
    team_last.at = 0;
    return;
  }
  if (team_last.at > 0 && r.cpus == team_last.cpus && r.at - team_last.at > TEAM_WINDOW / 2) {
    double others = (r.busy - team_last.busy - (r.own - team_last.own)) / (r.at - team_last.at);
    if (others < 0) others = 0;
    /* After a long pause the old average means little. */
    const bool paused = team_others < 0 || r.at - team_last.at > 5 * TEAM_WINDOW;
    team_others = paused ? others : 0.5 * (team_others + others);
    atomic_store(&team_free, wn_team_size(r.cpus, team_others, atomic_load(&team_free)));
  }
  team_last = r;
}

static void team_look(void) {
  const double now = wn_seconds_now();
  if (now < atomic_load_explicit(&team_next, memory_order_relaxed)) return;
  if (atomic_flag_test_and_set(&team_reading)) return;
  if (now >= atomic_load(&team_next)) team_update(now);
  atomic_flag_clear(&team_reading);
}

void wn_team_watch(void) {
  team_look();
}

int wn_team(const wn_context *ctx, int threads) {
  if (!ctx || !ctx->yields || threads < 2) return threads;
  team_look();
  const int available = atomic_load_explicit(&team_free, memory_order_relaxed);
  return threads < available ? threads : available;
}

void wn_zero(int threads, size_t bytes, void *to) {
  const size_t part = 1 << 20; /* keeps each part at whole cache lines */
#pragma omp parallel for num_threads(bytes > part ? threads : 1) schedule(static)
  for (size_t i = 0; i < bytes; i += part) memset((char *)to + i, 0, bytes - i < part ? bytes - i : part);
}
