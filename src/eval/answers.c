/* Questions with written answers: what is read when, and what is measured.
 *
 * The file is read twice. The first pass checks every line, finds the tasks, and whether neighbours share a context;
 * the second answers (answers_write.c). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/estimate.h"
#include "base/fingerprint.h"
#include "base/misuse.h"
#include "base/options.h"
#include "dist/dist.h"
#include "eval/answers_run.h"
#include "kv/budgets.h"
#include "text/tokenizer.h"
#include "winnow/generate.h"

/* --- the first pass --- */

static int answers_task(const struct wn_answers *a, const char *name) {
  int i = 0;
  while (i < a->task_count && strcmp(a->tasks[i], name) != 0) i++;
  return i;
}

static wn_status answers_add_task(struct wn_answers *a, const char *name) {
  struct wn_text text = {0};
  const int n = a->task_count;
  WN_TRY(WN_RESIZE(a->ctx, "tasks", &a->tasks, n, n + 1));
  WN_TRY(WN_RESIZE(a->ctx, "tasks", &a->task_lines, n, n + 1));
  WN_TRY(wn_task_format(a->ctx, &text, "%s", name));
  a->tasks[n] = text.data;
  a->task_lines[n] = 0;
  a->task_count++;
  return WN_OK;
}

/* The fingerprint of all lines so far: of the one before them and of this line. */
static wn_status answers_fingerprint(struct wn_answers *a, const struct wn_sample *s) {
  char both[48] = "";
  char *text = json_dumps(s->line, JSON_COMPACT | JSON_SORT_KEYS);
  if (!text) return wn_fail(a->ctx, WN_ERR_MEMORY, "out of memory: %s", s->where);
  memcpy(both, a->fingerprint, 24);
  wn_fingerprint(text, strlen(text), both + 24);
  wn_fingerprint(both, sizeof both, a->fingerprint);
  free(text);
  return WN_OK;
}

/* Takes line number `line` unless its task has enough. context: of the line taken before. */
static wn_status answers_survey_line(struct wn_answers *a, struct wn_sample *s, uint64_t line,
                                     struct wn_text *context) {
  const int task = answers_task(a, s->task);
  if (task == a->task_count) WN_TRY(answers_add_task(a, s->task));
  if (a->o->limit > 0 && a->task_lines[task] == a->o->limit) return WN_OK;
  a->task_lines[task]++;
  WN_TRY(WN_GROW(a->ctx, "answers", &a->all, a->count, 1, &a->room));
  WN_TRY(answers_fingerprint(a, s));
  if (a->count == 0) {
    WN_TRY(wn_sample_encode(a->ctx, a->o, s));
    wn_fingerprint(s->ids, (size_t)s->n * sizeof *s->ids, a->prompt);
  }
  const bool shares = *s->context && context->data && !strcmp(context->data, s->context);
  a->all[a->count++] = (struct wn_answer_line){.task = task, .line = line, .shares = shares};
  if (shares) return WN_OK;
  wn_free(context->data);
  *context = (struct wn_text){0};
  return wn_task_format(a->ctx, context, "%s", s->context);
}

static wn_status answers_survey(struct wn_answers *a) {
  struct wn_lines lines = {0};
  struct wn_text context = {0};
  struct wn_sample s;
  bool more = true;
  wn_status status = wn_lines_open(a->ctx, a->o->path, &lines);
  if (status == WN_OK && lines.file_bytes == 0)
    status = wn_fail(a->ctx, WN_ERR_ARGUMENT, "%s: the file is read twice, which a pipe cannot be", a->o->path);
  while (status == WN_OK && more) {
    status = wn_sample_next(a->ctx, a->o, &lines, &s, &more);
    if (status != WN_OK) break;
    if (more) status = answers_survey_line(a, &s, lines.line, &context);
    wn_sample_clear(&s);
  }
  wn_lines_close(&lines);
  wn_free(context.data);
  if (status == WN_OK && a->count == 0) status = wn_fail(a->ctx, WN_ERR_FORMAT, "%s: no question in it", a->o->path);
  return status;
}

