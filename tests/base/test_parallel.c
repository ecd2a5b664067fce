/* Parallel regions (base/parallel.h): each piece of work is one hand's, and which one's depends on the numbers alone;
 * between calls threads are idle; a child after fork can compute; unloading the library ends its threads. Twice: with
 * futexes, and with what other systems than Linux sleep in (test_parallel_portable.c includes this file).
 *
 * Idle is tested by CPU time: a thread that spins for a second uses a second, one that goes to sleep after 0.2 ms
 * hardly any. */
#include "model/models.h"
#include "support.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/parallel.h"

enum { N = 1000, TEAM = 4 };

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int threads_of_process(void) {
  DIR *d = opendir("/proc/self/task");
  int n = -2; /* does not count . and .. */
  if (!d) return -1;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

struct loop {
  _Atomic int seen[N], hand[N]; /* how often; by whom, 1 more */
  int64_t block;
  atomic_int calls, wrong, threads;
  atomic_long sum;
};
static void loop_each(void *args, int64_t i) {
  struct loop *x = args;
  x->calls++;
  x->threads = wn_hands();
  x->seen[i]++;
  x->hand[i] = wn_hand() + 1;
  x->sum += i;
}
static void loop_range(void *args, int64_t from, int64_t to) {
  struct loop *x = args;
  x->calls++;
  x->threads = wn_hands();
  if (from >= to || from % x->block || (to != N && to % x->block)) x->wrong++;
  for (int64_t i = from; i < to; i++) {
    x->seen[i]++;
    x->hand[i] = wn_hand() + 1;
    x->sum += i;
  }
}
static void loop_hand(void *args) {
  struct loop *x = args;
  x->calls++;
  for (struct wn_share i = wn_share(N); i.at < i.end; i.at++) {
    x->seen[i.at]++;
    x->hand[i.at] = wn_hand() + 1;
  }
  wn_barrier();
  for (int64_t t; wn_task(N, &t);) {
    x->seen[t]++;
    x->sum += t;
  }
  wn_barrier();
  for (int64_t t; wn_task(N - 1, &t);) x->seen[t]++;
}

/* Each hand's range is as long as another's or one block longer, the first hands having the longer ones. */
static void check_shares(const struct loop *x, int team) {
  const int64_t blocks = (N + x->block - 1) / x->block;
  const int hands = blocks < team ? (int)blocks : team;
  int64_t at = 0;
  for (int h = 0; h < hands; h++) {
    int64_t end = at + (blocks / hands + (h < blocks % hands)) * x->block;
    for (; at < end && at < N; at++) assert_int_equal(x->hand[at], h + 1);
  }
  assert_int_equal(at, N);
}

static void check_sum(const struct loop *x) {
  for (int i = 0; i < N; i++) assert_int_equal(x->seen[i], 1);
  assert_int_equal(x->sum, (long)N * (N - 1) / 2);
  assert_int_equal(x->wrong, 0);
}

static void test_loops(void **state) {
  (void)state;
  static const int64_t blocks[] = {1, 3, 7, 256, N, 2 * N};
  for (int team = 1; team <= 2 * TEAM; team++) {
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
      const int64_t count = (N + blocks[b] - 1) / blocks[b];
      struct loop x = {.block = blocks[b]};
      wn_parallel_blocks(team, N, blocks[b], loop_range, &x);
      assert_int_equal(x.threads, count < team ? count : team);
      assert_int_equal(x.calls, x.threads);
      check_sum(&x);
      check_shares(&x, team);
    }
    for (int tasks = 0; tasks < 2; tasks++) {
      struct loop x = {.block = 1};
      (tasks ? wn_parallel_tasks : wn_parallel_for)(team, N, loop_each, &x);
      assert_int_equal(x.threads, team);
      assert_int_equal(x.calls, N);
      check_sum(&x);
      if (!tasks) check_shares(&x, team);
    }
    struct loop x = {.block = 1};
    wn_parallel_for(team, 0, loop_each, &x);
    wn_parallel_tasks(team, -3, loop_each, &x);
    wn_parallel_blocks(team, 0, 5, loop_range, &x);
    assert_int_equal(x.calls, 0);
    wn_parallel(team, loop_hand, &x);
    assert_int_equal(x.calls, team);
    for (int i = 0; i < N; i++) assert_int_equal(x.seen[i], i < N - 1 ? 3 : 2);
    assert_int_equal(x.sum, (long)N * (N - 1) / 2);
    check_shares(&x, team);
  }
  assert_int_equal(wn_hand(), 0);
  assert_int_equal(wn_hands(), 1);
}

