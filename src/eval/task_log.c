/* The log of a task: its questions with their sums. */

#include "base/fingerprint.h"
#include "eval/questions.h"
#include "kv/budgets.h"

/* Evaluations with the same head ask the same of the same model. */
static wn_status task_log_head(wn_context *ctx, const wn_task_options *o, const json_t *model, int64_t context,
                               const struct wn_questions *q, json_t **out) {
  char asked[24];
  json_t *budgets = NULL;
  wn_fingerprint(q->ids.data, q->ids.count * sizeof *q->ids.data, asked);
  if (o->budgets) WN_TRY(wn_budgets_to_json(ctx, o->budgets, &budgets));
  *out = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:o*}", "task", o->task, "settings", o->log_name ? o->log_name : "",
                   "context", (json_int_t)context, "questions", (json_int_t)q->count, "tokens", asked, "cache",
                   wn_cache_format_name(o->cache), "budgets", budgets);
  return *out && json_object_update_missing(*out, (json_t *)(uintptr_t)model) == 0
             ? WN_OK
             : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", o->log);
}

/* What a log gives its lines to. */
struct task_log_reader {
  struct wn_questions *q;
  uint64_t *resumed;
};
static wn_status task_log_take(wn_context *ctx, void *user, const char *where, const json_t *line) {
  const struct task_log_reader *reader = user;
  struct wn_questions *q = reader->q;
  const json_int_t i =
      json_is_integer(json_object_get(line, "question")) ? json_integer_value(json_object_get(line, "question")) : -1;
  const json_t *sums = json_object_get(line, "log_probability"), *greedy = json_object_get(line, "greedy");
  if (i < 0 || i >= q->count)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"question\": expected 0 to %lld", where, (long long)q->count - 1);
  struct wn_asked *a = &q->all[i];
  if (json_array_size(sums) != (size_t)a->count || json_array_size(greedy) != (size_t)a->count)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: fields \"log_probability\", \"greedy\": expected lists of %d", where,
                   a->count);
  for (int n = 0; n < a->count; n++) {
    const double sum = json_number_value(json_array_get(sums, (size_t)n));
    if (!json_is_number(json_array_get(sums, (size_t)n)) || !(sum <= 0))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"log_probability\": element %d is not a number of at most 0",
                     where, n);
    q->requests[a->first + (size_t)n].log_probability = sum;
    q->requests[a->first + (size_t)n].greedy = json_is_true(json_array_get(greedy, (size_t)n));
  }
  if (a->how == WN_ASKED_OPEN) ++*reader->resumed;
  a->how = WN_ASKED_RESUMED;
  return WN_OK;
}

wn_status wn_task_log_open(wn_context *ctx, const wn_task_options *o, const json_t *model, int64_t context,
                           struct wn_questions *q, uint64_t *resumed, struct wn_eval_log *out) {
  struct task_log_reader reader = {q, resumed};
  struct wn_eval_log_use use = {.path = o->log, .resume = o->resume, .take = task_log_take, .user = &reader};
  *resumed = 0;
  if (o->log) WN_TRY(task_log_head(ctx, o, model, context, q, &use.head));
  return wn_eval_log_open(ctx, &use, out);
}

wn_status wn_task_log_add(wn_context *ctx, const struct wn_eval_log *log, const struct wn_questions *q, int64_t i) {
  const struct wn_asked *a = &q->all[i];
  if (!log->f) return WN_OK;
  json_t *sums = json_array(), *greedy = json_array(), *tokens = json_array();
  for (int n = 0; n < a->count; n++) {
    const struct wn_asked_request *r = &q->requests[a->first + (size_t)n];
    json_array_append_new(sums, json_real(r->log_probability));
    json_array_append_new(greedy, json_boolean(r->greedy));
    json_array_append_new(tokens, json_integer((json_int_t)(r->n - r->context)));
  }
  json_t *line = json_pack("{s:I, s:o, s:o, s:o, s:I}", "question", (json_int_t)i, "log_probability", sums, "greedy",
                           greedy, "tokens", tokens, "rows", (json_int_t)a->rows);
  if (line && a->how == WN_ASKED_REUSED) json_object_set_new(line, "reused", json_true());
  if (line && a->gold >= 0) json_object_set_new(line, "gold", json_integer(a->gold));
  for (int m = 0; m < WN_METRIC_PERPLEXITY && line; m++) {
    double value;
    if (wn_question_value(q, i, (wn_task_metric)m, &value))
      json_object_set_new(line, wn_task_metric_name((wn_task_metric)m), json_integer(value > 0));
  }
  return wn_eval_log_add(ctx, log, line);
}
