/* Requests that a program makes itself: same bits as a task's evaluation of the same questions, with and without
 * budgets. Sums by hand from logits, truncation, refusals. */
#include "eval/bench.h"
#include "policies.h"

#include <jansson.h>
#include <math.h>

enum { COUNT = 40, LONGEST = 200, MOST = 3 * COUNT };

/* The questions of put_questions as tokens, a byte each. */
struct asked {
  wn_request requests[MOST];
  int32_t tokens[MOST][LONGEST];
  int count;
};
static void ask(struct asked *a, int question, const char *context, const char *continuation) {
  wn_request *r = &a->requests[a->count];
  char whole[LONGEST + 1];
  size_t kept = strlen(context);
  const int n = snprintf(whole, sizeof whole, "%s%s", context, continuation);
  assert_true(n > 0 && n <= LONGEST);
  while (kept > 0 && context[kept - 1] == ' ') kept--; /* trailing spaces belong to the continuation */
  for (int i = 0; i < n; i++) a->tokens[a->count][i] = (unsigned char)whole[i];
  *r = (wn_request){.tokens = a->tokens[a->count], .count = n, .context = (int64_t)kept, .question = question};
  a->count++;
}
static void ask_all(struct asked *a) {
  char text[64], more[64];
  a->count = 0;
  for (int i = 0; i < COUNT; i++) {
    const char *w = words[i % 8], *x = words[(i / 3 + 1) % 8];
    switch (i % 5) {
    case 0:
      snprintf(text, sizeof text, "%s %d:", w, i % 2), snprintf(more, sizeof more, " %s", x);
      ask(a, i, text, more), ask(a, i, text, " y");
      break;
    case 1:
      snprintf(text, sizeof text, "q%s", w);
      ask(a, i, text, " the a"), ask(a, i, text, " the b"), ask(a, i, text, " the");
      break;
    case 2:
      snprintf(more, sizeof more, " %s", w);
      snprintf(text, sizeof text, "so %s", w), ask(a, i, text, more);
      snprintf(text, sizeof text, "so %s", x), ask(a, i, text, more);
      break;
    case 3:
      snprintf(text, sizeof text, "word %s", w), snprintf(more, sizeof more, " %s", x);
      ask(a, i, text, more);
      break;
    default:
      ask(a, i, "end  ", w), ask(a, i, "end  ", "z");
    }
  }
}

/* Every number equals the one in the task's log. */
static void compare(struct bench *b, const struct asked *a, const wn_budgets *budgets) {
  wn_task_options o = options_of(b);
  wn_task_result result;
  char line[4096];
  int checked = 0;
  o.budgets = budgets;
  assert_ok(b->ctx, wn_task_run(b->ctx, b->model, &o, &result));
  FILE *f = fopen(b->log, "r");
  assert_non_null(f);
  assert_non_null(fgets(line, sizeof line, f));
  while (fgets(line, sizeof line, f)) {
    json_t *j = json_loads(line, 0, NULL);
    const int64_t q = json_integer_value(json_object_get(j, "question"));
    const json_t *sums = json_object_get(j, "log_probability"), *greedy = json_object_get(j, "greedy");
    int first = 0;
    while (a->requests[first].question != q) first++;
    for (size_t i = 0; i < json_array_size(sums); i++, checked++) {
      const wn_request *r = &a->requests[first + (int)i];
      assert_int_equal(r->question, q);
      assert_true(r->log_probability == json_real_value(json_array_get(sums, i)));
      assert_int_equal(r->greedy, json_is_true(json_array_get(greedy, i)));
    }
    json_decref(j);
  }
  fclose(f);
  assert_int_equal(checked, a->count);
}

static void count_calls(void *user, uint64_t done, uint64_t total) {
  assert_int_equal(total, COUNT);
  assert_true(done <= total);
  ++*(int *)user;
}