/* Barriers between tasks that threads of unequal speed take, and a region inside. Repeated, because races are rare. */
struct rounds {
  int round;
  atomic_int left[30], before, wrong, inner;
};
static void inner_hand(void *args) {
  struct rounds *x = args;
  x->inner += 1 + 100 * (wn_hands() - 1) + 100 * wn_hand();
  wn_barrier(); /* of one hand */
}
static void rounds_hand(void *args) {
  struct rounds *x = args;
  const int mine = wn_hand();
  for (int k = 0; k < 30; k++) {
    for (int64_t t; wn_task(5, &t);) x->left[k]++;
    if (x->round % 3 == 0 && mine == k % TEAM) sched_yield();
    wn_barrier();
    if (x->left[k] != 5) x->wrong++;
    if (k == 29) x->before++;
  }
  wn_barrier();
  if (x->before != TEAM) x->wrong++;
  wn_parallel(TEAM, inner_hand, x); /* nested: one hand */
  if (wn_hand() != mine || wn_hands() != TEAM) x->wrong++;
  wn_barrier();
  if (x->inner != TEAM) x->wrong++;
}
static void test_barriers(void **state) {
  (void)state;
  for (int round = 0; round < 60; round++) {
    struct rounds x = {.round = round};
    wn_parallel(TEAM, rounds_hand, &x);
    assert_int_equal(x.wrong, 0);
    assert_int_equal(x.inner, TEAM);
  }
}

/* The program's own threads, with regions at the same time. */
static void add_one(void *sum, int64_t i) {
  atomic_fetch_add((atomic_long *)sum, i);
}
static void *beside(void *sum) {
  for (int round = 0; round < 50; round++) wn_parallel_tasks(3, N, add_one, sum);
  return NULL;
}

