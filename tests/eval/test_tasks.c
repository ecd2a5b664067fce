/* Tasks: the requests made from a line of the file, by hand; sums against the log-softmax of whole logits, however
 * questions are batched, truncated or evicted; resumed logs; bad files. */
#include "eval/bench.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/fields.h"
#include "eval/questions.h"
#include "reach.h"
#include "policies.h"

/* --- requests --- */

struct asked {
  const char *task, *line;
  int gold, count;
  const char *requests[5][2];
};
static const struct asked asked[] = {
    {"hellaswag",
     "{\"query\":\"Tea: She\",\"choices\":[\"pours.\",\"runs.\",\"is.\",\"a\"],\"gold\":2}",
     2,
     4,
     {{"Tea: She", " pours."}, {"Tea: She", " runs."}, {"Tea: She", " is."}, {"Tea: She", " a"}}},
    {"arc_easy",
     "{\"question\":\"What melts?\",\"choices\":{\"text\":[\"ice\",\"air\",\"fog\"],\"label\":[\"1\",\"2\",\"3\"]},"
     "\"answerKey\":\"1\"}",
     0,
     3,
     {{"Question: What melts?\nAnswer:", " ice"},
      {"Question: What melts?\nAnswer:", " air"},
      {"Question: What melts?\nAnswer:", " fog"}}},
    {"arc_challenge",
     "{\"question\":\"Why?\",\"choices\":{\"text\":[\"x\",\"y\"],\"label\":[\"A\",\"B\"]},\"answerKey\":\"B\"}",
     1,
     2,
     {{"Question: Why?\nAnswer:", " x"}, {"Question: Why?\nAnswer:", " y"}}},
    {"piqa",
     "{\"goal\":\"Dry a cup\",\"sol1\":\"wipe it\",\"sol2\":\"wet it\",\"label\":0}",
     0,
     2,
     {{"Question: Dry a cup\nAnswer:", " wipe it"}, {"Question: Dry a cup\nAnswer:", " wet it"}}},
    {"commonsense_qa",
     "{\"question\":\" Where? \",\"choices\":{\"label\":[\"A\",\"B\",\"C\",\"D\",\"E\"],\"text\":[\"sea\",\"sky\","
     "\"bed\",\"box\",\"van\"]},\"answerKey\":\"D\"}",
     3,
     5,
     {{"Question: Where?\nA. sea\nB. sky\nC. bed\nD. box\nE. van\nAnswer:", " A"},
      {"Question: Where?\nA. sea\nB. sky\nC. bed\nD. box\nE. van\nAnswer:", " B"},
      {"Question: Where?\nA. sea\nB. sky\nC. bed\nD. box\nE. van\nAnswer:", " C"},
      {"Question: Where?\nA. sea\nB. sky\nC. bed\nD. box\nE. van\nAnswer:", " D"},
      {"Question: Where?\nA. sea\nB. sky\nC. bed\nD. box\nE. van\nAnswer:", " E"}}},
    {"openbookqa",
     "{\"question_stem\":\"Rust is\",\"choices\":{\"text\":[\"iron and air\",\"paint\"],\"label\":[\"A\",\"B\"]},"
     "\"answerKey\":\"A\"}",
     0,
     2,
     {{"Rust is", " iron and air"}, {"Rust is", " paint"}}},
    {"boolq",
     "{\"passage\":\"Owls hunt.\",\"question\":\"do owls hunt\",\"label\":1}",
     1,
     2,
     {{"Owls hunt.\nQuestion: do owls hunt?\nAnswer:", " no"},
      {"Owls hunt.\nQuestion: do owls hunt?\nAnswer:", " yes"}}},
    {"lambada_openai", "{\"text\":\"He took his hat\"}", -1, 1, {{"He took his", " hat"}}},
    {"social_iqa",
     "{\"context\":\"Ann fell.\",\"question\":\"How is "
     "Ann?\",\"answerA\":\"hurt\",\"answerB\":\"glad\",\"answerC\":\"out\","
     "\"label\":\"1\"}",
     0,
     3,
     {{"Q: Ann fell. How is Ann?\nA:", " hurt"},
      {"Q: Ann fell. How is Ann?\nA:", " glad"},
      {"Q: Ann fell. How is Ann?\nA:", " out"}}},
    {"winogrande",
     "{\"sentence\":\"Bo beat Al as _ was quick.\",\"option1\":\"Bo\",\"option2\":\"Al\",\"answer\":\"2\"}",
     1,
     2,
     {{"Bo beat Al as Bo", " was quick."}, {"Bo beat Al as Al", " was quick."}}},
    {"copa",
     "{\"context\":\"It rained, so\",\"choices\":[\"i ran.\",\"i sat.\"],\"label\":1}",
     1,
     2,
     {{"It rained, so", " i ran."}, {"It rained, so", " i sat."}}},
    {"wsc273",
     "{\"contexts\":[\"Jo told Flo that Jo\",\"Jo told Flo that Flo\"],\"continuation\":\"won.\",\"label\":0}",
     0,
     2,
     {{"Jo told Flo that Jo", " won."}, {"Jo told Flo that Flo", " won."}}},
    {"choices",
     "{\"context\":\"2+2=\",\"choices\":[\"4\",\"5\"],\"gold\":0,\"delimiter\":\"\"}",
     0,
     2,
     {{"2+2=", "4"}, {"2+2=", "5"}}},
    {"choices", "{\"contexts\":[\"a\",\"b\"],\"continuation\":\"c\",\"gold\":1}", 1, 2, {{"a", " c"}, {"b", " c"}}},
    {"choices", "{\"context\":\"one\",\"continuation\":\"word\"}", -1, 1, {{"one", " word"}}},
};

