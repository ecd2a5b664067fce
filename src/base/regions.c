/* Threads of parallel regions, behind gcc's `#pragma omp` (regions.h says how the calls arrive here).
 *
 * Why not gcc's own library (libgomp): how long its idle threads spin can be set only by an environment variable that
 * is read at load time; after a fork the child of a process that has computed hangs in it; and on a machine with other
 * work its spinning takes time from everybody. So:
 * - A waiting thread spins for at most REGION_SPIN, which makes the next region of the same call start quickly, and
 *   then sleeps in a futex. Between calls nothing runs.
 * - The thread that began a region, and threads at a barrier, wait for others that work. If the wait outlasts the spin
 *   (the others have no CPU), all spin less from then on; if the others come in time, longer again.
 * - When the thread that began a region has done its own share, it takes back and does each share that no thread has
 *   begun. A thread without a CPU, or slow to wake, therefore delays a region only by a share that it has begun, and
 *   all threads can work on a machine where other programs run. Who does a share does not change its result.
 * - A wait for a late thread begins a measurement of how many threads get most done (base/crowd.h). While it lasts, a
 *   region of contexts that take the CPUs which are free (wn_context_options.threads 0) has as many threads as it says.
 * - Threads are shared: a region takes free ones in the order in which they were returned, creates those that are
 *   missing, and runs with fewer if none can be created. Two threads of a program therefore compute with different
 *   threads.
 * - After fork the child creates new threads. When the library is unloaded or the program ends, idle threads are
 *   joined.
 * - They block all signals: handlers run on the program's own threads.
 *
 * A region inside a region has one thread. gcc's code divides the work, by thread number and thread count.
 *
 * With OMP_WAIT_POLICY=passive nothing spins. Of OpenMP's other variables only OMP_NUM_THREADS is used (context.c).
 *
 * Cost of a region: a store and a load per spinning thread, a system call per sleeping thread. */
#include "base/regions.h"

#include "base/crowd.h"
#include "base/thread.h"

#ifdef WN_REGIONS

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if WN_HAVE_ONEDNN
void omp_set_num_threads(int threads); /* the compiler's OpenMP library, which oneDNN uses */
#endif

#define REGION_SPIN 200000L  /* nanoseconds */
#define REGION_LEAST 5000L   /* nanoseconds; never less, so that threads that come in time again are noticed */
#define REGION_ASKED 100000L /* nanoseconds; at most this often the system is asked for CPU time (0.4 microseconds) */
#define REGION_ASLEEP (1u << 31) /* a bit of a word: somebody sleeps on it */
enum { REGION_SHARES = 8, REGION_LINE = 64 };

/* --- waiting --- */

static long region_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1000000000L * t.tv_sec + t.tv_nsec;
}

static void region_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory"); /* takes some tens of cycles; "yield" takes none */
#endif
}

