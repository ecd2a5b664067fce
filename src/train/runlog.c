/* The log of a run. A step's line is written before its checkpoint, so after a kill the log may be ahead of the
 * checkpoint. On resume the lines past the checkpoint are cut off, and the repeated steps write them again. If a step's
 * evaluation was interrupted, its line exists, and the results are added to it after resuming. */
#include "train/runlog.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/number.h"
#include "base/open.h"

static wn_status log_error(wn_context *ctx, const struct wn_run_log *log, const char *what) {
  return wn_fail(ctx, WN_ERR_IO, "%s: %s: %s", log->path, what, strerror(errno));
}

/* Bytes of the complete lines from the start whose step is at most `keep`; *last: where the last of them begins. */
static size_t kept_bytes(const char *text, size_t bytes, int64_t keep, size_t *last) {
  static const char head[] = "{\"step\":";
  size_t at = *last = 0;
  while (at < bytes) {
    const char *line = text + at, *end = memchr(line, '\n', bytes - at);
    if (!end || (size_t)(end - line) < sizeof head || memcmp(line, head, sizeof head - 1)) break;
    int64_t step = 0;
    for (const char *c = line + sizeof head - 1; c < end && *c >= '0' && *c <= '9' && step < keep + 1; c++)
      step = step * 10 + (*c - '0');
    if (step > keep) break;
    *last = at;
    at += (size_t)(end - line) + 1;
  }
  return at;
}

