/* Evaluations of a task: one, or several of the same questions under different budgets.
 *
 * A sequence of n tokens under a budget of at least n evicts nothing and gives the same bits as without budgets. So a
 * question whose rows all fit is answered once, without budgets, and the answer is used for every budget and policy
 * into which it fits. */
#include <math.h>

#include "base/clock.h"
#include "base/estimate.h"
#include "base/misuse.h"
#include "base/options.h"
#include "dist/dist.h"
#include "eval/run.h"

/* Answers without budgets. */
struct whole {
  bool known;
  double *sums;   /* [requests] */
  bool *greedy;   /* [requests] */
  double *values; /* [questions, WN_METRIC_COUNT]; NaN: the question has no value for the metric */
};

struct sweep {
  wn_context *ctx;
  wn_model *model;
  wn_task_options o; /* each setting has its own progress and log */
  const struct wn_task_row *task;
  int64_t context;
  struct wn_questions q;
  json_t *of_model; /* what logs say of the model; NULL: no logs */
  struct whole whole;
  void (*progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  int at, count; /* settings */
};

/* --- means --- */

/* Questions are the unit: their values are independent, whatever their lengths. values [2, questions]: scratch. */
static void sweep_sum_up(const struct sweep *s, double *values, wn_task_result *r) {
  double *changes = values + s->q.count;
  for (int m = 0; m < WN_METRIC_COUNT; m++) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->q.count && (s->task->info.metrics & 1u << m); i++) {
      if (!wn_question_value(&s->q, i, (wn_task_metric)m, &values[n])) continue;
      changes[n] = s->whole.known ? values[n] - s->whole.values[i * WN_METRIC_COUNT + m] : 0;
      n++;
    }
    wn_estimate mean = wn_estimate_ratio(&(struct wn_row_numbers){.sum = values, .count = n, .stride = 1});
    const wn_estimate change = wn_estimate_ratio(&(struct wn_row_numbers){.sum = changes, .count = n, .stride = 1});
    if (m == WN_METRIC_PERPLEXITY && n > 0) {
      const double perplexity = exp(-mean.value);
      mean = (wn_estimate){perplexity, mean.error * perplexity, exp(-mean.high), exp(-mean.low), mean.rows};
    }
    r->counted[m] = (uint64_t)n;
    r->value[m] = mean.value, r->stderr_[m] = mean.error, r->low[m] = mean.low, r->high[m] = mean.high;
    r->compared[m] = s->whole.known ? (uint64_t)n : 0;
    r->change[m] = change.value, r->change_stderr[m] = change.error;
    r->change_low[m] = change.low, r->change_high[m] = change.high;
  }
}

/* --- answers that are reused --- */

static wn_status whole_keep(struct sweep *s) {
  struct whole *w = &s->whole;
  WN_TRY(WN_ALLOC(s->ctx, "answers", s->q.request_count, &w->sums));
  WN_TRY(WN_ALLOC(s->ctx, "answers", s->q.request_count, &w->greedy));
  WN_TRY(WN_ALLOC(s->ctx, "answers", s->q.count * WN_METRIC_COUNT, &w->values));
  for (size_t i = 0; i < s->q.request_count; i++) {
    w->sums[i] = s->q.requests[i].log_probability;
    w->greedy[i] = s->q.requests[i].greedy;
  }
  for (int64_t i = 0; i < s->q.count; i++)
    for (int m = 0; m < WN_METRIC_COUNT; m++) {
      double *value = &w->values[i * WN_METRIC_COUNT + m];
      if (!wn_question_value(&s->q, i, (wn_task_metric)m, value)) *value = NAN;
    }
  w->known = true;
  return WN_OK;
}

static void whole_clear(struct whole *w) {
  wn_free(w->sums);
  wn_free(w->greedy);
  wn_free(w->values);
  *w = (struct whole){0};
}

/* How many rows these budgets hold without evicting; 0: answers cannot be reused, because the cache is of another kind.
 * With cache_positions positions are computed differently, so such answers are always computed. */
static int64_t budgets_evict_after(const struct sweep *s, const wn_budgets *b) {
  const wn_cache_format without = wn_cache_format_resolve(s->ctx, s->model, NULL, s->o.cache);
  const bool another = b->cache_positions || wn_cache_format_resolve(s->ctx, s->model, b, s->o.cache) != without;
  return another ? 0 : wn_budgets_least(s->model, b);
}

/* Reuses the answers of questions that fit, and writes them to the log. */
static wn_status whole_reuse(struct sweep *s, const struct wn_eval_log *log, wn_task_result *r) {
  const int64_t rows = budgets_evict_after(s, s->o.budgets);
  for (int64_t i = 0; i < s->q.count; i++) {
    struct wn_asked *a = &s->q.all[i];
    if (a->how != WN_ASKED_OPEN || a->rows > rows) continue;
    for (size_t n = a->first; n < a->first + (size_t)a->count; n++) {
      s->q.requests[n].log_probability = s->whole.sums[n];
      s->q.requests[n].greedy = s->whole.greedy[n];
    }
    a->how = WN_ASKED_REUSED;
    r->reused++;
    WN_TRY(wn_task_log_add(s->ctx, log, &s->q, i));
  }
  return wn_eval_log_flush(s->ctx, log);
}

/* --- a setting --- */

