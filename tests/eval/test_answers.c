/* Written answers: scores against worked examples (f1, exact and rouge-l are what SQuAD's script and the package
 * rouge-score give); answers against plain generation; contexts read once; saved answers; bad files. */
#include "eval/bench.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>
#include "base/fingerprint.h"
#include "winnow/answers.h"
#include "winnow/generate.h"
#include "policies.h"

/* --- scores --- */

struct scored {
  wn_scorer scorer;
  const char *answer, *references[4];
  double score;
};
static const struct scored scored[] = {
    {WN_SCORER_ALL, "the magic number is 4711.", {"4711"}, 1},
    {WN_SCORER_ALL, "47, 11 and ABC", {"47", "11", "abc", "12"}, 0.75},
    {WN_SCORER_ALL, "", {"4711"}, 0},
    {WN_SCORER_ALL, "471", {"4711"}, 0},
    {WN_SCORER_ANY, "It was in \xC3\x84ngelholm, he said", {"Oslo", "\xC3\xA4ngelholm"}, 1},
    {WN_SCORER_ANY, "yes", {"no", "maybe"}, 0},
    {WN_SCORER_EXACT, "The U.S.A.!", {"usa"}, 1},
    {WN_SCORER_EXACT, "usa usa", {"usa", "u s a"}, 0},
    {WN_SCORER_EXACT, "the", {"an"}, 1},
    {WN_SCORER_EXACT,
     "the\xE3\x80\x80"
     "cat\tsat",
     {"dog", "cat sat"},
     1},
    {WN_SCORER_EXACT, "an_other", {"another"}, 1},
    {WN_SCORER_F1, "The Norman dynasty", {"Normans' dynasty"}, 0.5},
    {WN_SCORER_F1, "10th and 11th centuries", {"x", "in the 10th and 11th centuries"}, 8.0 / 9},
    {WN_SCORER_F1, "rock 'n' roll rock", {"rock n roll"}, 6.0 / 7},
    {WN_SCORER_F1, "a b c a", {"a c c"}, 0.5},
    {WN_SCORER_F1,
     "a\xE2\x80\x93"
     "b",
     {"b"},
     0},
    {WN_SCORER_F1, "\xC3\x84rger, THE big\xC2\xA0one", {"\xC3\xA4rger big one"}, 1},
    {WN_SCORER_F1, "the", {"an"}, 0},
    {WN_SCORER_F1, "", {"x"}, 0},
    {WN_SCORER_ROUGE_L, "police killed the gunman", {"police kill the gunman"}, 0.75},
    {WN_SCORER_ROUGE_L, "the gunman kill police", {"police killed the gunman"}, 0.5},
    {WN_SCORER_ROUGE_L, "The quick, brown fox-trot.", {"quick brown trot the fox", "x"}, 0.6},
    {WN_SCORER_ROUGE_L, "a b c d e f", {"a x c e g"}, 6.0 / 11},
    {WN_SCORER_ROUGE_L, "x", {"y"}, 0},
    {WN_SCORER_NUMBER, "5 + 7 = 12\n12 - 3 = 9.\nThe answer is 9.", {"9"}, 1},
    {WN_SCORER_NUMBER, "The answer is 9. Or 10", {"9"}, 0},
    {WN_SCORER_NUMBER, "9", {"so it is 19", "8 - 17 = -9"}, 0},
    {WN_SCORER_NUMBER, "x = -9.", {"-9.0"}, 1},
    {WN_SCORER_NUMBER, "12-9", {"9"}, 1},
    {WN_SCORER_NUMBER, "-3", {"-3"}, 1},
    {WN_SCORER_NUMBER, "$1,234.50, it is", {"3", "1234.5"}, 1},
    {WN_SCORER_NUMBER, "1, 2, 34", {"34"}, 1},
    {WN_SCORER_NUMBER, "1.2.3", {"3"}, 1},
    {WN_SCORER_NUMBER, "none", {"none"}, 0},
};