/* --- the saved answers --- */

/* model: what identifies it (wn_eval_log_model). */
static wn_status answers_head(const struct wn_answers *a, const wn_budgets *of, json_t *model, json_t **out) {
  const wn_answers_options *o = a->o;
  json_t *budgets = NULL, *stop;
  if (of) WN_TRY(wn_budgets_to_json(a->ctx, of, &budgets));
  stop = json_array();
  for (int i = 0; i < o->stop_count; i++) json_array_append_new(stop, json_string(o->stop[i]));
  *out = json_pack("{s:I, s:s, s:s, s:I, s:o, s:s, s:o*}", "answers", (json_int_t)a->count, "lines", a->fingerprint,
                   "prompt", a->prompt, "max_tokens", (json_int_t)o->max_tokens, "stop", stop, "cache",
                   wn_cache_format_name(o->cache), "budgets", budgets);
  if (*out) json_object_update_missing(*out, model);
  return WN_OK;
}

/* A column whose answers are taken. */
struct taking {
  const struct wn_answers *a;
  struct wn_answers_column *column;
};

static wn_status answers_take(wn_context *ctx, void *user, const char *where, const json_t *line) {
  const struct taking *taking = user;
  const int64_t count = taking->a->count;
  const json_t *number = json_object_get(line, "sample");
  const json_int_t i = json_is_integer(number) ? json_integer_value(number) : -1;
  if (i < 0 || i >= count)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"sample\": expected 0 to %lld", where, (long long)count - 1);
  struct wn_answer *answer = &taking->column->all[i];
  for (int n = 0; n < WN_ANSWER_NUMBERS; n++) {
    const json_t *value = json_object_get(line, wn_answer_names[n]);
    answer->numbers[n] = json_number_value(value);
    if (!json_is_number(value) || answer->numbers[n] < 0 || (n == WN_ANSWER_SCORE && answer->numbers[n] > 1))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected a number%s", where, wn_answer_names[n],
                     n == WN_ANSWER_SCORE ? " from 0 to 1" : " of at least 0");
  }
  taking->column->r->resumed += !answer->done;
  answer->done = true;
  return WN_OK;
}

/* --- figures --- */

/* The answers of a task (-1: all) in a column. */
struct chosen {
  const struct wn_answers *a;
  const struct wn_answers_column *column;
  int task;
};

static bool chosen_has(const struct chosen *of, int64_t i) {
  return of->task < 0 || of->a->all[i].task == of->task;
}

/* The mean of one number, over answers where number `where` is above 0 (WN_ANSWER_NUMBERS: everywhere). */
static double chosen_mean(const struct chosen *of, int number, int where) {
  double sum = 0, n = 0;
  for (int64_t i = 0; i < of->a->count; i++) {
    const double *numbers = of->column->all[i].numbers;
    if (!chosen_has(of, i) || (where < WN_ANSWER_NUMBERS && !(numbers[where] > 0))) continue;
    sum += numbers[number];
    n++;
  }
  return n > 0 ? sum / n : NAN;
}