static void region_sleep(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void region_wake(_Atomic uint32_t *word, int threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

static long region_cpu(void) { /* of the process */
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1000000000L * t.tv_sec + t.tv_nsec;
}

static pthread_once_t region_once = PTHREAD_ONCE_INIT;
static long region_spin;             /* how long a thread spins at most, ns */
static _Atomic long region_patience; /* how long it spins now, ns; at most region_spin */
static atomic_bool region_crowded;   /* a thread came late: regions are measured */

/* Spins until (*word & mask) differs from `value`, for at most ns nanoseconds; true: it differs. */
static bool region_spin_for(_Atomic uint32_t *word, uint32_t mask, uint32_t value, long ns) {
  if ((atomic_load_explicit(word, memory_order_acquire) & mask) != value) return true;
  if (ns <= 0) return false;
  for (const long begin = region_now();;) {
    for (int k = 0; k < 32; k++) {
      region_pause();
      if ((atomic_load_explicit(word, memory_order_acquire) & mask) != value) return true;
    }
    if (region_now() - begin > ns) return false;
  }
}

/* Waits for threads that work, and adapts region_patience to how late they are. Before it sleeps it sets
 * REGION_ASLEEP. */
static void region_wait(_Atomic uint32_t *word, uint32_t value) {
  const uint32_t mask = ~REGION_ASLEEP;
  if ((atomic_load_explicit(word, memory_order_acquire) & mask) != value) return;
  const long now = atomic_load_explicit(&region_patience, memory_order_relaxed);
  const bool came = region_spin_for(word, mask, value, now);
  long next = came ? now + now / 4 : now / 2;
  if (next < REGION_LEAST) next = REGION_LEAST;
  if (next > region_spin) next = region_spin;
  if (next != now) atomic_store_explicit(&region_patience, next, memory_order_relaxed);
  if (came) return;
  if (!atomic_load_explicit(&region_crowded, memory_order_relaxed)) atomic_store(&region_crowded, true);
  for (;;) {
    uint32_t found = atomic_load_explicit(word, memory_order_acquire);
    if ((found & mask) != value) return;
    if (!(found & REGION_ASLEEP) && !atomic_compare_exchange_strong(word, &found, found | REGION_ASLEEP)) continue;
    region_sleep(word, value | REGION_ASLEEP);
  }
}

/* --- regions --- */

/* One work-sharing construct: a loop whose parts threads take one after the other, or a `single` block. */
struct region_share {
  _Alignas(REGION_LINE) _Atomic uint64_t state; /* 0: free, UINT64_MAX: being set up, else the construct's number + 1 */
  _Atomic uint32_t inside;                      /* threads that have not left the construct */
  long from, step, chunk, count;                /* count: number of iterations */
  _Atomic long next;                            /* the first iteration that no thread has taken */
};

struct region {
  void (*fn)(void *);
  void *data;
  unsigned threads;
  uint64_t constructs; /* entered by every thread at its start: 1 if the whole region is one loop, else 0 */
  _Alignas(REGION_LINE) _Atomic uint32_t working; /* threads but the first that have not finished; with REGION_ASLEEP */
  _Alignas(REGION_LINE) _Atomic uint32_t arrived; /* threads at the barrier */
  _Atomic uint32_t barriers;                      /* barriers passed; with REGION_ASLEEP */
  struct region_share shares[REGION_SHARES];      /* construct n has shares[n % REGION_SHARES] */
};

static _Thread_local struct {
  struct region *region; /* NULL: outside */
  int thread;
  uint64_t constructs; /* loops and singles that this thread has entered */
} region_here;

int wn_region_thread(void) {
  return region_here.thread;
}
int wn_region_threads(void) {
  return region_here.region ? (int)region_here.region->threads : 1;
}

void wn_region_barrier(void) {
  struct region *r = region_here.region;
  if (!r || r->threads == 1) return;
  const uint32_t passed = atomic_load_explicit(&r->barriers, memory_order_relaxed) & ~REGION_ASLEEP;
  if (atomic_fetch_add_explicit(&r->arrived, 1, memory_order_acq_rel) + 1 < r->threads) {
    region_wait(&r->barriers, passed);
    return;
  }
  atomic_store_explicit(&r->arrived, 0, memory_order_relaxed);
  if (atomic_exchange(&r->barriers, (passed + 1) & ~REGION_ASLEEP) & REGION_ASLEEP) region_wake(&r->barriers, INT_MAX);
}

/* The share of this thread's next construct. *first: this thread must set it up and then store *number in ->state.
 * Shares are reused in turn; if a slower thread is still in this one, wait for it. */
static struct region_share *region_share(bool *first, uint64_t *number) {
  struct region *r = region_here.region;
  *number = ++region_here.constructs;
  struct region_share *s = &r->shares[*number % REGION_SHARES];
  for (int tries = 0;; tries++) {
    uint64_t found = atomic_load_explicit(&s->state, memory_order_acquire);
    *first = false;
    if (found == *number) return s;
    if (found == 0 && atomic_compare_exchange_strong(&s->state, &found, UINT64_MAX)) {
      *first = true;
      atomic_store_explicit(&s->inside, r->threads, memory_order_relaxed);
      return s;
    }
    if (tries < 1000)
      region_pause();
    else
      sched_yield();
  }
}

static void region_leave(struct region_share *s) {
  if (atomic_fetch_sub_explicit(&s->inside, 1, memory_order_acq_rel) == 1)
    atomic_store_explicit(&s->state, 0, memory_order_release);
}

bool wn_region_single(void) {
  if (!region_here.region) return true;
  bool first;
  uint64_t number;
  struct region_share *s = region_share(&first, &number);
  if (first) atomic_store_explicit(&s->state, number, memory_order_release);
  region_leave(s);
  return first;
}

static long region_iterations(long from, long to, long step) {
  const long n = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
  return n < 0 ? 0 : n;
}
static void region_loop_set(struct region_share *s, long from, long to, long step, long chunk) {
  s->from = from, s->step = step, s->chunk = chunk < 1 ? 1 : chunk, s->count = region_iterations(from, to, step);
  atomic_store_explicit(&s->next, 0, memory_order_relaxed);
}

bool wn_region_loop_next(long *first, long *end) {
  if (!region_here.region) return false;
  struct region_share *s = &region_here.region->shares[region_here.constructs % REGION_SHARES];
  const long i = atomic_fetch_add_explicit(&s->next, s->chunk, memory_order_relaxed);
  if (i >= s->count) return false;
  *first = s->from + i * s->step;
  *end = s->from + (s->count - i < s->chunk ? s->count : i + s->chunk) * s->step;
  return true;
}

bool wn_region_loop(long from, long to, long step, long chunk, long *first, long *end) {
  if (!region_here.region) { /* outside a region: all iterations at once */
    *first = from, *end = from + region_iterations(from, to, step) * step;
    return *first != *end;
  }
  bool mine;
  uint64_t number;
  struct region_share *s = region_share(&mine, &number);
  if (mine) {
    region_loop_set(s, from, to, step, chunk);
    atomic_store_explicit(&s->state, number, memory_order_release);
  }
  return wn_region_loop_next(first, end);
}

void wn_region_loop_end_nowait(void) {
  if (region_here.region) region_leave(&region_here.region->shares[region_here.constructs % REGION_SHARES]);
}
void wn_region_loop_end(void) {
  wn_region_loop_end_nowait();
  wn_region_barrier();
}

static pthread_mutex_t region_unnamed = PTHREAD_MUTEX_INITIALIZER;

void wn_region_critical(void) {
  pthread_mutex_lock(&region_unnamed);
}
void wn_region_critical_end(void) {
  pthread_mutex_unlock(&region_unnamed);
}

/* One word per name, initially 0; 1: locked; with REGION_ASLEEP: others may be waiting. */
void wn_region_critical_name(void **lock) {
  _Atomic uint32_t *word = (_Atomic uint32_t *)lock;
  uint32_t free = 0;
  if (atomic_compare_exchange_strong(word, &free, 1)) return;
  while (atomic_exchange(word, 1 | REGION_ASLEEP) != 0) region_sleep(word, 1 | REGION_ASLEEP);
}
void wn_region_critical_name_end(void **lock) {
  _Atomic uint32_t *word = (_Atomic uint32_t *)lock;
  if (atomic_exchange(word, 0) & REGION_ASLEEP) region_wake(word, 1);
}

/* --- threads --- */

/* `calls` is even while the worker is idle (with REGION_ASLEEP if it sleeps) and odd while it is called. Whoever makes
 * it even again does the share: the worker, or the caller that takes it back. */
struct region_worker {
  _Alignas(REGION_LINE) _Atomic uint32_t calls;
  struct region *region; /* NULL: the thread ends */
  int thread;
  struct region_worker *next; /* in the free list, or in a region's list */
  pthread_t handle;
};

static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
static struct region_worker *region_free; /* guarded by region_lock, as is region_closed */
static bool region_closed;
static atomic_flag region_measuring = ATOMIC_FLAG_INIT; /* one region at a time */
static struct wn_crowd region_crowd;                    /* with region_measuring */

static void region_call(struct region_worker *w, struct region *r, int thread) {
  w->region = r, w->thread = thread;
  const uint32_t rest = atomic_load_explicit(&w->calls, memory_order_relaxed) & ~REGION_ASLEEP;
  if (atomic_exchange(&w->calls, rest + 1) & REGION_ASLEEP) region_wake(&w->calls, 1);
}

/* True: the share of the call that w has in `found` is the caller's, and nobody else begins it. */
static bool region_begun(struct region_worker *w, uint32_t found) {
  return (found & 1) && atomic_compare_exchange_strong(&w->calls, &found, (found + 1) & ~REGION_ASLEEP);
}

/* One thread's share of a region. */
static void region_share_run(struct region *r, int thread) {
  region_here.region = r, region_here.thread = thread, region_here.constructs = r->constructs;
  r->fn(r->data);
}

static void *region_work(void *of) {
  struct region_worker *w = of;
#if WN_HAVE_ONEDNN
  omp_set_num_threads(1); /* each part of a product runs on one thread */
#endif
  for (;;) {
    uint32_t found = atomic_load_explicit(&w->calls, memory_order_acquire);
    const long spin = atomic_load_explicit(&region_patience, memory_order_relaxed);
    if (!(found & 1) && !region_spin_for(&w->calls, ~REGION_ASLEEP, found, spin)) {
      if (atomic_compare_exchange_strong(&w->calls, &found, found | REGION_ASLEEP))
        while (atomic_load_explicit(&w->calls, memory_order_acquire) == (found | REGION_ASLEEP))
          region_sleep(&w->calls, found | REGION_ASLEEP);
    }
    if (!region_begun(w, atomic_load_explicit(&w->calls, memory_order_acquire))) continue;
    struct region *r = w->region;
    if (!r) return NULL;
    region_share_run(r, w->thread);
    /* From here on the region may be gone; its word is used only as the address of a futex to wake. */
    const uint32_t left = atomic_fetch_sub(&r->working, 1) - 1;
    if (left == REGION_ASLEEP) region_wake(&r->working, 1);
  }
}

static struct region_worker *region_worker_create(void) {
  struct region_worker *w = aligned_alloc(REGION_LINE, sizeof *w);
  if (!w) return NULL;
  memset(w, 0, sizeof *w);
  if (wn_thread_start(&w->handle, region_work, w)) return w;
  free(w);
  return NULL;
}

/* Takes at most `wanted` threads, as a list; *count: how many. */
static struct region_worker *region_take(unsigned wanted, unsigned *count) {
  struct region_worker *list = NULL, **last = &list;
  *count = 0;
  pthread_mutex_lock(&region_lock);
  for (; *count < wanted && !region_closed; ++*count) {
    struct region_worker *w = region_free;
    if (w)
      region_free = w->next;
    else if (!(w = region_worker_create()))
      break;
    *last = w, last = &w->next;
  }
  *last = NULL;
  pthread_mutex_unlock(&region_lock);
  return list;
}

static void region_give_back(struct region_worker *list) {
  struct region_worker **last = &list;
  while (*last) last = &(*last)->next;
  pthread_mutex_lock(&region_lock);
  *last = region_free, region_free = list;
  pthread_mutex_unlock(&region_lock);
}

static void region_before_fork(void) {
  pthread_mutex_lock(&region_lock);
}
static void region_after_fork(void) {
  pthread_mutex_unlock(&region_lock);
}
/* After fork the threads exist only in the parent: forget the idle ones. */
static void region_in_child(void) {
  pthread_mutex_init(&region_unnamed, NULL); /* threads of the parent may have held it, */
  atomic_flag_clear(&region_measuring);      /* and been inside a region */
  while (region_free) {
    struct region_worker *w = region_free;
    region_free = w->next;
    free(w);
  }
  pthread_mutex_unlock(&region_lock);
}

static void region_init(void) {
  const char *policy = getenv("OMP_WAIT_POLICY");
  region_spin = policy && !strcasecmp(policy, "passive") ? 0 : REGION_SPIN;
  atomic_store(&region_patience, region_spin);
  pthread_atfork(region_before_fork, region_after_fork, region_in_child);
}

__attribute__((destructor)) static void region_exit(void) {
  pthread_mutex_lock(&region_lock);
  region_closed = true;
  struct region_worker *list = region_free;
  region_free = NULL;
  pthread_mutex_unlock(&region_lock);
  for (struct region_worker *w = list; w; w = w->next) region_call(w, NULL, 0);
  while (list) {
    struct region_worker *w = list;
    list = w->next;
    pthread_join(w->handle, NULL);
    free(w);
  }
}

/* Runs a region on `threads` threads; the calling one is thread 0. */
static void region_run(struct region *r, unsigned threads) {
  unsigned others = 0;
  struct region_worker *list = NULL;
  if (threads > 1 && !region_here.region) {
    pthread_once(&region_once, region_init);
    list = region_take(threads - 1, &others);
  }
  r->threads = others + 1;
  atomic_store_explicit(&r->shares[1].inside, r->threads, memory_order_relaxed); /* used if r->constructs is 1 */
  atomic_store_explicit(&r->working, others, memory_order_relaxed);
  int thread = 1;
  for (struct region_worker *w = list; w; w = w->next) region_call(w, r, thread++);

  struct region *const outer = region_here.region;
  const int outer_thread = region_here.thread;
  const uint64_t outer_constructs = region_here.constructs;
  region_share_run(r, 0);
  for (struct region_worker *w = list; w; w = w->next)
    if (region_begun(w, atomic_load_explicit(&w->calls, memory_order_relaxed))) {
      region_share_run(r, w->thread);
      atomic_fetch_sub(&r->working, 1);
    }
  region_here.region = outer, region_here.thread = outer_thread, region_here.constructs = outer_constructs;

  for (uint32_t left; (left = atomic_load_explicit(&r->working, memory_order_acquire) & ~REGION_ASLEEP) > 0;)
    region_wait(&r->working, left);
  if (list) region_give_back(list);
}

static void region_begin(struct region *r, unsigned threads) {
  if (threads < 2 || region_here.region || !atomic_load_explicit(&region_crowded, memory_order_relaxed) ||
      !wn_crowd_yields() || atomic_flag_test_and_set(&region_measuring)) {
    region_run(r, threads);
    return;
  }
  static long last; /* with region_measuring */
  const long time = region_now();
  const bool asked = time - last >= REGION_ASKED;
  if (asked) last = time;
  const long cpu = asked ? region_cpu() : 0;
  region_run(r, (unsigned)wn_crowd_threads(&region_crowd, (int)threads));
  const uint64_t key = (uint64_t)(uintptr_t)r->fn + 0x9e3779b97f4a7c15u * (uint64_t)r->shares[1].count;
  if (!wn_crowd_add(&region_crowd, (int)threads, key ^ key >> 29, 1e-9 * (double)(region_now() - time),
                    asked ? 1e-9 * (double)(region_cpu() - cpu) : -1))
    atomic_store(&region_crowded, false);
  atomic_flag_clear(&region_measuring);
}

void wn_region_run(void (*fn)(void *), void *data, unsigned threads, unsigned flags) {
  (void)flags; /* thread binding, which nothing here asks for */
  struct region r = {.fn = fn, .data = data};
  region_begin(&r, threads);
}

void wn_region_run_loop(void (*fn)(void *), void *data, unsigned threads, long from, long to, long step, long chunk,
                        unsigned flags) {
  (void)flags;
  struct region r = {.fn = fn, .data = data, .constructs = 1};
  region_loop_set(&r.shares[1], from, to, step, chunk);
  atomic_store_explicit(&r.shares[1].state, 1, memory_order_relaxed);
  region_begin(&r, threads);
}

#endif
