/* The log of an evaluation. Lines are appended as questions are scored, so that a stopped evaluation can continue. An
 * incomplete last line is cut off. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/open.h"
#include "dist/dist.h"
#include "eval/questions.h"
#include "kv/budgets.h"
#include "model/model.h"

enum { LOG_BYTES = 1 << 30 };

static wn_status log_failed(wn_context *ctx, const char *path) {
  return wn_fail(ctx, WN_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}

/* --- the head of a log: evaluations with the same head ask the same of the same model --- */

static wn_status log_attention(wn_context *ctx, const struct wn_model *model, json_t **out) {
  char *text;
  json_t *config;
  WN_TRY(wn_model_config_json(ctx, &model->config, &text));
  const wn_status status = wn_json_load_text(ctx, WN_JSON_CONFIG, "the model", text, strlen(text), &config);
  wn_text_free(text);
  WN_TRY(status);
  *out = json_incref(json_object_get(config, "attention"));
  json_decref(config);
  return WN_OK;
}

wn_status wn_task_log_model(wn_context *ctx, const struct wn_model *model, json_t **out) {
  char weights[24], control[24] = "";
  json_t *attention;
  WN_TRY(wn_model_fingerprint(model, weights));
  if (model->control) wn_fingerprint(model->control, (size_t)model->config.vocab_size, control);
  WN_TRY(log_attention(ctx, model, &attention));
  *out = json_pack("{s:s, s:o*, s:s}", "model", weights, "attention", attention, "control", control);
  return *out ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a log");
}

static wn_status log_head(wn_context *ctx, const wn_task_options *o, const json_t *model, int64_t context,
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

static wn_status log_take_line(wn_context *ctx, const char *where, const json_t *line, struct wn_questions *q,
                               uint64_t *resumed) {
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
  if (a->how == WN_ASKED_OPEN) ++*resumed;
  a->how = WN_ASKED_RESUMED;
  return WN_OK;
}

/* Reads the complete lines; *kept: their bytes. */
static wn_status log_take(wn_context *ctx, const char *path, const char *text, size_t bytes, const json_t *head,
                          struct wn_questions *q, uint64_t *resumed, size_t *kept) {
  char where[4096 + 32];
  const char *end;
  int number = 0;
  for (*kept = 0; (end = memchr(text + *kept, '\n', bytes - *kept)); *kept = (size_t)(end - text) + 1) {
    json_t *line;
    snprintf(where, sizeof where, "%s:%d", path, ++number);
    WN_TRY(wn_json_load_text(ctx, WN_JSON_LINE, where, text + *kept, (size_t)(end - text) - *kept, &line));
    wn_status status = WN_OK;
    if (number > 1)
      status = log_take_line(ctx, where, line, q, resumed);
    else if (!json_equal(line, head))
      status = wn_fail(ctx, WN_ERR_CONFIG,
                       "%s: the log of another evaluation: task, model, settings or questions differ", path);
    json_decref(line);
    WN_TRY(status);
  }
  return WN_OK;
}

static wn_status log_resume(wn_context *ctx, const char *path, const json_t *head, struct wn_questions *q,
                            uint64_t *resumed, size_t *kept) {
  char *text;
  size_t bytes;
  WN_TRY(wn_file_read(ctx, path, LOG_BYTES, &text, &bytes));
  const wn_status status = log_take(ctx, path, text, bytes, head, q, resumed, kept);
  wn_free(text);
  return status;
}

static wn_status log_write(wn_context *ctx, const struct wn_task_log *log, json_t *line) {
  char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(line);
  if (!text) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a line of %s", log->path);
  const size_t n = strlen(text);
  text[n] = '\n'; /* replaces the NUL, so that one write suffices */
  const bool written = fwrite(text, 1, n + 1, log->f) == n + 1;
  free(text);
  return written ? WN_OK : log_failed(ctx, log->path);
}

/* Opens the log for writing behind its first `kept` bytes. */
static wn_status log_open_end(wn_context *ctx, const char *path, size_t kept, struct wn_task_log *out) {
  int fd = wn_open_append(path);
  if (fd < 0) return log_failed(ctx, path);
  wn_status status = wn_file_own(ctx, path, &fd);
  if (status == WN_OK && (ftruncate(fd, (off_t)kept) != 0 || !(out->f = fdopen(fd, "a"))))
    status = log_failed(ctx, path);
  if (status != WN_OK) close(fd);
  return status;
}

wn_status wn_task_log_open(wn_context *ctx, const wn_task_options *o, const json_t *model, int64_t context,
                           struct wn_questions *q, uint64_t *resumed, struct wn_task_log *out) {
  *out = (struct wn_task_log){.path = o->log};
  *resumed = 0;
  if (!o->log) return WN_OK;
  json_t *head;
  WN_TRY(log_head(ctx, o, model, context, q, &head));
  wn_status status = WN_OK;
  size_t kept = 0;
  if (o->resume && wn_path_exists(o->log)) status = log_resume(ctx, o->log, head, q, resumed, &kept);
  const bool fresh = *resumed == 0;
  if (fresh) kept = 0;
  if (status == WN_OK) status = wn_dist_barrier(ctx); /* all processes have read the log as it was */
  const bool writes = wn_dist_rank(ctx) == 0;
  if (status == WN_OK && writes) status = log_open_end(ctx, o->log, kept, out);
  if (status == WN_OK && writes && fresh) return log_write(ctx, out, head);
  json_decref(head);
  return status;
}

wn_status wn_task_log_add(wn_context *ctx, const struct wn_task_log *log, const struct wn_questions *q, int64_t i) {
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
  return log_write(ctx, log, line);
}

wn_status wn_task_log_flush(wn_context *ctx, const struct wn_task_log *log) {
  return !log->f || fflush(log->f) == 0 ? WN_OK : log_failed(ctx, log->path);
}

void wn_task_log_close(struct wn_task_log *log) {
  if (log->f) fclose(log->f);
  log->f = NULL;
}