static wn_status read_line(wn_context *ctx, const char *task, const char *text, struct wn_question *q) {
  json_t *line = NULL;
  q->where = "here:1";
  wn_question_clear(q);
  assert_int_equal(wn_json_load_text(ctx, WN_JSON_LINE, "here:1", text, strlen(text), &line), WN_OK);
  wn_status status = wn_task_read(ctx, wn_task_row(task), line, q);
  json_decref(line);
  return status;
}

static void test_what_is_asked(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  static struct wn_question q;
  bool seen[64] = {0};
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    const struct asked *a = &asked[i];
    assert_ok(ctx, read_line(ctx, a->task, a->line, &q));
    assert_int_equal(q.gold, a->gold);
    assert_int_equal(q.count, a->count);
    for (int n = 0; n < a->count; n++) {
      assert_string_equal(q.requests[n].context.data, a->requests[n][0]);
      assert_string_equal(q.requests[n].continuation.data, a->requests[n][1]);
    }
    for (int t = 0; t < wn_task_count(); t++) seen[t] = seen[t] || !strcmp(wn_task_at(t)->name, a->task);
  }
  for (int t = 0; t < wn_task_count(); t++) assert_true(seen[t]);
  assert_null(wn_task_at(wn_task_count()));
  assert_null(wn_task_at(-1));
  wn_question_clear(&q);
  wn_context_destroy(ctx);
}

