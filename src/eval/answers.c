/* Questions with written answers: what is read when, and what is measured.
 *
 * The file is read twice. The first pass checks every line, finds the tasks, and whether neighbours share a context;
 * the second answers. Lines with one context form a group: its tokens are read once by a session, of which each line's
 * session is a copy (wn_session_copy). A line whose context ends elsewhere, because its question begins with another
 * token, reads its own. All sessions of a group have one capacity, the longest prompt and answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/estimate.h"
#include "base/fingerprint.h"
#include "base/misuse.h"
#include "base/options.h"
#include "decode/session.h"
#include "dist/dist.h"
#include "eval/answers.h"
#include "kv/budgets.h"
#include "model/model.h"
#include "text/normalize.h"
#include "text/tokenizer.h"
#include "winnow/generate.h"

enum { GROUP = 256 }; /* the most lines that read a context once, so that they fit into memory */

/* The numbers of an answer; they are saved in this order. */
enum {
  SCORE,
  PROMPT_TOKENS,
  CONTEXT_TOKENS,
  ANSWER_TOKENS,
  CONTEXT_KEPT, /* tokens that a layer holds; 0 without a context */
  KEPT,
  CACHE_PEAK, /* bytes */
  CACHE_FINAL,
  FIRST_SECONDS,
  ANSWER_SECONDS,
  NUMBERS
};
static const char *const number_names[NUMBERS] = {"score",         "prompt_tokens", "context_tokens", "answer_tokens",
                                                  "context_kept",  "kept",          "cache_peak",     "cache_final",
                                                  "first_seconds", "answer_seconds"};

struct answer {
  int task;
  uint64_t line; /* of the file */
  bool shares;   /* it has the context of the line before */
  bool done;
  double numbers[NUMBERS];
};

struct answers {
  wn_context *ctx;
  wn_model *model;
  const wn_answers_options *o;
  wn_answers_result *r;
  struct answer *all;  /* [count] */
  int64_t count;       /* lines taken */
  size_t room;         /* of the array */
  char **tasks;        /* [task_count] names, in the order of the file */
  int64_t *task_lines; /* [task_count] */
  int task_count;
  char fingerprint[24]; /* of the lines */
  char prompt[24];      /* of the first prompt's tokens: another tokenizer or template makes others */
  struct wn_eval_log log;
  wn_session *head, *session; /* of the group: what its context leaves, if several lines share it; and the line's */
  int64_t context_n;          /* tokens that the head has read */
  double context_kept, context_seconds;
  uint64_t context_bytes;
};

/* --- the first pass --- */

static int answers_task(const struct answers *a, const char *name) {
  int i = 0;
  while (i < a->task_count && strcmp(a->tasks[i], name) != 0) i++;
  return i;
}

/* Room for one more line. */
static wn_status answers_grow(struct answers *a) {
  void *all = a->all;
  const wn_status status = wn_text_grow(a->ctx, "answers", &all, sizeof *a->all, (size_t)a->count, 1, &a->room);
  a->all = all;
  return status;
}

static wn_status answers_add_task(struct answers *a, const char *name) {
  struct wn_text text = {0};
  void *names, *lines;
  const size_t n = (size_t)a->task_count;
  WN_TRY(wn_alloc(a->ctx, "tasks", (n + 1) * sizeof *a->tasks, &names));
  if (n) memcpy(names, a->tasks, n * sizeof *a->tasks);
  wn_free(a->tasks);
  a->tasks = names;
  WN_TRY(wn_alloc(a->ctx, "tasks", (n + 1) * sizeof *a->task_lines, &lines));
  if (n) memcpy(lines, a->task_lines, n * sizeof *a->task_lines);
  wn_free(a->task_lines);
  a->task_lines = lines;
  WN_TRY(wn_task_format(a->ctx, &text, "%s", name));
  a->tasks[n] = text.data;
  a->task_lines[n] = 0;
  a->task_count++;
  return WN_OK;
}

