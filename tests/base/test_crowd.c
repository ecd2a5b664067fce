/* The number of threads beside other programs (base/crowd.h), on machines that are imitated: threads that share a CPU
 * get half of it, and all of a region wait for the slowest. */
#include "model/models.h"
#include "support.h"

#include "base/crowd.h"
#include "base/rng.h"

/* A machine of `cpus` with `loops` other programs, those at low priority not counted. */
struct machine {
  int cpus, loops;
  double waits; /* of the CPU time of threads that share CPUs, what is lost in waiting */
  double luck;  /* share of all 0.2 s in which a single thread has a CPU for itself, as the scheduler may give it */
};

/* CPUs that `threads` use: a thread that waits sleeps. */
static double got(const struct machine *m, int threads, double time) {
  double share = (double)m->cpus * threads / (threads + m->loops);
  if (threads + m->loops <= m->cpus) share = threads;
  if (threads == 1 && wn_random_uniform(5, 0, (uint64_t)(5 * time), 0) < m->luck) share = 1;
  return threads == 1 || threads + m->loops <= m->cpus ? share : share * (1 - m->waits);
}

/* Seconds in regions, of which three follow each other for 0.2 s each, with work of 1, 0.1 and 4 ms; *few: of these
 * with fewer threads than CPUs. False at the end: nothing is measured any more. */
static bool run(struct wn_crowd *crowd, const struct machine *m, double seconds, double *few) {
  static const double work[] = {0.001, 0.0001, 0.004};
  bool measured = true;
  *few = 0;
  for (double t = 0, time; t < seconds; t += time) {
    const int threads = measured ? wn_crowd_threads(crowd, m->cpus) : m->cpus, kind = (int)(5 * t) % 3;
    const double cpus = got(m, threads, t);
    assert_in_range(threads, 1, m->cpus);
    time = work[kind] / cpus;
    if (threads < m->cpus) *few += time;
    if (measured) measured = wn_crowd_add(crowd, m->cpus, (uint64_t)kind + 7, time, cpus * time);
  }
  return measured;
}

static void test_choice(void **state) {
  (void)state;
  static const struct {
    struct machine machine;
    bool few;
  } cases[] = {
      {{2, 0, 0, 0}, false},   {{2, 1, 0.4, 0}, true},  {{2, 2, 0.1, 0}, false}, {{2, 6, 0.1, 0}, false},
      {{4, 1, 0.3, 0}, true},  {{4, 4, 0.1, 0}, false}, {{16, 3, 0.4, 0}, true}, {{16, 16, 0.1, 0}, false},
      {{16, 40, 0, 0}, false}, {{2, 2, 0.4, 0}, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct wn_crowd crowd = {0};
    double few;
    const bool measured = run(&crowd, &cases[i].machine, 20, &few);
    assert_int_equal(measured, cases[i].machine.loops > 0);
    /* Tries of the other number take little: a tenth of the windows where fewer are better, else ever less. */
    if (cases[i].few) {
      if (few < 0.85 * 20) fail_msg("case %zu: fewer threads in %.1f of 20 s", i, few);
    } else if (few > 0.05 * 20) {
      fail_msg("case %zu: fewer threads in %.1f of 20 s", i, few);
    }
  }
}

/* A window of luck is not taken for the rule, and luck that ends is noticed. */
static void test_luck(void **state) {
  (void)state;
  struct wn_crowd crowd = {0};
  double few;
  assert_true(run(&crowd, &(struct machine){2, 2, 0.1, 0.5}, 60, &few));
  if (few > 0.1 * 60) fail_msg("fewer threads in %.1f of 60 s", few);
}

/* Others come and go. That CPUs are free, or that all threads get more, is noticed within 1.3 seconds; that fewer
 * threads get more, within the longest pause between tries. */
static void test_changes(void **state) {
  (void)state;
  static const struct machine alone = {2, 0, 0, 0}, beside = {2, 1, 0.4, 0}, crowded = {2, 4, 0.1, 0};
  struct wn_crowd crowd = {0};
  double few;
  for (int round = 0; round < 3; round++) {
    assert_true(run(&crowd, &beside, 5, &few));
    assert_true(crowd.few);
    assert_false(run(&crowd, &alone, 1.5, &few));
    assert_true(few < 1.3);
    assert_true(run(&crowd, &beside, 1, &few));
    assert_true(run(&crowd, &crowded, 1.5, &few));
    assert_true(few < 1.3);
    assert_true(run(&crowd, &crowded, 1, &few));
    assert_true(few < 0.2);
  }
}

/* Regions for fewer threads than there are say nothing and keep theirs. */
static void test_small_regions(void **state) {
  (void)state;
  struct wn_crowd crowd = {0};
  double few;
  run(&crowd, &(struct machine){16, 3, 0.4, 0}, 5, &few);
  assert_int_equal(wn_crowd_threads(&crowd, 4), 4);
  assert_true(wn_crowd_threads(&crowd, 16) < 16);
  const struct wn_crowd before = crowd;
  assert_true(wn_crowd_add(&crowd, 4, 1, 10, 10));
  assert_memory_equal(&before, &crowd, sizeof crowd);
}

/* A context with a number of threads keeps all regions at theirs. */
static void test_contexts(void **state) {
  (void)state;
  assert_false(wn_crowd_yields());
  wn_context *free_ones = context_of("cpu", 0), *one = context_of("cpu", 1);
  assert_true(wn_crowd_yields());
  wn_context *two = context_of("cpu", 2);
  assert_false(wn_crowd_yields());
  wn_context_destroy(two);
  assert_true(wn_crowd_yields());
  wn_context_destroy(one);
  wn_context_destroy(free_ones);
  assert_false(wn_crowd_yields());
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice), cmocka_unit_test(test_luck),
                                     cmocka_unit_test(test_changes), cmocka_unit_test(test_small_regions),
                                     cmocka_unit_test(test_contexts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