/* Every field that is missing, of the wrong type or out of range is named in the message. */
static void test_bad_lines(void **state) {
  (void)state;
  static const struct {
    const char *task, *line, *part;
  } rows[] = {
      {"hellaswag", "{\"choices\":[\"a\"],\"gold\":0}", "here:1: field \"query\": expected a text, found nothing"},
      {"hellaswag", "{\"query\":7,\"choices\":[\"a\"],\"gold\":0}", "field \"query\": expected a text, found a number"},
      {"hellaswag", "{\"query\":\"q\",\"choices\":\"a\",\"gold\":0}", "field \"choices\": expected a list"},
      {"hellaswag", "{\"query\":\"q\",\"choices\":[],\"gold\":0}", "field \"choices\": expected a list"},
      {"hellaswag", "{\"query\":\"q\",\"choices\":[\"a\",null],\"gold\":0}", "element 1 is null"},
      {"hellaswag", "{\"query\":\"q\",\"choices\":[\"a\"],\"gold\":1}",
       "field \"gold\": expected a number from 0 to 0"},
      {"hellaswag", "{\"query\":\"q\",\"choices\":[\"\"],\"gold\":0}", "choice 0 is empty"},
      {"arc_easy", "{\"question\":\"q\",\"choices\":[\"a\"],\"answerKey\":\"A\"}", "expected an object"},
      {"arc_easy", "{\"question\":\"q\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\"]},\"answerKey\":\"A\"}",
       "1 labels for 2 texts"},
      {"arc_easy", "{\"question\":\"q\",\"choices\":{\"text\":[\"a\"],\"label\":[\"A\"]},\"answerKey\":\"B\"}",
       "\"B\" is none of the labels"},
      {"commonsense_qa", "{\"question\":\"q\",\"choices\":{\"text\":[\"a\"],\"label\":[\"A\"]},\"answerKey\":\"A\"}",
       "expected 5 of them, found 1"},
      {"winogrande", "{\"sentence\":\"s\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"1\"}", "expected a blank"},
      {"winogrande", "{\"sentence\":\"_ s\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"3\"}",
       "field \"answer\": expected a number from 1 to 2"},
      {"social_iqa", "{\"context\":\"c\",\"question\":\"q\",\"answerA\":\"a\",\"answerC\":\"b\",\"label\":\"1\"}",
       "field \"answerB\""},
      {"boolq", "{\"passage\":\"p\",\"question\":\"q\",\"label\":true}", "field \"label\""},
      {"choices", "{\"context\":\"c\",\"choices\":[\"a\"]}", "field \"gold\""},
      {"choices", "{\"context\":\"c\"}", "field \"choices\""},
  };
  wn_context *ctx = make_context();
  static struct wn_question q;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_refused(ctx, read_line(ctx, rows[i].task, rows[i].line, &q), WN_ERR_FORMAT, rows[i].part);
  wn_question_clear(&q);
  wn_context_destroy(ctx);
}

/* --- results --- */

static double log_softmax(const float *logits, int32_t id) {
  double top = -INFINITY, sum = 0;
  for (int v = 0; v < V; v++) top = fmax(top, (double)logits[v]);
  for (int v = 0; v < V; v++) sum += exp((double)logits[v] - top);
  return (double)logits[id] - top - log(sum);
}

/* The sum for one request, which is read by itself, whole; only its last CONTEXT+1 bytes. */
static double sum_of(wn_context *ctx, wn_model *model, const wn_budgets *budgets, int64_t context, const char *before,
                     const char *text, bool *greedy) {
  int32_t ids[512];
  static float logits[512 * V];
  int64_t n = 0, first;
  for (const char *c = before; *c; c++) ids[n++] = (unsigned char)*c;
  for (first = n; first > 0 && ids[first - 1] == ' ';) first--; /* trailing spaces belong to the continuation */
  for (const char *c = text; *c; c++) ids[n++] = (unsigned char)*c;
  const int64_t drop = n > context + 1 ? n - context - 1 : 0;
  OK(ctx, wn_model_logits(ctx, model, ids + drop, 1, n - 1 - drop, WN_OPTIONS(wn_logits_options, .budgets = budgets),
                          logits));
  double sum = 0;
  *greedy = true;
  for (int64_t i = first; i < n; i++) {
    const float *row = logits + (i - 1 - drop) * V;
    sum += log_softmax(row, ids[i]);
    for (int v = 0; v < V; v++) *greedy = *greedy && row[v] <= row[ids[i]];
  }
  return sum;
}