/* The fingerprint of all lines so far: of the one before them and of this line. */
static wn_status answers_fingerprint(struct answers *a, const struct wn_sample *s) {
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
static wn_status answers_survey_line(struct answers *a, struct wn_sample *s, uint64_t line, struct wn_text *context) {
  const int task = answers_task(a, s->task);
  if (task == a->task_count) WN_TRY(answers_add_task(a, s->task));
  if (a->o->limit > 0 && a->task_lines[task] == a->o->limit) return WN_OK;
  a->task_lines[task]++;
  WN_TRY(answers_grow(a));
  WN_TRY(answers_fingerprint(a, s));
  if (a->count == 0) {
    WN_TRY(wn_sample_encode(a->ctx, a->o, s));
    wn_fingerprint(s->ids, (size_t)s->n * sizeof *s->ids, a->prompt);
  }
  const bool shares = *s->context && context->data && !strcmp(context->data, s->context);
  a->all[a->count++] = (struct answer){.task = task, .line = line, .shares = shares};
  if (shares) return WN_OK;
  wn_free(context->data);
  *context = (struct wn_text){0};
  return wn_task_format(a->ctx, context, "%s", s->context);
}

static wn_status answers_survey(struct answers *a) {
  struct wn_lines lines = {0};
  struct wn_text context = {0};
  struct wn_sample s;
  bool more = true;
  wn_status status = wn_question_lines_open(a->ctx, a->o->path, &lines);
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

static wn_status answers_head(struct answers *a, json_t **out) {
  const wn_answers_options *o = a->o;
  json_t *budgets = NULL, *model, *stop = json_array();
  for (int i = 0; i < o->stop_count; i++) json_array_append_new(stop, json_string(o->stop[i]));
  wn_status status = o->budgets ? wn_budgets_to_json(a->ctx, o->budgets, &budgets) : WN_OK;
  if (status == WN_OK) status = wn_eval_log_model(a->ctx, a->model, &model);
  if (status != WN_OK) {
    json_decref(stop);
    json_decref(budgets);
    return status;
  }
  *out = json_pack("{s:I, s:s, s:s, s:I, s:o, s:s, s:o*}", "answers", (json_int_t)a->count, "lines", a->fingerprint,
                   "prompt", a->prompt, "max_tokens", (json_int_t)o->max_tokens, "stop", stop, "cache",
                   wn_cache_format_name(o->cache), "budgets", budgets);
  if (*out) json_object_update_missing(*out, model);
  json_decref(model);
  return WN_OK;
}

static wn_status answers_take(wn_context *ctx, void *user, const char *where, const json_t *line) {
  struct answers *a = user;
  const json_t *number = json_object_get(line, "sample");
  const json_int_t i = json_is_integer(number) ? json_integer_value(number) : -1;
  if (i < 0 || i >= a->count)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"sample\": expected 0 to %lld", where, (long long)a->count - 1);
  struct answer *answer = &a->all[i];
  for (int n = 0; n < NUMBERS; n++) {
    const json_t *value = json_object_get(line, number_names[n]);
    answer->numbers[n] = json_number_value(value);
    if (!json_is_number(value) || answer->numbers[n] < 0 || (n == SCORE && answer->numbers[n] > 1))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected a number%s", where, number_names[n],
                     n == SCORE ? " from 0 to 1" : " of at least 0");
  }
  a->r->resumed += !answer->done;
  answer->done = true;
  return WN_OK;
}

static wn_status answers_save(struct answers *a, const struct wn_sample *s, const char *text, wn_generate_end end) {
  const double *numbers = a->all[s->number].numbers;
  if (!a->log.f) return WN_OK;
  json_t *line = json_pack("{s:I, s:s, s:s, s:s}", "sample", (json_int_t)s->number, "task", s->task, "answer", text,
                           "end", wn_generate_end_name(end));
  for (int n = 0; line && n < NUMBERS; n++)
    json_object_set_new(line, number_names[n],
                        numbers[n] == floor(numbers[n]) ? json_integer((json_int_t)numbers[n]) : json_real(numbers[n]));
  WN_TRY(wn_eval_log_add(a->ctx, &a->log, line));
  return wn_eval_log_flush(a->ctx, &a->log);
}

/* --- reading --- */

/* The mean number of tokens that a layer and key-value head holds. */
static double answers_kept(const struct answers *a, const wn_session *session) {
  const wn_model_config *c = wn_model_config_get(a->model);
  double sum = 0;
  for (int64_t l = 0; l < c->layers; l++) sum += (double)wn_session_held_tokens(session, l);
  return sum / (double)(c->layers * c->kv_heads);
}

