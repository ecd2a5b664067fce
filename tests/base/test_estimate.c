/* Errors over rows: Student's t against its table, closed forms, and the coverage of intervals on rows whose truth is
 * known: of a mean over tokens, of a paired difference and of a saving. */
#include "support.h"

#include <math.h>

#include "base/estimate.h"
#include "base/rng.h"

static void near(double found, double expected, double tolerance) {
  if (!(fabs(found - expected) <= tolerance)) fail_msg("found %.9g, expected %.9g", found, expected);
}

static void quantiles_are_those_of_the_table(void **state) {
  (void)state;
  static const double table[][2] = {{1, 12.7062},  {2, 4.30265},  {3, 3.18245},   {5, 2.57058},
                                    {10, 2.22814}, {30, 2.04227}, {120, 1.97993}, {1e9, 1.95997}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    near(wn_student_t95(table[i][0]), table[i][1], 1e-5 * table[i][1]);
  assert_true(wn_student_t95(2.5) < table[1][1] && wn_student_t95(2.5) > table[2][1]);
  assert_true(isnan(wn_student_t95(0)));
}

/* Rows of equal length: the mean of their means, the sample's deviation over the root of n, t of n - 1. */
static void equal_rows_have_the_closed_form(void **state) {
  (void)state;
  const wn_row_sums rows[] = {{2, 4, 1}, {6, 4, 2}, {10, 4, 3}, {0, 0, 0}}; /* the last has no position */
  wn_estimate e;
  wn_rows_loss(rows, 4, &e);
  near(e.value, 1.5, 1e-15);
  near(e.error, 1 / sqrt(3), 1e-15);
  near(e.high - e.value, 4.30265 / sqrt(3), 1e-4);
  near(e.value - e.low, 4.30265 / sqrt(3), 1e-4);
  assert_int_equal(e.rows, 3);
  wn_rows_accuracy(rows, 4, &e);
  near(e.value, 0.5, 1e-15);
  near(e.error, 0.25 / sqrt(3), 1e-15);
}

static void one_row_has_no_error(void **state) {
  (void)state;
  const wn_row_sums rows[] = {{2, 4, 1}, {0, 0, 0}};
  wn_estimate e;
  wn_rows_loss(rows, 2, &e);
  assert_true(e.value == 0.5 && e.rows == 1 && isnan(e.error) && isnan(e.low) && isnan(e.high));
  assert_int_equal(wn_estimate_verdict(&e, 10), WN_VERDICT_OPEN);
  wn_rows_loss(rows, 0, &e);
  assert_true(e.rows == 0 && isnan(e.error));
}

static void differences_need_the_same_rows(void **state) {
  (void)state;
  const wn_row_sums a[] = {{3, 2, 0}, {9, 4, 0}}, b[] = {{1, 2, 0}, {5, 4, 0}}, c[] = {{1, 2, 0}, {5, 3, 0}};
  wn_estimate e;
  assert_int_equal(wn_rows_difference(a, b, 2, &e), WN_OK);
  near(e.value, 1, 1e-15);
  near(e.error, 0, 1e-15); /* the same in both rows */
  assert_int_equal(wn_rows_difference(a, c, 2, &e), WN_ERR_ARGUMENT);
  assert_true(isnan(e.error));
}

static void verdicts_name_what_the_interval_says(void **state) {
  (void)state;
  static const struct {
    double low, high;
    wn_verdict expected;
  } cases[] = {{-0.01, 0.02, WN_VERDICT_OPEN},   {-0.01, 0.01, WN_VERDICT_EQUAL},   {0.001, 0.009, WN_VERDICT_EQUAL},
               {0.001, 0.02, WN_VERDICT_HIGHER}, {-0.02, -0.001, WN_VERDICT_LOWER}, {-1, 0.005, WN_VERDICT_OPEN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const wn_estimate e = {.low = cases[i].low, .high = cases[i].high};
    if (wn_estimate_verdict(&e, 0.01) != cases[i].expected) fail_msg("case %zu", i);
  }
  assert_string_equal(wn_verdict_name(WN_VERDICT_HIGHER), "higher");
  assert_string_equal(wn_verdict_name((wn_verdict)9), "?");
}

/* ---- coverage ---- */

enum { ROWS_MOST = 200, POINTS = 6 };
static uint64_t drawn; /* numbers drawn so far */

static double normal(void) {
  return wn_random_normal(1, WN_STREAM_TEST, drawn++, 0);
}

/* Draws rows of a population whose mean loss per position is 3 and whose mean difference is 0.02: a row's own level
 * (0.3 nats) far outweighs the independent part of its positions. spread: of the lengths' logarithms. */
static void draw_rows(int n, double spread, wn_row_sums *rows, wn_row_sums *other) {
  for (int i = 0; i < n; i++) {
    const double w = ceil(200 * exp(spread * normal())), level = 0.3 * normal();
    rows[i] = (wn_row_sums){.tokens = w, .loss = w * (3 + level) + 2 * sqrt(w) * normal()};
    other[i] = rows[i];
    other[i].loss += w * (0.02 + 0.02 * normal()) + 0.1 * sqrt(w) * normal();
  }
}

/* Does the interval that takes positions for independent hold the truth? */
static bool tokens_cover(const wn_row_sums *rows, int n) {
  double sum = 0, weight = 0;
  for (int i = 0; i < n; i++) sum += rows[i].loss, weight += rows[i].tokens;
  return fabs(sum / weight - 3) <= 1.96 * 2 / sqrt(weight);
}

static void intervals_of_means_cover(void **state) {
  (void)state;
  static const struct {
    int rows;
    double spread;
  } cases[] = {{4, 0}, {10, 0}, {100, 0}, {10, 0.5}, {40, 0.5}, {40, 1}, {200, 1}};
  enum { TRIALS = 2000 };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int mean = 0, difference = 0, naive = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
      wn_row_sums rows[ROWS_MOST], other[ROWS_MOST];
      wn_estimate e;
      draw_rows(cases[c].rows, cases[c].spread, rows, other);
      wn_rows_loss(rows, cases[c].rows, &e);
      mean += e.low <= 3 && 3 <= e.high;
      assert_int_equal(wn_rows_difference(other, rows, cases[c].rows, &e), WN_OK);
      difference += e.low <= 0.02 && 0.02 <= e.high;
      naive += tokens_cover(rows, cases[c].rows);
    }
    const double part = 100.0 / TRIALS;
    print_message("# %d rows, lengths' spread %.1f: mean %.1f%%, difference %.1f%%; by tokens %.1f%%\n", cases[c].rows,
                  cases[c].spread, part * mean, part * difference, part * naive);
    assert_true(part * mean >= 92 && part * mean <= 98);
    assert_true(part * difference >= 92 && part * difference <= 98);
    assert_true(part * naive < 80);
  }
}