/* A file system without locks is no reason to refuse. */
static wn_status log_lock(wn_context *ctx, struct wn_run_log *log) {
  if (flock(log->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return WN_OK;
  wn_run_log_close(log);
  return wn_fail(ctx, WN_ERR_IO, "%s: another process is training in this folder", log->path);
}

wn_status wn_run_log_open(wn_context *ctx, const char *dir, struct wn_run_log *log) {
  *log = (struct wn_run_log){.fd = -1};
  WN_TRY(wn_path_join(ctx, log->path, sizeof log->path, dir, "log.jsonl"));
  log->fd = wn_open_append(log->path);
  if (log->fd < 0 && errno == ELOOP) /* a folder from somebody else must not redirect writes to another file */
    return wn_fail(ctx, WN_ERR_IO, "%s: is a symbolic link, expected a file", log->path);
  if (log->fd < 0) return log_error(ctx, log, "cannot open");
  WN_TRY(log_lock(ctx, log));
  const int linked = log->fd;
  const wn_status status = wn_file_own(ctx, log->path, &log->fd);
  if (status != WN_OK) wn_run_log_close(log);
  return status != WN_OK || log->fd == linked ? status : log_lock(ctx, log);
}

wn_status wn_run_log_trim(wn_context *ctx, struct wn_run_log *log, int64_t keep) {
  struct wn_map map = {0};
  WN_TRY(wn_map_open(ctx, log->path, &map));
  size_t last, kept = kept_bytes((const char *)map.data, map.bytes, keep, &last), all = map.bytes;
  *log->last = 0;
  if (kept > 0 && kept - last < sizeof log->last) /* winnow writes no longer lines */
    snprintf(log->last, sizeof log->last, "%.*s", (int)(kept - last), (const char *)map.data + last);
  wn_map_close(&map);
  json_t *j = json_loads(log->last, 0, NULL);
  log->before = fmax(0, json_number_value(json_object_get(j, "seconds")));
  json_decref(j);
  return kept == all || ftruncate(log->fd, (off_t)kept) == 0 ? WN_OK : log_error(ctx, log, "cannot cut off");
}

bool wn_run_log_unevaluated(const struct wn_run_log *log, int64_t step, wn_train_progress *out) {
  json_t *j = json_loads(log->last, 0, NULL);
  const bool is = json_integer_value(json_object_get(j, "step")) == step && !json_object_get(j, "val_loss");
  out->loss = json_number_value(json_object_get(j, "loss"));
  out->lr = json_number_value(json_object_get(j, "lr"));
  out->grad_norm = json_number_value(json_object_get(j, "grad_norm"));
  out->tokens_per_second = json_number_value(json_object_get(j, "tokens_per_second"));
  json_decref(j);
  return is;
}

static int put_evaluation(char *out, size_t bytes, const wn_train_progress *p) {
  if (!p->evaluated || !isfinite(p->val_loss)) return 0;
  int n = wn_print(out, bytes, ",\"val_loss\":%.9g,\"val_accuracy\":%.9g", p->val_loss, p->val_accuracy);
  if (isfinite(p->val_loss_rows.error)) /* one row has no error */
    n += wn_print(out + n, bytes - (size_t)n, ",\"val_loss_stderr\":%.6g", p->val_loss_rows.error);
  return n;
}

/* Overwrites the end of the line, by one call like every line. A full disk leaves the line as it was. */
wn_status wn_run_log_complete(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *p) {
  static const char tail[] = "}\n";
  enum { TAIL = sizeof tail - 1 };
  char text[192];
  int n = put_evaluation(text, sizeof text, p);
  if (n == 0) return WN_OK;
  n += snprintf(text + n, sizeof text - (size_t)n, "%s", tail);
  const off_t end = lseek(log->fd, 0, SEEK_END) - TAIL;
  if (end < 0 || fcntl(log->fd, F_SETFL, 0) != 0) return log_error(ctx, log, "cannot write"); /* turn off O_APPEND */
  const ssize_t done = pwrite(log->fd, text, (size_t)n, end);
  if (done == n) return fcntl(log->fd, F_SETFL, O_APPEND) == 0 ? WN_OK : log_error(ctx, log, "cannot write");
  if (done >= 0) errno = ENOSPC;
  const wn_status status = log_error(ctx, log, "cannot write");
  return pwrite(log->fd, tail, TAIL, end) == TAIL && ftruncate(log->fd, end + TAIL) == 0 ? status : WN_ERR_IO;
}

wn_status wn_run_log_append(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *p) {
  char line[WN_RUN_LOG_LINE];
  int n = wn_print(line, sizeof line,
                   "{\"step\":%lld,\"loss\":%.9g,\"lr\":%.9g,\"grad_norm\":%.9g,\"mem_loss\":%.9g,\"span_loss\":%.9g,"
                   "\"tokens\":%llu,"
                   "\"tokens_per_second\":%.1f,\"seconds\":%.3f",
                   (long long)p->step, p->loss, p->lr, p->grad_norm, p->mem_loss, p->span_loss,
                   (unsigned long long)p->tokens, p->tokens_per_second, log->before + p->seconds);
  if (p->balance_loss > 0) n += wn_print(line + n, sizeof line - (size_t)n, ",\"balance_loss\":%.9g", p->balance_loss);
  if (p->span > 0) n += wn_print(line + n, sizeof line - (size_t)n, ",\"span\":%.9g", p->span);
  if (p->waited_seconds > 0)
    n += wn_print(line + n, sizeof line - (size_t)n, ",\"waited_seconds\":%.4g", p->waited_seconds);
  if (p->budget > 0) n += wn_print(line + n, sizeof line - (size_t)n, ",\"budget\":%.9g", p->budget);
  if (p->recurrence_bytes > 0)
    n += snprintf(line + n, sizeof line - (size_t)n, ",\"memory_bytes\":%llu,\"memory_moves\":%llu",
                  (unsigned long long)p->recurrence_bytes, (unsigned long long)p->recurrence_moves);
  n += put_evaluation(line + n, sizeof line - (size_t)n, p);
  n += snprintf(line + n, sizeof line - (size_t)n, "}\n");
  ssize_t done = write(log->fd, line, (size_t)n);
  if (done == n) return WN_OK;
  if (done >= 0) errno = ENOSPC; /* a short write to a file: the disk is full, or a file size limit reached */
  return log_error(ctx, log, "cannot write");
}

wn_status wn_run_log_sync(wn_context *ctx, const struct wn_run_log *log) {
  return fsync(log->fd) == 0 || errno == EINVAL ? WN_OK : log_error(ctx, log, "cannot sync");
}

void wn_run_log_close(struct wn_run_log *log) {
  if (log->fd >= 0) close(log->fd);
  log->fd = -1;
}