/* The context ends here: the session has read it and nothing else, and is compressed if its budgets say so. */
static void answers_context_end(struct answers *a, wn_session *session) {
  a->context_kept = answers_kept(a, session);
  a->context_bytes = wn_session_peak_bytes(session);
  a->r->contexts++;
}

static wn_status answers_read_context(struct answers *a, const struct wn_sample *s, wn_session *session) {
  const double start = wn_seconds_now();
  wn_generate_options o;
  wn_generate_result result;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = s->ids;
  o.prompt_count = s->context_n;
  o.max_tokens = 0;
  wn_session_reset(session);
  WN_TRY(wn_session_generate(a->ctx, session, &o, &result));
  if (result.end == WN_GENERATE_CANCELLED) return wn_fail(a->ctx, WN_ERR_CANCELLED, "stopped while a context was read");
  answers_context_end(a, session);
  a->context_n = s->context_n;
  a->context_seconds = wn_seconds_now() - start;
  return WN_OK;
}

/* Brings the line's session to the end of its context. first: of its group. */
static wn_status answers_begin(struct answers *a, const struct wn_sample *s, bool first) {
  a->context_kept = s->context_n > 0 ? a->context_kept : 0;
  if (s->context_n == 0) {
    a->context_seconds = 0, a->context_bytes = 0;
    wn_session_reset(a->session);
    return WN_OK;
  }
  if (!a->head) return answers_read_context(a, s, a->session);
  if (first || s->context_n != a->context_n) WN_TRY(answers_read_context(a, s, a->head));
  return wn_session_copy(a->ctx, a->session, a->head);
}

/* --- writing --- */

struct writing {
  struct answers *a;
  struct wn_bytes text;
  uint64_t peak; /* bytes of the cache */
  bool failed;
};

static bool answers_on_piece(void *user, const wn_generate_piece *piece) {
  struct writing *w = user;
  const uint64_t bytes = wn_session_kv_bytes(w->a->session);
  if (bytes > w->peak) w->peak = bytes;
  w->failed = wn_bytes_add(w->a->ctx, &w->text, piece->text, piece->bytes) != WN_OK;
  return !w->failed;
}

static wn_status answers_write(struct answers *a, const struct wn_sample *s, struct writing *w,
                               wn_generate_result *result) {
  wn_generate_options o;
  const int32_t bos = wn_tokenizer_bos(a->o->tok);
  wn_generate_options_init(&o, sizeof o);
  o.prompt = s->ids + s->context_n;
  o.prompt_count = s->n - s->context_n;
  o.text_before = s->ids;
  o.text_before_count = s->n;
  o.tok = a->o->tok;
  o.sampling = (wn_sampling){.top_p = 1};
  o.max_tokens = s->max_tokens;
  o.stop_tokens = &bos;
  o.stop_token_count = bos >= 0;
  o.stop_strings = s->stop_count ? s->stop : a->o->stop;
  o.stop_string_count = s->stop_count ? s->stop_count : a->o->stop_count;
  o.piece = answers_on_piece;
  o.user = w;
  WN_TRY(wn_session_generate(a->ctx, a->session, &o, result));
  if (w->failed) return wn_fail(a->ctx, WN_ERR_MEMORY, "out of memory: an answer");
  if (result->end == WN_GENERATE_CANCELLED) return wn_fail(a->ctx, WN_ERR_CANCELLED, "stopped in an answer");
  for (size_t i = 0; i < w->text.count; i++)
    if (!w->text.data[i]) w->text.data[i] = ' ';
  return wn_bytes_add(a->ctx, &w->text, "", 0);
}

static wn_status answers_one(struct answers *a, const struct wn_sample *s, bool first) {
  struct answer *answer = &a->all[s->number];
  double *numbers = answer->numbers;
  struct writing w = {.a = a};
  wn_generate_result result;
  WN_TRY(answers_begin(a, s, first));
  w.peak = a->context_bytes;
  wn_status status = answers_write(a, s, &w, &result);
  if (status == WN_OK)
    status = wn_answer_score(a->ctx, s->scorer, w.text.data, s->references, s->reference_count, &numbers[SCORE]);
  if (status == WN_OK) {
    const uint64_t bytes = wn_session_kv_bytes(a->session);
    numbers[PROMPT_TOKENS] = (double)s->n;
    numbers[CONTEXT_TOKENS] = (double)s->context_n;
    numbers[ANSWER_TOKENS] = (double)result.tokens;
    numbers[CONTEXT_KEPT] = a->context_kept;
    numbers[KEPT] = answers_kept(a, a->session);
    numbers[CACHE_PEAK] = (double)(bytes > w.peak ? bytes : w.peak);
    numbers[CACHE_FINAL] = (double)bytes;
    numbers[FIRST_SECONDS] = a->context_seconds + result.prompt_seconds;
    numbers[ANSWER_SECONDS] = result.token_seconds;
    answer->done = true;
    status = answers_save(a, s, w.text.data, result.end);
  }
  wn_bytes_clear(&w.text);
  return status;
}