/* scores [count]: scratch. */
static void answers_figures(const struct chosen *of, double *scores, wn_answers_figures *out) {
  int64_t n = 0;
  for (int64_t i = 0; i < of->a->count; i++) {
    const double *numbers = of->column->all[i].numbers;
    if (!chosen_has(of, i)) continue;
    if (numbers[WN_ANSWER_CACHE_PEAK] > (double)out->cache_peak)
      out->cache_peak = (uint64_t)numbers[WN_ANSWER_CACHE_PEAK];
    scores[n++] = numbers[WN_ANSWER_SCORE];
  }
  out->samples = (uint64_t)n;
  out->score = wn_estimate_ratio(&(struct wn_row_numbers){.sum = scores, .count = n, .stride = 1});
  out->prompt_tokens = chosen_mean(of, WN_ANSWER_PROMPT_TOKENS, WN_ANSWER_NUMBERS);
  out->answer_tokens = chosen_mean(of, WN_ANSWER_TOKENS, WN_ANSWER_NUMBERS);
  out->context_kept = chosen_mean(of, WN_ANSWER_CONTEXT_KEPT, WN_ANSWER_CONTEXT_TOKENS);
  out->kept = chosen_mean(of, WN_ANSWER_KEPT, WN_ANSWER_NUMBERS);
  out->cache_final = (uint64_t)chosen_mean(of, WN_ANSWER_CACHE_FINAL, WN_ANSWER_NUMBERS);
  out->first_seconds = chosen_mean(of, WN_ANSWER_FIRST_SECONDS, WN_ANSWER_NUMBERS);
  out->tokens_per_second = out->answer_tokens / chosen_mean(of, WN_ANSWER_SECONDS, WN_ANSWER_NUMBERS);
}

static wn_status answers_sum_up(const struct wn_answers *a, const struct wn_answers_column *column) {
  double *scores;
  wn_answers_result *r = column->r;
  WN_TRY(WN_ALLOC(a->ctx, "tasks", a->task_count, &r->tasks));
  WN_TRY(WN_ALLOC(a->ctx, "scores", a->count, &scores));
  answers_figures(&(struct chosen){a, column, -1}, scores, &r->all);
  wn_status status = WN_OK;
  for (; r->task_count < a->task_count && status == WN_OK; r->task_count++) {
    struct wn_text name = {0};
    wn_answers_figures *task = &r->tasks[r->task_count];
    answers_figures(&(struct chosen){a, column, r->task_count}, scores, task);
    status = wn_task_format(a->ctx, &name, "%s", a->tasks[r->task_count]);
    task->task = name.data;
  }
  wn_free(scores);
  return status;
}

void wn_answers_result_clear(wn_answers_result *result) {
  if (!result) return;
  for (int i = 0; i < result->task_count; i++) wn_free((char *)(uintptr_t)result->tasks[i].task);
  wn_free(result->tasks);
  *result = (wn_answers_result){0};
}

/* --- the call --- */

static wn_status answers_check(wn_context *ctx, const wn_model *model, const wn_answers_options *o) {
  const wn_model_config *c = wn_model_config_get(model);
  if (!o->tok || !o->path) return wn_fail(ctx, WN_ERR_ARGUMENT, "answers: a tokenizer and a path are needed");
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "answers: questions are for decoders, the model has an encoder");
  if (wn_dist_size(ctx) > 1) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "answers: written by one process alone");
  if (wn_tokenizer_vocab_size(o->tok) > c->vocab_size)
    return wn_fail(ctx, WN_ERR_SHAPE, "answers: the tokenizer has %d tokens, the model %lld",
                   wn_tokenizer_vocab_size(o->tok), (long long)c->vocab_size);
  if (o->limit < 0 || o->max_tokens < 0 || o->max_tokens > WN_ANSWER_MOST_TOKENS || o->stop_count < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "answers: limit %lld, max_tokens %lld: expected 0 or more, at most %d tokens",
                   (long long)o->limit, (long long)o->max_tokens, (int)WN_ANSWER_MOST_TOKENS);
  if (o->together < 0 || o->together > WN_ANSWERS_TOGETHER)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "answers: together %lld: expected 0 to %d", (long long)o->together,
                   WN_ANSWERS_TOGETHER);
  return WN_OK;
}