static void test_scores(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  for (size_t i = 0; i < sizeof scored / sizeof *scored; i++) {
    const struct scored *s = &scored[i];
    int count = 0;
    double score;
    while (count < 4 && s->references[count]) count++;
    OK(ctx, wn_answer_score(ctx, s->scorer, s->answer, s->references, count, &score));
    if (!(fabs(score - s->score) < 1e-12))
      fail_msg("%s \"%s\": expected %.6f, found %.6f", wn_scorer_name(s->scorer), s->answer, s->score, score);
  }
  const char *const bad[] = {"\xFF"};
  double score;
  assert_refused(ctx, wn_answer_score(ctx, WN_SCORER_F1, "x", bad, 1, &score), WN_ERR_FORMAT, "not UTF-8");
  assert_refused(ctx, wn_answer_score(ctx, WN_SCORER_F1, "x", bad, 0, &score), WN_ERR_ARGUMENT, "at least one");
  for (int i = 0; i < WN_SCORER_COUNT; i++) {
    wn_scorer found;
    assert_true(wn_scorer_find(wn_scorer_name((wn_scorer)i), &found) && found == (wn_scorer)i);
  }
  wn_context_destroy(ctx);
}

/* --- answers --- */

enum { LINES = 6 };
static const char *const contexts[LINES] = {"the cat sat on a mat.", "the cat sat on a mat.",
                                            "the cat sat on a mat.", "",
                                            "other words",           "the cat sat on a mat."};
static const char *const questions[LINES] = {" who?", " what?", "", "alone", " where?", " who?"};

static void put_lines(const struct bench *b) {
  FILE *f = fopen(b->questions, "w");
  assert_non_null(f);
  for (int i = 0; i < LINES; i++)
    fprintf(f,
            "{\"task\":\"t%d\",\"context\":\"%s\",\"question\":\"%s\",\"answer_prefix\":\"%s\",\"references\":[\"e\","
            "\"\xC2\xA7\"],\"scorer\":\"all\",\"max_tokens\":%d,\"extra\":1}\n",
            i / 3, contexts[i], questions[i], i == 1 ? " It" : "", 5 + i);
  assert_int_equal(fclose(f), 0);
}

static void put_end(const char *path, const char *text) {
  FILE *f = fopen(path, "a");
  assert_non_null(f);
  fputs(text, f);
  assert_int_equal(fclose(f), 0);
}

static wn_answers_options answers_of(const struct bench *b) {
  return (wn_answers_options){.size = sizeof(wn_answers_options), .tok = b->tok, .path = b->questions, .save = b->log};
}

/* The answer that plain generation gives to line i, its context read first. */
static void generate(const struct bench *b, int i, const wn_budgets *budgets, char out[512]) {
  char prompt[128];
  int32_t ids[128], drawn[16];
  wn_generate_options o;
  wn_generate_result result;
  wn_session *s;
  const int n = snprintf(prompt, sizeof prompt, "%s%s%s", contexts[i], questions[i], i == 1 ? " It" : "");
  int64_t first = (int64_t)strlen(contexts[i]);
  if (first == n) first--; /* one token follows the context */
  for (int t = 0; t < n; t++) ids[t] = (unsigned char)prompt[t];
  OK(b->ctx,
     wn_session_create(b->ctx, b->model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = budgets), &s));
  if (first > 0) OK(b->ctx, wn_session_feed(b->ctx, s, ids, first, 0, NULL));
  wn_generate_options_init(&o, sizeof o);
  o.prompt = ids + first;
  o.prompt_count = n - first;
  o.sampling.temperature = 0;
  o.max_tokens = 5 + i;
  o.drawn = drawn;
  OK(b->ctx, wn_session_generate(b->ctx, s, &o, &result));
  char *text;
  size_t bytes;
  OK(b->ctx, wn_tokenizer_decode(b->ctx, b->tok, drawn, (size_t)result.tokens, &text, &bytes));
  json_t *valid = json_stringn(text, bytes);
  snprintf(out, 512, "%s", valid ? json_string_value(valid) : "");
  json_decref(valid);
  wn_text_free(text);
  wn_session_destroy(s);
}

/* Each saved answer is that of plain generation; numbers add up to the result. */
static void saved_agrees(const struct bench *b, const wn_budgets *budgets, const wn_answers_result *r) {
  char line[8192], expected[512];
  double scores = 0, kept = 0;
  int count = 0;
  FILE *f = fopen(b->log, "r");
  assert_non_null(fgets(line, sizeof line, f));
  for (; fgets(line, sizeof line, f); count++) {
    json_t *found = json_loads(line, 0, NULL);
    const int i = (int)json_integer_value(json_object_get(found, "sample"));
    const int64_t n = (int64_t)strlen(contexts[i]);
    assert_int_equal(i, count);
    generate(b, i, budgets, expected);
    if (*expected) assert_string_equal(json_string_value(json_object_get(found, "answer")), expected);
    assert_int_equal(json_integer_value(json_object_get(found, "context_tokens")), *questions[i] ? n : n - 1);
    assert_int_equal(json_integer_value(json_object_get(found, "answer_tokens")), 5 + i);
    scores += json_number_value(json_object_get(found, "score"));
    kept += json_number_value(json_object_get(found, "kept"));
    json_decref(found);
  }
  fclose(f);
  assert_int_equal(count, LINES);
  assert_true(fabs(r->all.score.value - scores / LINES) < 1e-12 && fabs(r->all.kept - kept / LINES) < 1e-9);
}