/* --- the second pass --- */

static wn_status answers_open_session(struct answers *a, int64_t capacity, wn_session **out) {
  const wn_session_options options = {
      .size = sizeof options, .sequences = 1, .capacity = capacity, .budgets = a->o->budgets, .cache = a->o->cache};
  return wn_session_create_with(a->ctx, a->model, &options, out);
}

/* Answers lines [count], which have one context. */
static wn_status answers_group(struct answers *a, struct wn_sample *lines, int64_t count) {
  const wn_model_config *c = wn_model_config_get(a->model);
  int64_t capacity = 0;
  for (int64_t i = 0; i < count; i++) {
    WN_TRY(wn_sample_encode(a->ctx, a->o, &lines[i]));
    const int64_t n = lines[i].n;
    if (c->position == WN_POS_LEARNED && n > c->context)
      return wn_fail(a->ctx, WN_ERR_ARGUMENT, "%s: the prompt has %lld tokens, the model learned positions for %lld",
                     lines[i].where, (long long)n, (long long)c->context);
    if (n + lines[i].max_tokens > capacity) capacity = n + lines[i].max_tokens;
  }
  if (c->position == WN_POS_LEARNED && capacity > c->context) capacity = c->context;
  wn_status status = answers_open_session(a, capacity, &a->session);
  if (status == WN_OK && count > 1) status = answers_open_session(a, capacity, &a->head);
  for (int64_t i = 0; i < count && status == WN_OK; i++) {
    status = answers_one(a, &lines[i], i == 0);
    if (status == WN_OK && a->o->progress)
      a->o->progress(a->o->user, (uint64_t)lines[i].number + 1, (uint64_t)a->count);
  }
  wn_session_destroy(a->session);
  wn_session_destroy(a->head);
  a->session = a->head = NULL;
  return status;
}

/* Reads on to line `number` of the file. */
static wn_status answers_line(struct answers *a, struct wn_lines *lines, uint64_t number, struct wn_sample *out) {
  bool more = true;
  while (more) {
    WN_TRY(wn_sample_next(a->ctx, a->o, lines, out, &more));
    if (more && lines->line == number) return WN_OK;
    wn_sample_clear(out);
  }
  return wn_fail(a->ctx, WN_ERR_IO, "%s: has changed: line %llu is gone", a->o->path, (unsigned long long)number);
}

/* Answers what is open among lines [at, at + count), which share a context; room [GROUP]. */
static wn_status answers_lines(struct answers *a, struct wn_lines *lines, int64_t at, int64_t count,
                               struct wn_sample *room) {
  int64_t open = 0;
  wn_status status = WN_OK;
  for (int64_t i = at; i < at + count && status == WN_OK; i++) {
    if (a->all[i].done) continue;
    status = answers_line(a, lines, a->all[i].line, &room[open]);
    room[open].number = i;
    if (status == WN_OK) open++;
  }
  if (status == WN_OK && open > 0) status = answers_group(a, room, open);
  for (int64_t i = 0; i < open; i++) wn_sample_clear(&room[i]);
  return status;
}

static wn_status answers_all(struct answers *a) {
  struct wn_lines lines = {0};
  void *room;
  WN_TRY(wn_alloc(a->ctx, "questions", GROUP * sizeof(struct wn_sample), &room));
  wn_status status = wn_question_lines_open(a->ctx, a->o->path, &lines);
  for (int64_t at = 0, n; at < a->count && status == WN_OK; at += n) {
    for (n = 1; at + n < a->count && n < GROUP && a->all[at + n].shares;) n++;
    status = answers_lines(a, &lines, at, n, room);
  }
  wn_lines_close(&lines);
  wn_free(room);
  return status;
}