/* Losses rise by 0.01 * k^2 nats from point to point, and by rows' own factors; the target allows 0.08: the true curve
 * passes it between points 2 (0.04) and 3 (0.09), at 4/5 of the way. */
static void intervals_of_savings_cover(void **state) {
  (void)state;
  enum { TRIALS = 300, WHOLE = 512 };
  const double truth = pow(2, 2.8);
  static const int cases[] = {8, 30, 100};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int covered = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
      double excess[POINTS][ROWS_MOST], weight[ROWS_MOST];
      const int n = cases[c];
      for (int i = 0; i < n; i++) {
        weight[i] = ceil(100 * exp(0.3 * normal()));
        const double own = 1 + 0.4 * normal();
        for (int k = 0; k < POINTS; k++)
          excess[k][i] = weight[i] * (0.01 * k * k * own - 0.08) + 0.05 * sqrt(weight[i]) * normal();
      }
      struct wn_saving s;
      wn_saving_init(&s);
      for (int k = 0; k < POINTS; k++) wn_saving_add(&s, WHOLE, WHOLE >> k, excess[k], weight, n);
      const wn_estimate e = wn_saving_end(&s, 1 << (POINTS - 1), NULL);
      assert_true(e.low <= e.value && e.value <= e.high && e.error > 0);
      covered += e.low <= truth && truth <= e.high;
    }
    print_message("# %d rows: saving %.1f%%\n", cases[c], 100.0 * covered / TRIALS);
    assert_true(covered >= 0.92 * TRIALS && covered <= 0.98 * TRIALS);
  }
}

/* Without a crossing the saving is a lower bound, and says in how many samples; a curve that begins above its target
 * has the first point's. Two runs give the same bits. */
static void savings_say_what_they_do_not_know(void **state) {
  (void)state;
  const double weight[] = {10, 10, 10, 10}, below[] = {-1, -2, -1, -3}, mixed[] = {-1, -2, 3, -1},
               above[] = {1, 2, 1, 1};
  struct wn_saving s, again;
  double open;
  wn_saving_init(&s);
  wn_saving_add(&s, 100, 100, below, weight, 4);
  wn_saving_add(&s, 100, 50, mixed, weight, 4);
  wn_estimate e = wn_saving_end(&s, 2, &open);
  assert_true(e.value == 2 && e.high == 2 && e.low < 2 && open > 0.3 && open < 0.9);
  wn_saving_init(&again);
  wn_saving_add(&again, 100, 100, below, weight, 4);
  wn_saving_add(&again, 100, 50, mixed, weight, 4);
  assert_memory_equal(&s, &again, sizeof s);
  wn_saving_init(&s);
  wn_saving_add(&s, 100, 100, above, weight, 4);
  e = wn_saving_end(&s, 1, &open);
  assert_true(e.value == 1 && open == 0);
  wn_saving_init(&s);
  wn_saving_add(&s, 100, 100, below, weight, 1);
  e = wn_saving_end(&s, 1, &open);
  assert_true(e.value == 1 && isnan(e.error) && isnan(e.low)); /* one row */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(quantiles_are_those_of_the_table),
                                     cmocka_unit_test(equal_rows_have_the_closed_form),
                                     cmocka_unit_test(one_row_has_no_error),
                                     cmocka_unit_test(differences_need_the_same_rows),
                                     cmocka_unit_test(verdicts_name_what_the_interval_says),
                                     cmocka_unit_test(intervals_of_means_cover),
                                     cmocka_unit_test(intervals_of_savings_cover),
                                     cmocka_unit_test(savings_say_what_they_do_not_know)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