static void test_answers(void **state) {
  (void)state;
  struct bench b;
  for (int k = 0; k < 4; k++) {
    open_bench(&b, k == 3 ? WN_POS_LEARNED : WN_POS_ROPE);
    put_lines(&b);
    wn_budgets budgets;
    wn_answers_result r;
    wn_answers_options o = answers_of(&b);
    budgets_init(&budgets);
    budgets.policy = k == 1 ? WN_POLICY_H2O : WN_POLICY_WINDOW;
    if (k == 1 || k == 2) OK(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), "6", &budgets));
    o.budgets = budgets.layers ? &budgets : NULL;
    OK(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r));
    saved_agrees(&b, o.budgets, &r);
    assert_true(r.all.samples == LINES && r.task_count == 2 && r.resumed == 0);
    assert_string_equal(r.tasks[1].task, "t1");
    assert_true(r.tasks[0].samples == 3 && !r.all.task);
    /* Of the first three the last has no question: its context ends a token earlier. */
    assert_int_equal(r.contexts, 4);
    assert_true(r.tasks[0].context_kept == (o.budgets ? 6 : (21 + 21 + 20) / 3.0));
    assert_true(r.all.cache_peak > 0 && r.all.cache_final > 0 && r.all.cache_final <= r.all.cache_peak);
    wn_answers_result_clear(&r);
    wn_budgets_clear(&budgets);
    close_bench(&b);
  }
}

/* --- settings --- */

/* The saved answers without their seconds; freed by the caller. */
static char *saved_without_seconds(const char *path) {
  char line[8192];
  json_t *all = json_array();
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    json_t *found = json_loads(line, 0, NULL);
    assert_non_null(found);
    json_object_del(found, "first_seconds");
    json_object_del(found, "answer_seconds");
    json_array_append_new(all, found);
  }
  fclose(f);
  char *text = json_dumps(all, JSON_SORT_KEYS);
  json_decref(all);
  assert_non_null(text);
  return text;
}

/* Several settings in one run give the bits of one run each, whatever the threads and how many answers are written at a
 * time, and read fewer contexts. */