static void sweep_progress(void *user, uint64_t done, uint64_t total) {
  const struct sweep *s = user;
  if (s->progress) s->progress(s->user, (uint64_t)s->at * total + done, (uint64_t)s->count * total);
}

static wn_status sweep_one(struct sweep *s, const wn_task_setting *setting, wn_task_result *r) {
  const double start = wn_seconds_now();
  const bool whole = !setting->budgets || setting->budgets->layers == 0;
  struct wn_eval_log log;
  *r = (wn_task_result){.questions = (uint64_t)s->q.count};
  s->o.budgets = whole ? NULL : setting->budgets;
  s->o.log = setting->log;
  s->o.log_name = setting->log_name;
  for (int64_t i = 0; i < s->q.count; i++) s->q.all[i].how = WN_ASKED_OPEN;
  wn_status status = wn_task_log_open(s->ctx, &s->o, s->of_model, s->context, &s->q, &r->resumed, &log);
  if (status == WN_OK && !whole && s->whole.known) status = whole_reuse(s, &log, r);
  if (status == WN_OK) status = wn_questions_answer(s->ctx, s->model, &s->o, s->context, &s->q, &log, r);
  wn_eval_log_close(&log);
  WN_TRY(status);
  if (whole && !s->whole.known && s->count > 1) WN_TRY(whole_keep(s));
  void *values;
  WN_TRY(wn_alloc(s->ctx, "answers", 2 * (size_t)s->q.count * sizeof(double), &values));
  sweep_sum_up(s, values, r);
  wn_free(values);
  r->seconds = wn_seconds_now() - start;
  return WN_OK;
}

static wn_status sweep_check(wn_context *ctx, const wn_model *model, const wn_task_options *o,
                             const struct wn_task_row *task, int64_t *context) {
  const wn_model_config *c = wn_model_config_get(model);
  if (!task) return wn_fail(ctx, WN_ERR_ARGUMENT, "task \"%s\" is unknown", o->task ? o->task : "");
  if (!o->tok || !o->path) return wn_fail(ctx, WN_ERR_ARGUMENT, "task %s: a tokenizer and a path are needed", o->task);
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "task %s: questions are for decoders, the model has an encoder", o->task);
  if (wn_tokenizer_vocab_size(o->tok) > c->vocab_size)
    return wn_fail(ctx, WN_ERR_SHAPE, "task %s: the tokenizer has %d tokens, the model %lld", o->task,
                   wn_tokenizer_vocab_size(o->tok), (long long)c->vocab_size);
  *context = o->context ? o->context : c->context;
  if (*context < 1 || o->limit < 0 || o->batch < 0 || (c->position == WN_POS_LEARNED && *context > c->context))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "task %s: context %lld, limit %lld, batch %lld: expected a context of 1 to %lld", o->task,
                   (long long)*context, (long long)o->limit, (long long)o->batch, (long long)c->context);
  return WN_OK;
}

static wn_status sweep_run(wn_context *ctx, wn_model *model, const wn_task_options *o, const wn_task_setting *settings,
                           int count, wn_task_result *results) {
  struct sweep s = {.ctx = ctx, .model = model, .o = *o, .task = wn_task_row(o->task), .count = count};
  const double start = wn_seconds_now();
  s.progress = o->progress;
  s.user = o->user;
  s.o.progress = o->progress ? sweep_progress : NULL;
  s.o.user = &s;
  for (int i = 0; i < count; i++) results[i] = (wn_task_result){0};
  WN_TRY(wn_dist_alike(ctx));
  WN_TRY(sweep_check(ctx, model, o, s.task, &s.context));
  for (int i = 0; i < count; i++)
    if (settings[i].budgets && settings[i].budgets->layers > 0)
      WN_TRY(wn_budgets_check(ctx, settings[i].budgets, wn_model_config_get(model)));
  wn_status status = wn_questions_read(ctx, s.task, o->path, o->tok, s.context, o->limit, &s.q);
  for (int i = 0; i < count && status == WN_OK; i++)
    if (settings[i].log && !s.of_model) status = wn_eval_log_model(ctx, model, &s.of_model);
  const double reading = wn_seconds_now() - start;
  for (; s.at < count && status == WN_OK; s.at++) status = sweep_one(&s, &settings[s.at], &results[s.at]);
  if (status == WN_OK) results[0].seconds += reading;
  json_decref(s.of_model);
  whole_clear(&s.whole);
  wn_questions_clear(&s.q);
  return status;
}

/* --- the calls --- */

wn_status wn_task_sweep(wn_context *ctx, wn_model *model, const wn_task_options *options,
                        const wn_task_setting *settings, int count, wn_task_result *results) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(settings), WN_POINTER(results));
  wn_task_options o;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_task_options, options, &o));
  if (count < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "task: %d settings, expected at least 1", count);
  if (o.budgets || o.log || o.log_name)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "task: budgets and logs of several evaluations are those of their settings");
  return sweep_run(ctx, model, &o, settings, count, results);
}

wn_status wn_task_run(wn_context *ctx, wn_model *model, const wn_task_options *options, wn_task_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL));
  wn_task_options o;
  wn_task_result own;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_task_options, options, &o));
  const wn_task_setting setting = {.budgets = o.budgets, .log = o.log, .log_name = o.log_name};
  return sweep_run(ctx, model, &o, &setting, 1, result ? result : &own);
}
