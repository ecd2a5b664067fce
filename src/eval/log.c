/* The log of an evaluation. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/open.h"
#include "dist/dist.h"
#include "eval/log.h"
#include "model/model.h"

enum { LOG_BYTES = 1 << 30 };

static wn_status log_failed(wn_context *ctx, const char *path) {
  return wn_fail(ctx, WN_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}

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

wn_status wn_eval_log_model(wn_context *ctx, const struct wn_model *model, json_t **out) {
  char weights[24], control[24] = "";
  json_t *attention;
  WN_TRY(wn_model_fingerprint(model, weights));
  if (model->control) wn_fingerprint(model->control, (size_t)model->config.vocab_size, control);
  WN_TRY(log_attention(ctx, model, &attention));
  *out = json_pack("{s:s, s:o*, s:s}", "model", weights, "attention", attention, "control", control);
  return *out ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a log");
}

/* Gives the complete lines after the head to `take`; *kept: their bytes and the head's, 0 if there are none. */
static wn_status log_take(wn_context *ctx, const struct wn_eval_log_use *use, const char *text, size_t bytes,
                          size_t *kept) {
  char where[4096 + 32];
  const char *end;
  size_t at = 0;
  int number = 0;
  for (; (end = memchr(text + at, '\n', bytes - at)); at = (size_t)(end - text) + 1) {
    json_t *line;
    snprintf(where, sizeof where, "%s:%d", use->path, ++number);
    WN_TRY(wn_json_load_text(ctx, WN_JSON_LINE, where, text + at, (size_t)(end - text) - at, &line));
    wn_status status = WN_OK;
    if (number > 1)
      status = use->take(ctx, use->user, where, line);
    else if (!json_equal(line, use->head))
      status = wn_fail(ctx, WN_ERR_CONFIG,
                       "%s: the log of another evaluation: task, model, settings or questions differ", use->path);
    json_decref(line);
    WN_TRY(status);
  }
  *kept = number > 1 ? at : 0;
  return WN_OK;
}

static wn_status log_resume(wn_context *ctx, const struct wn_eval_log_use *use, size_t *kept) {
  char *text;
  size_t bytes;
  WN_TRY(wn_file_read(ctx, use->path, LOG_BYTES, &text, &bytes));
  const wn_status status = log_take(ctx, use, text, bytes, kept);
  wn_free(text);
  return status;
}

wn_status wn_eval_log_add(wn_context *ctx, const struct wn_eval_log *log, json_t *line) {
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
static wn_status log_open_end(wn_context *ctx, const char *path, size_t kept, struct wn_eval_log *out) {
  int fd = wn_open_append(path);
  if (fd < 0) return log_failed(ctx, path);
  wn_status status = wn_file_own(ctx, path, &fd);
  if (status == WN_OK && (ftruncate(fd, (off_t)kept) != 0 || !(out->f = fdopen(fd, "a"))))
    status = log_failed(ctx, path);
  if (status != WN_OK) close(fd);
  return status;
}

wn_status wn_eval_log_open(wn_context *ctx, const struct wn_eval_log_use *use, struct wn_eval_log *out) {
  wn_status status = use->head || !use->path ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", use->path);
  size_t kept = 0;
  *out = (struct wn_eval_log){.path = use->path};
  if (status == WN_OK && use->path && use->resume && wn_path_exists(use->path)) status = log_resume(ctx, use, &kept);
  if (status == WN_OK && use->path) status = wn_dist_barrier(ctx); /* all processes have read the log as it was */
  const bool writes = use->path && wn_dist_rank(ctx) == 0;
  if (status == WN_OK && writes) status = log_open_end(ctx, use->path, kept, out);
  if (status == WN_OK && writes && kept == 0) return wn_eval_log_add(ctx, out, use->head);
  json_decref(use->head);
  return status;
}

wn_status wn_eval_log_flush(wn_context *ctx, const struct wn_eval_log *log) {
  return !log->f || fflush(log->f) == 0 ? WN_OK : log_failed(ctx, log->path);
}

void wn_eval_log_close(struct wn_eval_log *log) {
  if (log->f) fclose(log->f);
  log->f = NULL;
}