static void test_as_the_task(void **state) {
  (void)state;
  static struct asked a;
  struct bench b;
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, COUNT);
  ask_all(&a);
  int calls = 0;
  wn_request_options o = {.size = sizeof o, .progress = count_calls, .user = &calls};
  assert_ok(b.ctx, wn_score_requests(b.ctx, b.model, &o, a.requests, a.count));
  assert_true(calls > 1);
  compare(&b, &a, NULL);
  const double whole = a.requests[0].log_probability;
  wn_budgets budgets;
  budgets_init(&budgets);
  budgets.policy = WN_POLICY_H2O;
  assert_ok(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), "4", &budgets));
  o.budgets = &budgets;
  assert_ok(b.ctx, wn_score_requests(b.ctx, b.model, &o, a.requests, a.count));
  compare(&b, &a, &budgets);
  assert_true(a.requests[0].log_probability != whole);
  wn_budgets_clear(&budgets);
  close_bench(&b);
}

/* A request that is truncated at its start: the sum computed from wn_model_logits. */
static void test_by_hand(void **state) {
  (void)state;
  static float logits[CONTEXT * V];
  struct bench b;
  int32_t tokens[LONGEST];
  open_bench(&b, WN_POS_LEARNED);
  for (int i = 0; i < LONGEST; i++) tokens[i] = (i * i + 7 * i) % V;
  wn_request r = {.tokens = tokens, .count = LONGEST, .context = LONGEST - 5};
  assert_ok(b.ctx, wn_score_requests(b.ctx, b.model, NULL, &r, 1));
  const int32_t *kept = tokens + LONGEST - CONTEXT - 1;
  assert_ok(b.ctx, wn_model_logits(b.ctx, b.model, kept, 1, CONTEXT, NULL, logits));
  double sum = 0;
  bool greedy = true;
  for (int t = CONTEXT - 5; t < CONTEXT; t++) {
    const float *row = logits + t * V;
    double all = 0;
    for (int v = 0; v < V; v++)
      all += exp((double)row[v] - (double)row[kept[t + 1]]), greedy = greedy && row[v] <= row[kept[t + 1]];
    sum -= log(all);
  }
  assert_true(fabs(r.log_probability - sum) < 1e-4 * fabs(sum));
  assert_int_equal(r.greedy, greedy);
  close_bench(&b);
}

static void test_refusals(void **state) {
  (void)state;
  struct bench b;
  int32_t tokens[LONGEST] = {0};
  open_bench(&b, WN_POS_LEARNED);
  wn_request r = {.tokens = tokens, .count = 4, .context = 2, .log_probability = 7};
  assert_ok(b.ctx, wn_score_requests(b.ctx, b.model, NULL, NULL, 0));
  static const int64_t wrong[][2] = {{4, 0}, {4, 4}, {4, 5}, {0, 0}, {LONGEST, 1}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    r.count = wrong[i][0], r.context = wrong[i][1];
    assert_int_equal(wn_score_requests(b.ctx, b.model, NULL, &r, 1), WN_ERR_ARGUMENT);
    assert_non_null(strstr(wn_context_error(b.ctx), "request 0"));
  }
  r.count = 4, r.context = 2;
  tokens[3] = V;
  assert_int_equal(wn_score_requests(b.ctx, b.model, NULL, &r, 1), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(b.ctx), "token 3 is 256"));
  tokens[3] = 0;
  wn_request_options o = {.size = sizeof o, .context = CONTEXT + 1};
  assert_int_equal(wn_score_requests(b.ctx, b.model, &o, &r, 1), WN_ERR_ARGUMENT);
  wn_context_cancel(b.ctx);
  assert_int_equal(wn_score_requests(b.ctx, b.model, NULL, &r, 1), WN_ERR_CANCELLED);
  assert_true(r.log_probability == 7); /* the result is not touched */
  wn_context_resume(b.ctx);
  assert_ok(b.ctx, wn_score_requests(b.ctx, b.model, NULL, &r, 1));
  assert_true(r.log_probability < 0);
  close_bench(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_the_task), cmocka_unit_test(test_by_hand),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
