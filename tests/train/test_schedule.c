/* Learning rates against values computed by hand. */
#include "told.h"

#include "train/schedule.h"

static wn_train_config config(wn_schedule_kind kind) {
  return (wn_train_config){.steps = 110, .warmup = 10, .lr = 2, .min_lr_ratio = 0.1, .schedule = kind};
}

static void close_to(double found, double expected) {
  if (!(found > expected - 1e-12 && found < expected + 1e-12)) fail_msg("found %.17g, expected %.17g", found, expected);
}

static void test_warmup(void **state) {
  (void)state;
  for (int kind = WN_SCHED_COSINE; kind <= WN_SCHED_CONSTANT; kind++) {
    wn_train_config c = config((wn_schedule_kind)kind);
    close_to(wn_schedule_lr(&c, 1), 0.2);
    close_to(wn_schedule_lr(&c, 5), 1);
    close_to(wn_schedule_lr(&c, 10), 2);
    c.lr = 0, c.muon.lr = 4; /* Muon's own rate */
    close_to(wn_schedule_lr(&c, 5), 0);
    close_to(wn_schedule_muon_lr(&c, 5), 2);
    close_to(wn_schedule_muon_lr(&c, 60), kind == WN_SCHED_CONSTANT ? 4 : 4 * 0.55);
  }
}

static void test_decay(void **state) {
  (void)state;
  wn_train_config c = config(WN_SCHED_COSINE);
  close_to(wn_schedule_lr(&c, 60), 2 * 0.55);
  close_to(wn_schedule_lr(&c, 35), 2 * (0.1 + 0.45 * (1 + 0.70710678118654752)));
  close_to(wn_schedule_lr(&c, 110), 0.2);
  close_to(wn_schedule_lr(&c, 500), 0.2); /* constant past the end */
  c = config(WN_SCHED_LINEAR);
  close_to(wn_schedule_lr(&c, 35), 2 * (1 - 0.9 * 0.25));
  close_to(wn_schedule_lr(&c, 60), 2 * 0.55);
  close_to(wn_schedule_lr(&c, 110), 0.2);
  c = config(WN_SCHED_CONSTANT);
  close_to(wn_schedule_lr(&c, 110), 2);
}

static void test_edges(void **state) {
  (void)state;
  wn_train_config c = config(WN_SCHED_COSINE);
  c.warmup = 0;
  close_to(wn_schedule_lr(&c, 110), 0.2);
  assert_true(wn_schedule_lr(&c, 1) < 2 && wn_schedule_lr(&c, 1) > 1.99);
  c.warmup = 200; /* longer than the run: still warming up */
  close_to(wn_schedule_lr(&c, 110), 1.1);
}

/* A restart has the schedule of a run with only the remaining steps. */
static void test_restart(void **state) {
  (void)state;
  for (int kind = WN_SCHED_COSINE; kind <= WN_SCHED_CONSTANT; kind++) {
    wn_train_config whole = config((wn_schedule_kind)kind), later = whole;
    later.schedule_from = 40;
    later.steps += 40;
    for (int64_t step = 1; step <= 130; step++)
      close_to(wn_schedule_lr(&later, step + 40), wn_schedule_lr(&whole, step));
    close_to(wn_schedule_lr(&later, 20), 0); /* not asked for */
  }
}

