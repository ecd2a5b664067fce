/* Parallel regions on winnow's own threads (base/regions.h): every construct that the sources use gives each piece of
 * work to one thread; between calls threads are idle; a child after fork can compute; unloading the library ends its
 * threads.
 *
 * Idle is tested by CPU time: a thread that spins for a second uses a second, one that goes to sleep after 0.2 ms
 * hardly any. */
#include "model/models.h"
#include "support.h"

#include <dirent.h>
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

static void test_loops(void **state) {
  (void)state;
  for (int team = 1; team <= 2 * TEAM; team++) {
    int seen[N] = {0}, down[N] = {0}, threads = 0, all = 0;
    long sum = 0;
#pragma omp parallel for schedule(static) num_threads(team)
    for (int i = 0; i < N; i++) seen[i]++;
#pragma omp parallel for schedule(dynamic, 3) num_threads(team)
    for (int i = 0; i < N; i++) seen[i]++;
#pragma omp parallel for schedule(dynamic, 7) num_threads(team)
    for (int i = N - 1; i >= 0; i -= 3) down[i]++;
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int i = 5; i < 5; i++) seen[i]++;
#pragma omp parallel for schedule(static) num_threads(team) reduction(+ : sum)
    for (int i = 0; i < N; i++) sum += i;
#pragma omp parallel num_threads(team)
    {
#pragma omp single
      threads = omp_get_num_threads();
#pragma omp critical
      all += omp_get_thread_num();
    }
    for (int i = 0; i < N; i++) {
      assert_int_equal(seen[i], 2);
      assert_int_equal(down[i], (N - 1 - i) % 3 == 0);
    }
    assert_int_equal(sum, (long)N * (N - 1) / 2);
    assert_int_equal(threads, team);
    assert_int_equal(all, team * (team - 1) / 2);
  }
  assert_int_equal(omp_get_thread_num(), 0);
}

/* More consecutive loops without a barrier than the runtime holds at a time, with threads of unequal speed; a barrier,
 * single, critical sections with and without a name, nesting. Repeated, because races are rare. */
static void test_constructs(void **state) {
  (void)state;
  for (int round = 0; round < 60; round++) {
    int left[30] = {0}, before = 0, wrong = 0, blocks = 0, named = 0, inner = 0;
#pragma omp parallel num_threads(TEAM)
    {
      for (int k = 0; k < 30; k++) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int i = 0; i < 5; i++) {
#pragma omp atomic
          left[k]++;
        }
        if (round % 3 == 0 && omp_get_thread_num() == k % TEAM) sched_yield();
#pragma omp single nowait
        {
#pragma omp atomic
          blocks++;
        }
      }
#pragma omp atomic
      before++;
#pragma omp barrier
      if (before != TEAM) {
#pragma omp atomic
        wrong++;
      }
#pragma omp critical(regions_named)
      named++;
#pragma omp parallel num_threads(TEAM) /* nested: one thread */
      {
#pragma omp atomic
        inner += 1 + 100 * (omp_get_num_threads() - 1) + 100 * omp_get_thread_num();
      }
#pragma omp barrier
#pragma omp for schedule(dynamic, 2)
      for (int i = 0; i < 30; i++) {
        if (left[i] != 5) {
#pragma omp atomic
          wrong++;
        }
      }
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(blocks, 30);
    assert_int_equal(named, TEAM);
    assert_int_equal(inner, TEAM);
  }
}

/* The program's own threads, with regions at the same time. */
static void *beside(void *user) {
  long *sum = user;
  for (int round = 0; round < 50; round++) {
    long part = 0;
#pragma omp parallel for schedule(dynamic, 10) num_threads(3) reduction(+ : part)
    for (int i = 0; i < N; i++) part += i;
    *sum += part;
  }
  return NULL;
}

static void test_beside(void **state) {
  (void)state;
  pthread_t threads[TEAM];
  long sums[TEAM] = {0};
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

/* clang's OpenMP has its own threads, which spin for 200 ms and never end. */
static void skip_with_clang(void) {
#ifndef WN_REGIONS
  print_message("# SKIP compiled without regions.c's threads\n");
  skip();
#endif
}

/* On one CPU: what the others have not begun, the caller does, once each; but not across a barrier, where each share
 * needs a thread. */
static void test_taken_back(void **state) {
  (void)state;
  skip_with_clang();
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
    int taken = 0, wrong = 0;
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(3);
    const pthread_t caller = pthread_self();
    for (int round = 0; round < 2000; round++) {
      int runs[TEAM] = {0}, others = 0;
      const bool barrier = round % 10 == 0;
#pragma omp parallel num_threads(TEAM)
      {
        const int mine = omp_get_thread_num();
        const bool by_caller = pthread_equal(pthread_self(), caller);
        if (mine == 0 && !by_caller) wrong = 1; /* one thread's */
#pragma omp atomic
        runs[mine]++;
        if (barrier) {
#pragma omp barrier
          if (!by_caller) {
#pragma omp atomic
            others++;
          }
        } else if (mine > 0 && by_caller) {
          taken++; /* the caller alone */
        }
      }
      for (int i = 0; i < TEAM; i++) wrong |= runs[i] != 1;
      wrong |= barrier && others != TEAM - 1;
    }
    _exit(wrong ? 4 : taken == 0 ? 5 : 0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void test_idle(void **state) {
  (void)state;
  skip_with_clang();
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
  skip_with_clang();
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_loops),   cmocka_unit_test(test_constructs),
                                     cmocka_unit_test(test_beside),  cmocka_unit_test(test_taken_back),
                                     cmocka_unit_test(test_idle),    cmocka_unit_test(test_fork),
                                     cmocka_unit_test(test_unloaded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
