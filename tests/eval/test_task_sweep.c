/* Several evaluations of the same questions. A reused answer has the bits that computing it would give. Changes and
 * their errors are checked by hand. Logs of several settings can be resumed and are not confused. */
#include "eval/bench.h"

#include <math.h>
#include "base/fields.h"
#include "policies.h"

enum { COUNT = 40, SETTINGS = 5 };

struct settings {
  wn_task_setting all[SETTINGS];
  wn_budgets budgets[SETTINGS];
  char logs[SETTINGS][600], names[SETTINGS][32];
};

/* The first setting has no budgets (NULL), the others do. */
static void open_settings(const struct bench *b, struct settings *s) {
  static const struct {
    const char *spec;
    wn_policy policy;
  } rows[SETTINGS] = {
      {NULL, 0}, {"14", WN_POLICY_H2O}, {"14", WN_POLICY_WINDOW}, {"6", WN_POLICY_TOVA}, {"96", WN_POLICY_STREAMING}};
  for (int i = 0; i < SETTINGS; i++) {
    snprintf(s->logs[i], sizeof s->logs[i], "%s/log.%d", b->dir, i);
    snprintf(s->names[i], sizeof s->names[i], "setting %d", i);
    budgets_init(&s->budgets[i]);
    s->budgets[i].policy = rows[i].policy;
    if (rows[i].spec)
      assert_ok(b->ctx, wn_budgets_parse(b->ctx, wn_model_config_get(b->model), rows[i].spec, &s->budgets[i]));
    s->all[i] =
        (wn_task_setting){.budgets = rows[i].spec ? &s->budgets[i] : NULL, .log = s->logs[i], .log_name = s->names[i]};
  }
}
static void close_settings(struct settings *s) {
  for (int i = 0; i < SETTINGS; i++) wn_budgets_clear(&s->budgets[i]);
}

/* A log's lines, by question. */
static void read_log(const char *path, json_t *out[COUNT]) {
  char line[4096];
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_non_null(fgets(line, sizeof line, f));
  for (int i = 0; i < COUNT; i++) out[i] = NULL;
  while (fgets(line, sizeof line, f)) {
    json_t *j = json_loads(line, 0, NULL);
    const int64_t i = json_integer_value(json_object_get(j, "question"));
    assert_true(i >= 0 && i < COUNT && !out[i]);
    out[i] = j;
  }
  fclose(f);
  for (int i = 0; i < COUNT; i++) assert_non_null(out[i]);
}
static void free_log(json_t *lines[COUNT]) {
  for (int i = 0; i < COUNT; i++) json_decref(lines[i]);
}
static bool reused(const json_t *line) {
  return json_is_true(json_object_get(line, "reused"));
}
static int64_t rows_of(const json_t *line) {
  return json_integer_value(json_object_get(line, "rows"));
}
static bool same_answers(const json_t *a, const json_t *b) {
  return json_equal(json_object_get(a, "log_probability"), json_object_get(b, "log_probability")) &&
         json_equal(json_object_get(a, "greedy"), json_object_get(b, "greedy"));
}

/* A sweep's logs equal those of separate evaluations number for number. Texts that fit the budget are not read again.
 */
static void test_reuse(void **state) {
  (void)state;
  static struct settings s;
  struct bench b;
  wn_task_result found[SETTINGS], one;
  json_t *swept[COUNT], *alone[COUNT];
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, COUNT);
  open_settings(&b, &s);
  wn_task_options o = options_of(&b);
  o.log = NULL;
  o.batch = 1; /* so that products have the same shape in every evaluation */
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, found));
  for (int i = 0; i < SETTINGS; i++) {
    const int64_t K = i == 0 ? 0 : s.budgets[i].tokens[0];
    wn_task_options single = options_of(&b);
    single.batch = 1;
    single.budgets = s.all[i].budgets;
    assert_ok(b.ctx, wn_task_run(b.ctx, b.model, &single, &one));
    read_log(s.logs[i], swept);
    read_log(b.log, alone);
    uint64_t fit = 0;
    for (int n = 0; n < COUNT; n++) {
      if (!same_answers(swept[n], alone[n])) fail_msg("setting %d, question %d: another answer", i, n);
      assert_true(rows_of(swept[n]) > 0 && rows_of(swept[n]) == rows_of(alone[n]) && !reused(alone[n]));
      assert_int_equal(reused(swept[n]), rows_of(swept[n]) <= K);
      fit += rows_of(swept[n]) <= K;
    }
    free_log(swept);
    free_log(alone);
    assert_int_equal(found[i].reused, fit);
    assert_int_equal(one.reused, 0);
    assert_true(i == 0 || i == 4 || (fit > 0 && fit < COUNT)); /* both kinds occur */
    assert_true(fit ? found[i].tokens_fed < one.tokens_fed : found[i].tokens_fed == one.tokens_fed);
    for (int m = 0; m < WN_METRIC_COUNT; m++)
      assert_true(found[i].value[m] == one.value[m] && found[i].stderr_[m] == one.stderr_[m] && one.compared[m] == 0);
  }
  assert_int_equal(found[4].tokens_fed, 0); /* no question is longer than 96 */
  close_settings(&s);
  close_bench(&b);
}