/* Before the start of its schedule, a run reports the rate that it has until then. */
static void test_waiting(void **state) {
  (void)state;
  static const struct {
    int64_t from, warmup;
    const char *told;
  } cases[] = {
      {2, 1, "the learning rate is 0 up to step 2: train.schedule_from is 2, and the run is at step 0\n"},
      {9, 2, "the learning rate is 0 up to step 4: train.schedule_from is 9, and the run is at step 0\n"},
      {2, 0, "the learning rate is not lowered up to step 2: train.schedule_from is 2, and the run is at step 0\n"},
      {0, 4, "the learning rate is still rising at the end: train.warmup is 4 of 4 steps\n"},
      {0, 1, ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char dir[256];
    wn_recipe r;
    wn_context *ctx = told_context();
    tiny_folder(dir);
    tiny_recipe(&r, false);
    r.train.steps = 4, r.train.schedule_from = cases[i].from, r.train.warmup = cases[i].warmup;
    *told = 0;
    must(ctx, wn_train_run(ctx, &r, dir, false, NULL, NULL));
    assert_string_equal(told, cases[i].told);
    if (i == 0) { /* further steps, for which the schedule starts anew */
      r.train.steps = 8, r.train.schedule_from = 4;
      *told = 0;
      must(ctx, wn_train_run(ctx, &r, dir, true, NULL, NULL));
      assert_string_equal(told, "");
    }
    wn_context_destroy(ctx);
    tiny_remove(dir);
  }
}

static void test_budgets(void **state) {
  (void)state;
  wn_train_config c = config(WN_SCHED_COSINE);
  assert_int_equal(wn_schedule_budget(&c, 64, 16, 0), 64); /* before the first step */
  assert_int_equal(wn_schedule_budget(&c, 64, 16, 1), 16); /* without a schedule, at once */
  c.prune.from_step = 10, c.prune.to_step = 34;
  assert_int_equal(wn_schedule_budget(&c, 64, 16, 10), 64);
  for (int64_t step = 10, before = 64; step <= 40; step++) {
    const int64_t now = wn_schedule_budget(&c, 64, 16, step);
    assert_int_equal(now, step < 34 ? 64 - 2 * (step - 10) : 16);
    assert_true(now <= before);
    before = now;
  }
  assert_int_equal(wn_schedule_budget(&c, 64, 100, 40), 64);
  c.prune.from_step = 2, c.prune.to_step = 6; /* a quarter of 90 is 22.5: rounded up */
  static const int64_t way[] = {100, 100, 78, 55, 33, 10, 10};
  for (int64_t step = 1; step <= 7; step++) assert_int_equal(wn_schedule_budget(&c, 100, 10, step), way[step - 1]);
}

/* Between 8 and 512 half of the drawn budgets are below the geometric mean, 64. A step always draws the same. */
static void test_drawn_budgets(void **state) {
  (void)state;
  wn_train_config c = config(WN_SCHED_COSINE);
  c.seed = 5;
  assert_int_equal(wn_schedule_budget_drawn(&c, 512, 8, 3), 8);
  c.prune.draw = true;
  int below = 0, least = 512, most = 0, differ = 0;
  for (int64_t step = 1; step <= 1000; step++) {
    const int now = (int)wn_schedule_budget_drawn(&c, 512, 8, step);
    below += now < 64;
    if (now < least) least = now;
    if (now > most) most = now;
    assert_int_equal(now, wn_schedule_budget_drawn(&c, 512, 8, step));
    const int other = (int)wn_schedule_budget_drawn(&c, 512, 64, step); /* half way is half way there too */
    assert_true(now < 64 ? other < 182 : other >= 181);
    c.seed = 6;
    differ += now != wn_schedule_budget_drawn(&c, 512, 8, step);
    c.seed = 5;
  }
  assert_true(below > 440 && below < 560);
  assert_true(least == 8 && most > 500 && most < 512);
  assert_true(differ > 900);
  assert_int_equal(wn_schedule_budget_drawn(&c, 512, 512, 7), 512);
  c.prune.from_step = 10, c.prune.to_step = 20; /* during the schedule its budget is the least */
  for (int64_t step = 1; step <= 10; step++) assert_int_equal(wn_schedule_budget_drawn(&c, 512, 8, step), 512);
  assert_true(wn_schedule_budget_drawn(&c, 512, 8, 11) >= 462);
}

static void test_memory_loss(void **state) {
  (void)state;
  wn_train_config c = config(WN_SCHED_COSINE);
  for (int64_t step = 1; step <= 3; step++) close_to(wn_schedule_memory_loss(&c, step), 1);
  c.mem.from_step = 10; /* without an end: at once */
  close_to(wn_schedule_memory_loss(&c, 1), 0), close_to(wn_schedule_memory_loss(&c, 10), 0);
  close_to(wn_schedule_memory_loss(&c, 11), 1);
  c.mem.to_step = 14;
  static const double way[] = {0, 0.25, 0.5, 0.75, 1, 1};
  for (int64_t step = 10; step <= 15; step++) close_to(wn_schedule_memory_loss(&c, step), way[step - 10]);
  c.mem.from_step = 0, c.mem.to_step = 4; /* a ramp from the start */
  static const double ramp[] = {0.25, 0.5, 0.75, 1, 1};
  for (int64_t step = 1; step <= 5; step++) close_to(wn_schedule_memory_loss(&c, step), ramp[step - 1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_warmup),        cmocka_unit_test(test_decay),
                                     cmocka_unit_test(test_edges),         cmocka_unit_test(test_restart),
                                     cmocka_unit_test(test_waiting),       cmocka_unit_test(test_budgets),
                                     cmocka_unit_test(test_drawn_budgets), cmocka_unit_test(test_memory_loss)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