/* --- figures --- */

/* The mean of one number over the answers of a task (-1: all) where number `where` is above 0 (NUMBERS: everywhere). */
static double answers_mean(const struct answers *a, int task, int number, int where) {
  double sum = 0, n = 0;
  for (int64_t i = 0; i < a->count; i++) {
    const struct answer *answer = &a->all[i];
    if ((task >= 0 && answer->task != task) || (where < NUMBERS && !(answer->numbers[where] > 0))) continue;
    sum += answer->numbers[number];
    n++;
  }
  return n > 0 ? sum / n : NAN;
}

/* scores [count]: scratch. */
static void answers_figures(const struct answers *a, int task, double *scores, wn_answers_figures *out) {
  int64_t n = 0;
  for (int64_t i = 0; i < a->count; i++) {
    if (task >= 0 && a->all[i].task != task) continue;
    const double peak = a->all[i].numbers[CACHE_PEAK];
    if (peak > (double)out->cache_peak) out->cache_peak = (uint64_t)peak;
    scores[n++] = a->all[i].numbers[SCORE];
  }
  out->samples = (uint64_t)n;
  out->score = wn_estimate_ratio(&(struct wn_row_numbers){.sum = scores, .count = n, .stride = 1});
  out->prompt_tokens = answers_mean(a, task, PROMPT_TOKENS, NUMBERS);
  out->answer_tokens = answers_mean(a, task, ANSWER_TOKENS, NUMBERS);
  out->context_kept = answers_mean(a, task, CONTEXT_KEPT, CONTEXT_TOKENS);
  out->kept = answers_mean(a, task, KEPT, NUMBERS);
  out->cache_final = (uint64_t)answers_mean(a, task, CACHE_FINAL, NUMBERS);
  out->first_seconds = answers_mean(a, task, FIRST_SECONDS, NUMBERS);
  out->tokens_per_second =
      answers_mean(a, task, ANSWER_TOKENS, NUMBERS) / answers_mean(a, task, ANSWER_SECONDS, NUMBERS);
}

static wn_status answers_sum_up(struct answers *a) {
  void *scores, *tasks;
  WN_TRY(wn_alloc(a->ctx, "tasks", (size_t)a->task_count * sizeof *a->r->tasks, &tasks));
  a->r->tasks = tasks;
  memset(tasks, 0, (size_t)a->task_count * sizeof *a->r->tasks);
  WN_TRY(wn_alloc(a->ctx, "scores", (size_t)a->count * sizeof(double), &scores));
  answers_figures(a, -1, scores, &a->r->all);
  for (int i = 0; i < a->task_count; i++) {
    answers_figures(a, i, scores, &a->r->tasks[i]);
    a->r->tasks[i].task = a->tasks[i];
    a->tasks[i] = NULL;
  }
  a->r->task_count = a->task_count;
  wn_free(scores);
  return WN_OK;
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
  return o->budgets && o->budgets->layers > 0 ? wn_budgets_check(ctx, o->budgets, c) : WN_OK;
}

static wn_status answers_open_save(struct answers *a) {
  struct wn_eval_log_use use = {.path = a->o->save, .resume = true, .take = answers_take, .user = a};
  if (use.path) WN_TRY(answers_head(a, &use.head));
  return wn_eval_log_open(a->ctx, &use, &a->log);
}

wn_status wn_answers_run(wn_context *ctx, wn_model *model, const wn_answers_options *options,
                         wn_answers_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(result));
  const double start = wn_seconds_now();
  wn_answers_options o;
  *result = (wn_answers_result){0};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_answers_options, options, &o));
  WN_TRY(answers_check(ctx, model, &o));
  struct answers a = {.ctx = ctx, .model = model, .o = &o, .r = result};
  wn_status status = answers_survey(&a);
  if (status == WN_OK) status = answers_open_save(&a);
  if (status == WN_OK) status = answers_all(&a);
  wn_eval_log_close(&a.log);
  if (status == WN_OK) status = answers_sum_up(&a);
  for (int i = 0; i < a.task_count; i++) wn_free(a.tasks[i]);
  wn_free(a.tasks);
  wn_free(a.task_lines);
  wn_free(a.all);
  if (status != WN_OK) wn_answers_result_clear(result);
  result->seconds = wn_seconds_now() - start;
  return status;
}