/* Opens a column's file, and takes the answers that it has. */
static wn_status answers_open_column(struct wn_answers *a, struct wn_answers_column *column, json_t *model) {
  struct taking taking = {a, column};
  struct wn_eval_log_use use = {.path = column->save, .resume = true, .take = answers_take, .user = &taking};
  WN_TRY(WN_ALLOC(a->ctx, "answers", a->count, &column->all));
  if (use.path) WN_TRY(answers_head(a, column->budgets, model, &use.head));
  WN_TRY(wn_eval_log_open(a->ctx, &use, &column->log));
  a->done += column->r->resumed;
  a->total += (uint64_t)a->count;
  return WN_OK;
}

static wn_status answers_open(struct wn_answers *a) {
  json_t *model = NULL;
  bool saves = false;
  for (int c = 0; c < a->column_count; c++) saves |= a->columns[c].save != NULL;
  wn_status status = saves ? wn_eval_log_model(a->ctx, a->model, &model) : WN_OK;
  for (int c = 0; c < a->column_count && status == WN_OK; c++) status = answers_open_column(a, &a->columns[c], model);
  json_decref(model);
  return status;
}

static void answers_clear(struct wn_answers *a) {
  for (int c = 0; c < a->column_count; c++) {
    wn_eval_log_close(&a->columns[c].log);
    wn_free(a->columns[c].all);
  }
  for (int i = 0; i < a->task_count; i++) wn_free(a->tasks[i]);
  wn_free(a->tasks);
  wn_free(a->task_lines);
  wn_free(a->all);
  wn_free(a->columns);
}

static wn_status answers_columns(struct wn_answers *a, const wn_answers_setting *settings, int count,
                                 wn_answers_result *results) {
  WN_TRY(WN_ALLOC(a->ctx, "answers", count, &a->columns));
  a->column_count = count;
  for (int c = 0; c < count; c++) {
    const wn_budgets *budgets = settings[c].budgets && settings[c].budgets->layers > 0 ? settings[c].budgets : NULL;
    if (budgets) WN_TRY(wn_budgets_check(a->ctx, budgets, wn_model_config_get(a->model)));
    a->columns[c] = (struct wn_answers_column){.budgets = budgets, .save = settings[c].save, .r = &results[c]};
    for (int d = 0; d < c && settings[c].save; d++)
      if (settings[d].save && !strcmp(settings[c].save, settings[d].save))
        return wn_fail(a->ctx, WN_ERR_ARGUMENT, "answers: settings %d and %d are saved to one file, %s", d, c,
                       settings[c].save);
  }
  return WN_OK;
}

wn_status wn_answers_run_settings(wn_context *ctx, wn_model *model, const wn_answers_options *options,
                                  const wn_answers_setting *settings, int count, wn_answers_result *results) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_ARRAY(settings, count), WN_ARRAY(results, count));
  const double start = wn_seconds_now();
  wn_answers_options o;
  for (int c = 0; c < count; c++) results[c] = (wn_answers_result){0};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_answers_options, options, &o));
  WN_TRY(answers_check(ctx, model, &o));
  struct wn_answers a = {.ctx = ctx, .model = model, .o = &o};
  wn_status status = answers_columns(&a, settings, count, results);
  if (status == WN_OK) status = answers_survey(&a);
  if (status == WN_OK) status = answers_open(&a);
  if (status == WN_OK) status = wn_answers_write(&a);
  for (int c = 0; c < count && status == WN_OK; c++) status = answers_sum_up(&a, &a.columns[c]);
  answers_clear(&a);
  for (int c = 0; c < count; c++) {
    if (status != WN_OK) wn_answers_result_clear(&results[c]);
    results[c].seconds = wn_seconds_now() - start;
  }
  return status;
}

wn_status wn_answers_run(wn_context *ctx, wn_model *model, const wn_answers_options *options,
                         wn_answers_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(result));
  wn_answers_options o;
  *result = (wn_answers_result){0};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_answers_options, options, &o));
  const wn_answers_setting one = {.budgets = o.budgets, .save = o.save};
  return wn_answers_run_settings(ctx, model, options, &one, 1, result);
}