static void test_beside(void **state) {
  (void)state;
  pthread_t threads[TEAM];
  atomic_long sums[TEAM] = {0};
  for (int i = 0; i < TEAM; i++) assert_int_equal(pthread_create(&threads[i], NULL, beside, &sums[i]), 0);
  for (int i = 0; i < TEAM; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  for (int i = 0; i < TEAM; i++) assert_int_equal(sums[i], 50L * N * (N - 1) / 2);
}

struct place {
  wn_context *ctx;
  struct wn_model *model;
  wn_session *session;
};

static void place_of(struct place *p, int threads) {
  wn_model_config c = model_case_config(&model_cases[0]);
  c.width = 96, c.ffn_width = 200; /* products large enough to be divided */
  p->ctx = context_of("cpu", threads);
  p->model = model_of(p->ctx, &c, WN_F32);
  OK(p->ctx, wn_session_create(p->ctx, p->model, WN_OPTIONS(wn_session_options, .capacity = c.context), &p->session));
}
static void place_clear(struct place *p) {
  wn_session_destroy(p->session);
  wn_model_destroy(p->model);
  wn_context_destroy(p->ctx);
}
static wn_status place_feed(struct place *p, float *logits) {
  const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
  wn_session_reset(p->session);
  return wn_session_feed(p->ctx, p->session, ids, 7, 0, logits);
}

/* On one CPU: what the others have not begun, the caller does, once each; but not across a barrier, where each share
 * needs a thread. */
struct taken {
  pthread_t caller;
  bool barrier;
  atomic_int runs[TEAM], others, taken, wrong;
};
static void taken_hand(void *args) {
  struct taken *x = args;
  const int mine = wn_hand();
  const bool by_caller = pthread_equal(pthread_self(), x->caller);
  if (mine == 0 && !by_caller) x->wrong = 1; /* one thread's */
  x->runs[mine]++;
  if (x->barrier) {
    wn_barrier();
    if (!by_caller) x->others++;
  } else if (mine > 0 && by_caller) {
    x->taken++;
  }
}
static void test_taken_back(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  int status = -1;
  fflush(NULL);
  const pid_t child = fork(); /* whose threads are made on that CPU */
  assert_true(child >= 0);
  if (child == 0) {
    alarm(120);
    int taken = 0;
    bool wrong = false;
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(3);
    for (int round = 0; round < 2000; round++) {
      struct taken x = {.caller = pthread_self(), .barrier = round % 10 == 0};
      wn_parallel(TEAM, taken_hand, &x);
      for (int i = 0; i < TEAM; i++) wrong |= x.runs[i] != 1;
      wrong |= x.wrong || (x.barrier && x.others != TEAM - 1);
      taken += x.taken;
    }
    _exit(wrong ? 4 : taken == 0 ? 5 : 0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void test_idle(void **state) {
  (void)state;
  struct place p;
  float logits[64];
  place_of(&p, TEAM);
  OK(p.ctx, place_feed(&p, logits));
  assert_true(threads_of_process() >= TEAM); /* there are threads that could spin */
  const double begin = cpu_seconds();        /* at once, to see a thread that spins only briefly */
  nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  const double used = cpu_seconds() - begin;
  if (used > 0.3) fail_msg("%.3f s of CPU time in a second without a call", used);
  place_clear(&p);
}

/* Parent and child go on computing, with the same bits. */
static void test_fork(void **state) {
  (void)state;
  struct place p;
  float before[64] = {0}, after[64] = {0};
  place_of(&p, TEAM);
  OK(p.ctx, place_feed(&p, before));
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(60);
    const bool same = place_feed(&p, after) == WN_OK && memcmp(before, after, sizeof after) == 0;
    _exit(same && threads_of_process() >= 2 ? 0 : 3);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  OK(p.ctx, place_feed(&p, after));
  assert_memory_equal(before, after, sizeof after);
  place_clear(&p);
}

/* The shared library is loaded, used by two threads and unloaded, three times. */
static void test_unloaded(void **state) {
  (void)state;
  char path[4096];
  snprintf(path, sizeof path, "%.*slibwinnow.so", (int)(strrchr(WN_BINARY, '/') + 1 - WN_BINARY), WN_BINARY);
  for (int round = 0; round < 3; round++) {
    const int before = threads_of_process();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      print_message("# %s\n", dlerror());
      skip();
    }
    wn_status (*create)(const wn_context_options *, wn_context **) =
        (wn_status(*)(const wn_context_options *, wn_context **))dlsym(library, "wn_context_create");
    void (*destroy)(wn_context *) = (void (*)(wn_context *))dlsym(library, "wn_context_destroy");
    __typeof__(&wn_model_load) load = (__typeof__(&wn_model_load))dlsym(library, "wn_model_load");
    void (*unload)(struct wn_model *) = (void (*)(struct wn_model *))dlsym(library, "wn_model_destroy");
    assert_true(create && destroy && load && unload);
    wn_context *ctx = NULL;
    struct wn_model *model = NULL;
    assert_int_equal(create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = TEAM}, &ctx), WN_OK);
    assert_int_equal(load(ctx, WN_TEST_DIR "/released/0.2.0/llama", NULL, &model),
                     WN_OK); /* checks the file's checksums with all threads */
    assert_true(threads_of_process() > before);
    unload(model);
    destroy(ctx);
    assert_int_equal(dlclose(library), 0);
    assert_int_equal(threads_of_process(), before);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_loops),   cmocka_unit_test(test_barriers),
                                     cmocka_unit_test(test_beside),  cmocka_unit_test(test_taken_back),
                                     cmocka_unit_test(test_idle),    cmocka_unit_test(test_fork),
                                     cmocka_unit_test(test_unloaded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