static void test_settings(void **state) {
  (void)state;
  static const struct {
    const char *name, *budgets, *options;
  } rows[] = {
      {"window", "0", ""}, /* no budgets */
      {"knorm", "50%", "when=prompt"},
      {"lagkv", "50%", "when=prompt"},
      {"keydiff", "25%", "when=hold"},
      {"expected", "60%", "when=prompt"},
      {"ada-expected", "50%", "when=prompt"},
      {"pyramidkv", "50%", "when=prompt"},
      {"rkv", "6", "when=hold"},
      {"compactor", "50%", "when=prompt"},
      {"critical-snapkv", "7", "when=prompt"},
      {"leverage", "50%", "when=prompt"},
      {"leverage", "25%", "when=prompt"}, /* the scores are computed once */
      {"critical-snapkv", "25%", "when=hold"},
      {"compactor", "25%", "when=prompt"}, /* whose scores depend on the share */
      {"kvzip", "50%", "when=prompt"},     /* the context is repeated once for both */
      {"kvzip", "25%", "when=hold"},
      {"h2o", "50%", "when=prompt"},
      {"h2o", "6", "when=hold"},
      {"snapkv", "50%", "when=prompt"},
      {"observed", "50%", "when=prompt"},
      {"tova", "6", "when=always"},
      {"rkv", "6", "when=every,every=4"},
      {"knorm", "1000", "when=prompt"}, /* more than the text: nothing is evicted, and nothing shared */
  };
  enum { N = sizeof rows / sizeof *rows };
  struct bench b;
  wn_budgets budgets[N];
  wn_answers_setting settings[N];
  wn_answers_result results[N], r;
  char paths[N][sizeof b.log + 8], *expected[N];
  open_bench(&b, WN_POS_ROPE);
  put_lines(&b);
  wn_answers_options o = answers_of(&b);
  for (int i = 0; i < N; i++) {
    snprintf(paths[i], sizeof paths[i], "%s.%d", b.log, i);
    budgets_init(&budgets[i]);
    if (!wn_budgets_named(rows[i].name, &budgets[i]))
      assert_int_equal(wn_policy_find(NULL, rows[i].name, &budgets[i].policy), WN_OK);
    if (*rows[i].options) OK(b.ctx, wn_budgets_set(b.ctx, rows[i].options, &budgets[i]));
    if (i > 0) OK(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), rows[i].budgets, &budgets[i]));
    settings[i] = (wn_answers_setting){.budgets = &budgets[i], .save = paths[i]};
    o.budgets = &budgets[i], o.save = paths[i];
    OK(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r));
    assert_true(r.contexts == 4);
    wn_answers_result_clear(&r);
    expected[i] = saved_without_seconds(paths[i]);
  }
  for (int k = 0; k < 3; k++) {
    uint64_t contexts = 0;
    for (int i = 0; i < N; i++) unlink(paths[i]);
    o.together = k == 0 ? 0 : k == 1 ? 5 : 64;
    b.ctx->threads = k == 1 ? 3 : 1;
    OK(b.ctx, wn_answers_run_settings(b.ctx, b.model, &o, settings, N, results));
    for (int i = 0; i < N; i++) {
      char *found = saved_without_seconds(paths[i]);
      assert_string_equal(found, expected[i]);
      free(found);
      contexts += results[i].contexts;
      wn_answers_result_clear(&results[i]);
    }
    /* Four contexts for each of: no budgets, no notes, h2o, snapkv, observed, always, every, more than the text. */
    assert_int_equal(contexts, 4 * 8);
  }
  OK(b.ctx, wn_answers_run_settings(b.ctx, b.model, &o, settings, N, results));
  for (int i = 0; i < N; i++) assert_true(results[i].resumed == LINES && results[i].contexts == 0);
  for (int i = 0; i < N; i++) wn_answers_result_clear(&results[i]);
  settings[2].save = settings[1].save;
  assert_refused(b.ctx, wn_answers_run_settings(b.ctx, b.model, &o, settings, N, results), WN_ERR_ARGUMENT,
                 "settings 1 and 2 are saved to one file");
  for (int i = 0; i < N; i++) {
    unlink(paths[i]);
    free(expected[i]);
    wn_budgets_clear(&budgets[i]);
  }
  close_bench(&b);
}

/* All bytes of a fingerprint are its own, since fingerprints of fingerprints take all of them. */
static void test_fingerprint(void **state) {
  (void)state;
  char a[24], b[24];
  memset(a, 1, sizeof a);
  memset(b, 2, sizeof b);
  wn_fingerprint("x", 1, a);
  wn_fingerprint("x", 1, b);
  assert_memory_equal(a, b, sizeof a);
}

static void stop_early(void *user, uint64_t done, uint64_t total) {
  if (done * 2 >= total) wn_context_cancel(user);
}

static void test_resume(void **state) {
  (void)state;
  struct bench b;
  wn_answers_result r, again;
  open_bench(&b, WN_POS_ROPE);
  put_lines(&b);
  wn_answers_options o = answers_of(&b);
  o.progress = stop_early;
  o.user = b.ctx;
  assert_int_equal(wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_CANCELLED);
  assert_true(r.task_count == 0 && !r.tasks);
  wn_context_resume(b.ctx);
  o.progress = NULL;
  put_end(b.log, "{\"sample\":3,\"ta"); /* a line that was being written */
  OK(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r));
  assert_int_equal(r.resumed, 3);
  saved_agrees(&b, NULL, &r);
  OK(b.ctx, wn_answers_run(b.ctx, b.model, &o, &again));
  assert_true(again.resumed == LINES && again.contexts == 0 && again.all.score.value == r.all.score.value &&
              again.all.kept == r.all.kept && again.all.tokens_per_second == r.all.tokens_per_second);
  wn_answers_result_clear(&again);
  wn_answers_result_clear(&r);
  const char *const stop[] = {"x"};
  for (int k = 0; k < 4; k++) {
    wn_answers_options other = o;
    wn_budgets budgets;
    budgets_init(&budgets);
    budgets.policy = WN_POLICY_WINDOW;
    OK(b.ctx, wn_budgets_parse(b.ctx, wn_model_config_get(b.model), "6", &budgets));
    if (k == 0) other.budgets = &budgets;
    if (k == 1) other.max_tokens = 9;
    if (k == 2) other.stop = stop, other.stop_count = 1;
    if (k == 3) other.limit = 2;
    assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &other, &r), WN_ERR_CONFIG, "log of another evaluation");
    wn_budgets_clear(&budgets);
  }
  put_end(b.log, "{\"sample\":6}\n");
  assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_FORMAT, "log.jsonl:8: field \"sample\"");
  close_bench(&b);
}

