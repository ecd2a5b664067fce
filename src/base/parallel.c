/* Threads of parallel regions (parallel.h).
 *
 * Why not a compiler's OpenMP: how long gcc's idle threads spin can be set only by an environment variable that is read
 * at load time, after a fork the child of a process that has computed hangs in it, and on a machine with other work its
 * spinning takes time from everybody; clang's has another interface, and Apple's compiler none. So:
 * - A waiting thread spins for at most REGION_SPIN, which makes the next region of the same call start quickly, and
 *   then sleeps. Between calls nothing runs.
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
 * With OMP_WAIT_POLICY=passive nothing spins. Of OpenMP's other variables only OMP_NUM_THREADS is used (context.c).
 *
 * Cost of a region: a store and a load per spinning thread, a system call per sleeping thread. */
#include "base/parallel.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/crowd.h"
#include "base/thread.h"

#if WN_HAVE_ONEDNN
void omp_set_num_threads(int threads); /* the compiler's OpenMP library, which oneDNN uses */
#endif

#define REGION_SPIN 200000L  /* nanoseconds */
#define REGION_LEAST 5000L   /* nanoseconds; never less, so that threads that come in time again are noticed */
#define REGION_ASKED 100000L /* nanoseconds; at most this often the system is asked for CPU time (0.4 microseconds) */
#define REGION_ASLEEP (1u << 31) /* a bit of a word: somebody sleeps on it */
enum { REGION_LINE = 64 };

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

/* Sleeps while *word is `value`, or less long; region_wake ends it, for at most so many threads that sleep on the word.
 * Only the address of the word is used there: its region may be gone. */