/* Without an earlier result, or where results would differ in a bit, answers are computed. */
static void test_no_reuse(void **state) {
  (void)state;
  static struct settings s;
  struct bench b;
  wn_task_result found[SETTINGS];
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, COUNT);
  open_settings(&b, &s);
  wn_task_options o = options_of(&b);
  o.log = NULL;
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all + 3, 2, found)); /* no evaluation without budgets to reuse */
  assert_true(found[0].reused == 0 && found[1].reused == 0 && found[0].compared[WN_METRIC_ACC] == 0);
  const wn_task_setting turned[2] = {s.all[4], s.all[0]}; /* it comes after the one that would reuse it */
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, turned, 2, found));
  assert_true(found[0].reused == 0 && found[1].reused == 0);
  s.budgets[4].cache_positions = true;
  const wn_task_setting pair[2] = {s.all[0], s.all[4]};
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, pair, 2, found));
  assert_true(found[1].reused == 0 && found[1].tokens_fed == found[0].tokens_fed);
  close_settings(&s);
  close_bench(&b);
}

/* The paired change of acc and its error, by hand. */
static void test_changes(void **state) {
  (void)state;
  static struct settings s;
  struct bench b;
  wn_task_result found[SETTINGS];
  json_t *whole[COUNT], *lines[COUNT];
  bool any = false;
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, COUNT);
  open_settings(&b, &s);
  wn_task_options o = options_of(&b);
  o.log = NULL;
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, found));
  read_log(s.logs[0], whole);
  for (int i = 0; i < SETTINGS; i++) {
    double mean = 0, squares = 0, d[COUNT];
    read_log(s.logs[i], lines);
    for (int n = 0; n < COUNT; n++) {
      d[n] = (double)(json_integer_value(json_object_get(lines[n], "acc")) -
                      json_integer_value(json_object_get(whole[n], "acc")));
      mean += d[n] / COUNT;
    }
    for (int n = 0; n < COUNT; n++) squares += (d[n] - mean) * (d[n] - mean), any = any || d[n] != 0;
    assert_int_equal(found[i].compared[WN_METRIC_ACC], COUNT);
    assert_true(fabs(found[i].change[WN_METRIC_ACC] - mean) < 1e-12);
    assert_true(fabs(found[i].change_stderr[WN_METRIC_ACC] - sqrt(squares / (COUNT - 1) / COUNT)) < 1e-12);
    free_log(lines);
  }
  assert_true(any);
  free_log(whole);
  close_settings(&s);
  close_bench(&b);
}

static void stop_late(void *user, uint64_t done, uint64_t total) {
  if (done * 3 > total * 2) wn_context_cancel(user); /* during a setting with budgets */
}

static void test_resume(void **state) {
  (void)state;
  static struct settings s;
  struct bench b;
  wn_task_result whole[SETTINGS], part[SETTINGS], rest[SETTINGS];
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, COUNT);
  open_settings(&b, &s);
  wn_task_options o = options_of(&b);
  o.log = NULL;
  o.batch = 1;
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, whole));
  o.progress = stop_late;
  o.user = b.ctx;
  assert_int_equal(wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, part), WN_ERR_CANCELLED);
  wn_context_resume(b.ctx);
  assert_true(part[0].value[WN_METRIC_ACC] == whole[0].value[WN_METRIC_ACC]);
  o.progress = NULL;
  o.resume = true;
  assert_ok(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, rest));
  assert_int_equal(rest[0].resumed, COUNT);
  assert_true(rest[3].resumed + rest[3].reused < COUNT && rest[3].tokens_fed > 0);
  for (int i = 0; i < SETTINGS; i++)
    for (int m = 0; m < WN_METRIC_COUNT; m++) {
      assert_true(rest[i].value[m] == whole[i].value[m] && rest[i].change[m] == whole[i].change[m]);
      assert_true(rest[i].change_stderr[m] == whole[i].change_stderr[m]);
    }
  /* A setting does not resume another's log. */
  wn_task_setting mixed[2] = {s.all[0], s.all[1]};
  mixed[1].log = s.all[2].log;
  assert_refused(b.ctx, wn_task_sweep(b.ctx, b.model, &o, mixed, 2, rest), WN_ERR_CONFIG,
                 "log.2: the log of another evaluation");
  close_settings(&s);
  close_bench(&b);
}

static void test_refusals(void **state) {
  (void)state;
  static struct settings s;
  struct bench b;
  wn_task_result found[SETTINGS];
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, 4);
  open_settings(&b, &s);
  wn_task_options o = options_of(&b);
  assert_refused(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, found), WN_ERR_ARGUMENT,
                 "those of their settings");
  o.log = NULL;
  assert_refused(b.ctx, wn_task_sweep(b.ctx, b.model, &o, s.all, 0, found), WN_ERR_ARGUMENT, "expected at least 1");
  s.budgets[4].layers++; /* refused before anything is computed */
  remove(s.logs[0]);
  assert_true(wn_task_sweep(b.ctx, b.model, &o, s.all, SETTINGS, found) != WN_OK && access(s.logs[0], F_OK) != 0);
  s.budgets[4].layers--;
  close_settings(&s);
  close_bench(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reuse),  cmocka_unit_test(test_no_reuse), cmocka_unit_test(test_changes),
      cmocka_unit_test(test_resume), cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