/* The sums in the log equal those of requests read one by one. */
static void log_agrees(const struct bench *b, const wn_budgets *budgets, int64_t context, int count) {
  static struct wn_question q;
  char line[4096];
  int seen = 0;
  FILE *f = fopen(b->log, "r"), *in;
  assert_non_null(f);
  assert_non_null(fgets(line, sizeof line, f));
  while (fgets(line, sizeof line, f)) {
    json_t *found = json_loads(line, 0, NULL);
    assert_non_null(found);
    const int wanted = (int)json_integer_value(json_object_get(found, "question"));
    in = fopen(b->questions, "r");
    for (int i = -1; i < wanted;) {
      assert_non_null(fgets(line, sizeof line, in));
      i += line[0] != '\n';
    }
    fclose(in);
    OK(b->ctx, read_line(b->ctx, "choices", line, &q));
    for (int n = 0; n < q.count; n++) {
      bool greedy;
      const double expected = sum_of(b->ctx, b->model, budgets, context, q.requests[n].context.data,
                                     q.requests[n].continuation.data, &greedy);
      const double sum = json_real_value(json_array_get(json_object_get(found, "log_probability"), (size_t)n));
      if (!(fabs(sum - expected) < 2e-3))
        fail_msg("question %d.%d: expected %.6f, found %.6f", wanted, n, expected, sum);
      assert_int_equal(json_is_true(json_array_get(json_object_get(found, "greedy"), (size_t)n)), greedy);
    }
    json_decref(found);
    seen++;
  }
  fclose(f);
  wn_question_clear(&q);
  assert_int_equal(seen, count);
}

static void test_sums(void **state) {
  (void)state;
  enum { COUNT = 40 };
  static const int64_t batches[] = {1, 0, 40}, contexts[] = {0, 0, 17};
  struct bench b;
  for (int k = 0; k < 3; k++) {
    open_bench(&b, k == 1 ? WN_POS_LEARNED : WN_POS_ROPE);
    put_questions(b.questions, COUNT);
    for (int budgeted = 0; budgeted < 3; budgeted++) {
      wn_budgets budgets;
      wn_task_result r;
      wn_task_options o = options_of(&b);
      budgets_init(&budgets);
      budgets.policy = budgeted == 1 ? WN_POLICY_H2O : WN_POLICY_WINDOW;
      OK(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), "6", &budgets));
      o.budgets = budgeted ? &budgets : NULL;
      o.batch = batches[k];
      o.context = contexts[k];
      OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &r));
      assert_true(r.questions == COUNT && r.resumed == 0 && r.cache_bytes > 0);
      log_agrees(&b, o.budgets, o.context ? o.context : CONTEXT, COUNT);
      wn_budgets_clear(&budgets);
    }
    close_bench(&b);
  }
}