/* --limit counts lines of each task; a line's own stop holds before the options'. */
static void test_limit_and_stop(void **state) {
  (void)state;
  struct bench b;
  wn_answers_result r;
  const char *const stop[] = {"\n"};
  open_bench(&b, WN_POS_ROPE);
  put_lines(&b);
  wn_answers_options o = answers_of(&b);
  o.limit = 2;
  o.save = NULL;
  o.stop = stop, o.stop_count = 1;
  OK(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r));
  assert_true(r.all.samples == 4 && r.tasks[0].samples == 2 && r.tasks[1].samples == 2);
  wn_answers_result_clear(&r);
  close_bench(&b);
}

static void test_bad_files(void **state) {
  (void)state;
  static const struct {
    const char *file, *part;
  } rows[] = {
      {"\n\n", "no question in it"},
      {"[1]\n", "choices.jsonl:1: expected a JSON object"},
      {"{\"question\":\n", "choices.jsonl:1:"},
      {"{\"references\":[\"a\"],\"scorer\":\"all\"}\n", "expected a \"context\", a \"question\""},
      {"\n{\"context\":1,\"references\":[\"a\"],\"scorer\":\"all\"}\n",
       "choices.jsonl:2: field \"context\": expected a text, found a number"},
      {"{\"question\":\"q\",\"scorer\":\"all\"}\n",
       "field \"references\": expected a list of 1 to 64 texts, found nothing"},
      {"{\"question\":\"q\",\"references\":[],\"scorer\":\"all\"}\n", "field \"references\": expected a list"},
      {"{\"question\":\"q\",\"references\":[\"\"],\"scorer\":\"all\"}\n", "field \"references\": a text is empty"},
      {"{\"question\":\"q\",\"references\":[\"a\"]}\n",
       "field \"scorer\": expected all, any, exact, f1, rouge-l or number, found nothing"},
      {"{\"question\":\"q\",\"references\":[\"a\"],\"scorer\":\"bleu\"}\n", "rouge-l or number, found \"bleu\""},
      {"{\"question\":\"q\",\"references\":[\"a\"],\"scorer\":\"f1\",\"max_tokens\":0}\n",
       "field \"max_tokens\": expected a number from 1 to"},
      {"{\"question\":\"q\",\"references\":[\"a\"],\"scorer\":\"f1\",\"stop\":\"x\"}\n",
       "field \"stop\": expected a list of texts"},
  };
  struct bench b;
  wn_answers_result r;
  open_bench(&b, WN_POS_LEARNED);
  wn_answers_options o = answers_of(&b);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    put_file(b.questions, rows[i].file, strlen(rows[i].file));
    assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_FORMAT, rows[i].part);
    assert_true(access(b.log, F_OK) != 0);
  }
  char text[256] = "{\"references\":[\"a\"],\"scorer\":\"f1\",\"question\":\"";
  const size_t n = strlen(text);
  memset(text + n, 'x', 97);
  strcpy(text + n + 97, "\"}\n");
  put_file(b.questions, text, strlen(text));
  assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_ARGUMENT,
                 "choices.jsonl:1: the prompt has 97 tokens, the model learned positions for 96");
  o.max_tokens = -1;
  assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_ARGUMENT, "max_tokens -1");
  o.tok = NULL;
  assert_refused(b.ctx, wn_answers_run(b.ctx, b.model, &o, &r), WN_ERR_ARGUMENT, "a tokenizer and a path");
  close_bench(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scores),         cmocka_unit_test(test_answers),   cmocka_unit_test(test_resume),
      cmocka_unit_test(test_limit_and_stop), cmocka_unit_test(test_bad_files), cmocka_unit_test(test_settings),
      cmocka_unit_test(test_fingerprint),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