#if defined(__linux__) && !defined(WN_WITHOUT_FUTEX)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
static void region_sleep(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void region_wake(_Atomic uint32_t *word, int threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}
static void region_sleep_init(void) {}
#else /* one place for all words: whoever is woken looks at its own */
static pthread_mutex_t region_bed;
static pthread_cond_t region_bell;
static void region_sleep(_Atomic uint32_t *word, uint32_t value) {
  pthread_mutex_lock(&region_bed);
  if (atomic_load(word) == value) pthread_cond_wait(&region_bell, &region_bed);
  pthread_mutex_unlock(&region_bed);
}
static void region_wake(_Atomic uint32_t *word, int threads) {
  (void)word, (void)threads;
  pthread_mutex_lock(&region_bed);
  pthread_cond_broadcast(&region_bell);
  pthread_mutex_unlock(&region_bed);
}
/* In a child too: a thread of the parent may have held the one and slept on the other. */
static void region_sleep_init(void) {
  pthread_mutex_init(&region_bed, NULL);
  wn_cond_init(&region_bell);
}
#endif

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

struct region {
  void (*fn)(void *); /* each hand's, or one of these */
  void (*each)(void *, int64_t);
  void (*range)(void *, int64_t, int64_t);
  void *arg;
  int64_t n, block;
  bool tasks; /* of each: a hand takes one after the other */
  unsigned threads;
  _Alignas(REGION_LINE) _Atomic uint32_t working; /* threads but the first that have not finished; with REGION_ASLEEP */
  _Alignas(REGION_LINE) _Atomic uint32_t arrived; /* threads at the barrier */
  _Atomic uint32_t barriers;                      /* barriers passed; with REGION_ASLEEP */
  _Alignas(REGION_LINE) _Atomic int64_t next;     /* the first that no hand has taken */
};

static _Thread_local struct {
  struct region *region; /* NULL: outside */
  int hand;
} region_here;

int wn_hand(void) {
  return region_here.hand;
}
int wn_hands(void) {
  return region_here.region ? (int)region_here.region->threads : 1;
}

struct wn_share wn_share(int64_t n) {
  const int64_t hand = wn_hand(), hands = wn_hands(), each = n / hands, more = n % hands;
  const int64_t at = hand * each + (hand < more ? hand : more);
  return (struct wn_share){.at = at, .end = at + each + (hand < more)};
}

bool wn_task(int64_t n, int64_t *task) {
  *task = atomic_fetch_add_explicit(&region_here.region->next, 1, memory_order_relaxed);
  return *task < n;
}

void wn_barrier(void) {
  struct region *r = region_here.region;
  if (!r) return;
  const uint32_t passed = atomic_load_explicit(&r->barriers, memory_order_relaxed) & ~REGION_ASLEEP;
  if (atomic_fetch_add_explicit(&r->arrived, 1, memory_order_acq_rel) + 1 < r->threads) {
    region_wait(&r->barriers, passed);
    return;
  }
  atomic_store_explicit(&r->arrived, 0, memory_order_relaxed);
  atomic_store_explicit(&r->next, 0, memory_order_relaxed);
  if (atomic_exchange(&r->barriers, (passed + 1) & ~REGION_ASLEEP) & REGION_ASLEEP) region_wake(&r->barriers, INT_MAX);
}

/* --- threads --- */

/* `calls` is even while the worker is idle (with REGION_ASLEEP if it sleeps) and odd while it is called. Whoever makes
 * it even again does the share: the worker, or the caller that takes it back. */
struct region_worker {
  _Alignas(REGION_LINE) _Atomic uint32_t calls;
  struct region *region; /* NULL: the thread ends */
  int hand;
  struct region_worker *next; /* in the free list, or in a region's list */
  pthread_t handle;
};

static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
static struct region_worker *region_free; /* guarded by region_lock, as is region_closed */
static bool region_closed;
static atomic_flag region_measuring = ATOMIC_FLAG_INIT; /* one region at a time */
static struct wn_crowd region_crowd;                    /* with region_measuring */

static void region_call(struct region_worker *w, struct region *r, int hand) {
  w->region = r, w->hand = hand;
  const uint32_t rest = atomic_load_explicit(&w->calls, memory_order_relaxed) & ~REGION_ASLEEP;
  if (atomic_exchange(&w->calls, rest + 1) & REGION_ASLEEP) region_wake(&w->calls, 1);
}

/* True: the share of the call that w has in `found` is the caller's, and nobody else begins it. */
static bool region_begun(struct region_worker *w, uint32_t found) {
  return (found & 1) && atomic_compare_exchange_strong(&w->calls, &found, (found + 1) & ~REGION_ASLEEP);
}

/* One hand's share of a region. */
static void region_share(struct region *r, int hand) {
  region_here.region = r, region_here.hand = hand;
  const int64_t blocks = r->block > 1 ? (r->n + r->block - 1) / r->block : r->n;
  struct wn_share share = wn_share(blocks);
  if (r->fn)
    r->fn(r->arg);
  else if (r->tasks)
    for (int64_t i; wn_task(r->n, &i);) r->each(r->arg, i);
  else if (r->each)
    for (; share.at < share.end; share.at++) r->each(r->arg, share.at);
  else if (share.at < share.end)
    r->range(r->arg, share.at * r->block, share.end < blocks ? share.end * r->block : r->n);
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
    region_share(r, w->hand);
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
  region_sleep_init();
  atomic_flag_clear(&region_measuring); /* a thread of the parent may have been inside a region */
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
  region_sleep_init();
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

/* Runs a region on `threads` threads; the calling one is hand 0. */
static void region_run(struct region *r, unsigned threads) {
  unsigned others = 0;
  struct region_worker *list = NULL;
  if (threads > 1 && !region_here.region) {
    pthread_once(&region_once, region_init);
    list = region_take(threads - 1, &others);
  }
  r->threads = others + 1;
  atomic_store_explicit(&r->working, others, memory_order_relaxed);
  int hand = 1;
  for (struct region_worker *w = list; w; w = w->next) region_call(w, r, hand++);

  struct region *const outer = region_here.region;
  const int outer_hand = region_here.hand;
  region_share(r, 0);
  for (struct region_worker *w = list; w; w = w->next)
    if (region_begun(w, atomic_load_explicit(&w->calls, memory_order_relaxed))) {
      region_share(r, w->hand);
      atomic_fetch_sub(&r->working, 1);
    }
  region_here.region = outer, region_here.hand = outer_hand;

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
  const uint64_t fn = (uint64_t)(uintptr_t)r->fn + (uint64_t)(uintptr_t)r->each + (uint64_t)(uintptr_t)r->range;
  const uint64_t key = fn + 0x9e3779b97f4a7c15u * (uint64_t)(r->tasks ? r->n : 0);
  if (!wn_crowd_add(&region_crowd, (int)threads, key ^ key >> 29, 1e-9 * (double)(region_now() - time),
                    asked ? 1e-9 * (double)(region_cpu() - cpu) : -1))
    atomic_store(&region_crowded, false);
  atomic_flag_clear(&region_measuring);
}

static void region_of(int threads, const void *arg, struct region *r) {
  const int64_t most = (r->n + r->block - 1) / r->block;
  r->arg = (void *)(uintptr_t)arg;
  if (most > 0) region_begin(r, (unsigned)(most < threads ? most : threads));
}

void wn_parallel(int threads, void (*fn)(void *arg), const void *arg) {
  region_of(threads, arg, &(struct region){.fn = fn, .n = threads, .block = 1});
}
void wn_parallel_for(int threads, int64_t n, void (*fn)(void *arg, int64_t i), const void *arg) {
  region_of(threads, arg, &(struct region){.each = fn, .n = n, .block = 1});
}
void wn_parallel_tasks(int threads, int64_t n, void (*fn)(void *arg, int64_t i), const void *arg) {
  region_of(threads, arg, &(struct region){.each = fn, .n = n, .block = 1, .tasks = true});
}
void wn_parallel_blocks(int threads, int64_t n, int64_t block, void (*fn)(void *arg, int64_t from, int64_t to),
                        const void *arg) {
  region_of(threads, arg, &(struct region){.range = fn, .n = n, .block = block});
}