/* Metrics, computed by hand from the log. */
static void test_metrics(void **state) {
  (void)state;
  struct bench b;
  wn_task_result r;
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, 35);
  const wn_task_options o = options_of(&b);
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &r));
  static struct wn_question q;
  double sums[3] = {0}, words_sum = 0, words_squares = 0;
  int choices = 0, single = 0, greedy = 0;
  char line[4096], text[4096];
  FILE *f = fopen(b.log, "r");
  assert_non_null(fgets(line, sizeof line, f));
  while (fgets(line, sizeof line, f)) {
    json_t *found = json_loads(line, 0, NULL);
    FILE *in = fopen(b.questions, "r");
    for (int i = -1; i < (int)json_integer_value(json_object_get(found, "question"));) {
      assert_non_null(fgets(text, sizeof text, in));
      i += text[0] != '\n';
    }
    fclose(in);
    OK(b.ctx, read_line(b.ctx, "choices", text, &q));
    double value[8];
    for (int n = 0; n < q.count; n++)
      value[n] = json_real_value(json_array_get(json_object_get(found, "log_probability"), (size_t)n));
    if (q.gold < 0) {
      single++;
      words_sum += value[0], words_squares += value[0] * value[0];
      greedy += json_is_true(json_array_get(json_object_get(found, "greedy"), 0));
    }
    for (int m = 0; m < 3 && q.gold >= 0; m++) {
      int best = 0;
      double most = -INFINITY;
      for (int n = 0; n < q.count; n++) {
        const char *bare = q.requests[n].continuation.data + q.requests[n].bare;
        int characters = 0;
        for (const char *c = bare; *c; c++) characters += (*c & 0xC0) != 0x80;
        const double x = value[n] / (m == 0 ? 1 : m == 1 ? characters : (double)strlen(bare));
        if (x > most) most = x, best = n;
      }
      sums[m] += best == q.gold;
      choices += m == 0;
    }
    json_decref(found);
  }
  fclose(f);
  wn_question_clear(&q);
  assert_true(choices == 28 && single == 7);
  assert_true(r.counted[WN_METRIC_ACC] == 35 && r.counted[WN_METRIC_ACC_NORM] == 28 &&
              r.counted[WN_METRIC_PERPLEXITY] == 7);
  const double p = (sums[0] + greedy) / 35;
  assert_true(fabs(r.value[WN_METRIC_ACC] - p) < 1e-12);
  assert_true(fabs(r.value[WN_METRIC_ACC_NORM] - sums[1] / 28) < 1e-12);
  assert_true(fabs(r.value[WN_METRIC_ACC_BYTES] - sums[2] / 28) < 1e-12);
  assert_true(fabs(r.stderr_[WN_METRIC_ACC] - sqrt(p * (1 - p) / 34)) < 1e-12); /* sample deviation of zeros and ones */
  const double mean = words_sum / 7, deviation = sqrt((words_squares - 7 * mean * mean) / 6 / 7);
  assert_true(fabs(log(r.value[WN_METRIC_PERPLEXITY]) + mean) < 1e-9);
  assert_true(fabs(r.stderr_[WN_METRIC_PERPLEXITY] / r.value[WN_METRIC_PERPLEXITY] - deviation) < 1e-6);
  close_bench(&b);
}

static void stop_early(void *user, uint64_t done, uint64_t total) {
  if (done * 2 > total) wn_context_cancel(user);
}

static void test_resume(void **state) {
  (void)state;
  struct bench b;
  wn_task_result whole, part, rest;
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, 30);
  wn_task_options o = options_of(&b);
  o.batch = 1;
  o.log_name = "this model";
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &whole));
  o.progress = stop_early;
  o.user = b.ctx;
  assert_int_equal(wn_task_run(b.ctx, b.model, &o, &part), WN_ERR_CANCELLED);
  wn_context_resume(b.ctx);
  o.progress = NULL;
  o.resume = true;
  /* The log ends in the middle of a line, as after a kill. */
  FILE *f = fopen(b.log, "a");
  fprintf(f, "{\"question\":3,\"log_pro");
  fclose(f);
  char other[sizeof b.log + 8]; /* another name of the file, which must keep what it shows */
  struct stat before, after;
  snprintf(other, sizeof other, "%s.other", b.log);
  assert_true(link(b.log, other) == 0 && stat(other, &before) == 0);
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest));
  assert_true(stat(other, &after) == 0 && after.st_size == before.st_size && after.st_nlink == 1);
  remove(other);
  assert_true(rest.resumed > 10 && rest.resumed < 30);
  for (int m = 0; m < WN_METRIC_COUNT; m++) assert_true(fabs(whole.value[m] - rest.value[m]) < 1e-9 * whole.value[m]);
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest)); /* nothing left to do */
  assert_true(rest.resumed == 30 && rest.tokens_fed == 0);
  o.log_name = "another";
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest), WN_ERR_CONFIG, "the log of another evaluation");
  o.log_name = "this model";
  o.limit = 29;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest), WN_ERR_CONFIG, "the log of another evaluation");
  o.limit = 0;
  f = fopen(b.log, "a");
  fprintf(f, "{\"question\":99,\"log_probability\":[0],\"greedy\":[true]}\n");
  fclose(f);
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest), WN_ERR_FORMAT, "field \"question\": expected 0 to 29");
  o.resume = false; /* starts a new log */
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &rest));
  assert_true(rest.resumed == 0);
  close_bench(&b);
}

