/* Reads a run's log.jsonl as columns. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/misuse.h"
#include "winnow/train.h"

#define COLUMN(name)                                                                                                   \
  { #name, offsetof(wn_train_log, name) }
static const struct column {
  const char *key;
  size_t offset;
} columns[] = {COLUMN(step),         COLUMN(tokens),         COLUMN(seconds),           COLUMN(loss),
               COLUMN(lr),           COLUMN(grad_norm),      COLUMN(mem_loss),          COLUMN(span_loss),
               COLUMN(span),         COLUMN(budget),         COLUMN(tokens_per_second), COLUMN(val_loss),
               COLUMN(val_accuracy), COLUMN(val_loss_stderr)};
enum { COLUMNS = sizeof columns / sizeof *columns, STEP = 0, SECONDS = 2, LOSS = 3 };

static double **column(wn_train_log *log, int c) {
  return (double **)((char *)log + columns[c].offset);
}

static wn_status runlog_read_line(wn_context *ctx, const char *path, int64_t number, const char *line, size_t bytes,
                                  double out[COLUMNS]) {
  char where[4200];
  json_t *j;
  snprintf(where, sizeof where, "%s: line %lld", path, (long long)number);
  WN_TRY(wn_json_load_text(ctx, WN_JSON_LINE, where, line, bytes, &j));
  for (int c = 0; c < COLUMNS; c++) {
    const json_t *value = json_object_get(j, columns[c].key);
    out[c] = json_is_number(value) ? json_number_value(value) : NAN;
  }
  json_decref(j);
  if (!isfinite(out[STEP]) || !isfinite(out[LOSS]))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: expected an object with \"step\" and \"loss\"", where);
  return WN_OK;
}

static wn_status parse(wn_context *ctx, const char *path, const char *text, size_t bytes, wn_train_log *out) {
  double before = 0, last = 0; /* seconds of earlier parts of the run; seconds of the line before */
  int64_t number = 0;
  for (size_t at = 0; at < bytes;) {
    const char *end = memchr(text + at, '\n', bytes - at);
    if (!end) break;
    const size_t n = (size_t)(end - (text + at));
    double values[COLUMNS];
    number++;
    if (n > 0) {
      WN_TRY(runlog_read_line(ctx, path, number, text + at, n, values));
      while (out->count > 0 && out->step[out->count - 1] >= values[STEP]) out->count--;
      if (isfinite(values[SECONDS])) {
        if (values[SECONDS] < last) before += last; /* in older logs seconds begin at 0 in every process */
        last = values[SECONDS];
        values[SECONDS] += before;
      }
      for (int c = 0; c < COLUMNS; c++) (*column(out, c))[out->count] = values[c];
      out->count++;
    }
    at += n + 1;
  }
  return WN_OK;
}

/* The log is read, not mapped: if the run is resumed meanwhile, the log is cut. */
wn_status wn_train_log_load(wn_context *ctx, const char *dir, wn_train_log *out) {
  WN_CHECK_CALL(WN_POINTER(dir), WN_POINTER(out));
  char path[4096], *text;
  size_t bytes;
  int64_t lines = 0;
  double *memory;
  *out = (wn_train_log){0};
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "log.jsonl"));
  WN_TRY(wn_file_read(ctx, path, WN_LIMIT_LOG, &text, &bytes));
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  wn_status status = WN_ALLOC(ctx, "log", (lines + 1) * COLUMNS, &memory);
  if (status == WN_OK) {
    for (int c = 0; c < COLUMNS; c++) *column(out, c) = memory + c * (lines + 1);
    status = parse(ctx, path, text, bytes, out);
  }
  wn_free(text);
  if (status != WN_OK) {
    wn_free(memory);
    *out = (wn_train_log){0};
  }
  return status;
}

void wn_train_log_clear(wn_train_log *log) {
  WN_CHECK_OR(, WN_POINTER(log));
  wn_free(log->step); /* all columns are one block */
  *log = (wn_train_log){0};
}