/* A log belongs to the weights, the control tokens, and the budgets with every option of their policy. */
static void test_resume_of_another(void **state) {
  (void)state;
  struct bench b;
  wn_task_result r;
  wn_budgets budgets;
  open_bench(&b, WN_POS_ROPE);
  put_questions(b.questions, 5);
  wn_task_options o = options_of(&b);
  budgets_init(&budgets);
  budgets.policy = WN_POLICY_SNAPKV;
  OK(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), "8", &budgets));
  o.budgets = &budgets;
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &r));
  o.resume = true;
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &r));
  assert_true(r.resumed == 5);
  const char *const refused = "the log of another evaluation";
  budgets.snapkv.rows = 4;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &r), WN_ERR_CONFIG, refused);
  budgets.snapkv.rows = 32;
  budgets.tokens[0] = 9;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &r), WN_ERR_CONFIG, refused);
  budgets.tokens[0] = 8;
  const int32_t control = 3;
  OK(b.ctx, wn_model_set_control_tokens(b.ctx, b.model, &control, 1));
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &r), WN_ERR_CONFIG, refused);
  OK(b.ctx, wn_model_set_control_tokens(b.ctx, b.model, NULL, 0));
  OK(b.ctx, wn_task_run(b.ctx, b.model, &o, &r));
  ((float *)reach(b.model->params))[0] += 1;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, &r), WN_ERR_CONFIG, refused);
  wn_budgets_clear(&budgets);
  close_bench(&b);
}

static void test_refusals(void **state) {
  (void)state;
  struct bench b;
  open_bench(&b, WN_POS_LEARNED);
  wn_task_options o = options_of(&b);
  o.log = NULL;
  static const struct {
    const char *file;
    wn_status status;
    const char *part;
  } rows[] = {
      {"", WN_ERR_FORMAT, "choices.jsonl"},
      {"\n\n", WN_ERR_FORMAT, "no question in it"},
      {"[1]\n", WN_ERR_FORMAT, "choices.jsonl:1: expected a JSON object"},
      {"{\"context\":\"a\",\"continuation\":\"b\"}\n{\"context\":\"a\n", WN_ERR_FORMAT, "choices.jsonl:2"},
      {"{\"context\":\"a\",\"continuation\":\"b\"}\n{\"context\":1,\"continuation\":\"b\"}", WN_ERR_FORMAT,
       "choices.jsonl:2: field \"context\""},
      {"{\"context\":\"\",\"continuation\":\"b\"}\n", WN_ERR_FORMAT, "the context is empty"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    put_file(b.questions, rows[i].file, strlen(rows[i].file));
    assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), rows[i].status, rows[i].part);
  }
  char text[256] = "{\"context\":\"a\",\"continuation\":\"";
  memset(text + strlen(text), 'x', 120);
  strcpy(text + strlen("{\"context\":\"a\",\"continuation\":\"") + 120, "\"}\n");
  put_file(b.questions, text, strlen(text));
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_FORMAT, "the context has room for 96");
  o.task = "arc";
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_ARGUMENT, "task \"arc\" is unknown");
  o.task = NULL;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_ARGUMENT, "unknown");
  o.task = "copa";
  o.path = b.dir;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_IO, "no copa.jsonl and no copa.jsonl.gz");
  o.context = CONTEXT + 1;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_ARGUMENT, "expected a context of 1 to 96");
  o.tok = NULL;
  assert_refused(b.ctx, wn_task_run(b.ctx, b.model, &o, NULL), WN_ERR_ARGUMENT, "a tokenizer and a path");
  close_bench(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_asked), cmocka_unit_test(test_bad_lines), cmocka_unit_test(test_sums),
      cmocka_unit_test(test_metrics),       cmocka_unit_test(test_resume),    cmocka_unit_test(test_resume_of_another),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
