/* log.jsonl: one object per step, appended. */
#ifndef WN_TRAIN_RUNLOG_H
#define WN_TRAIN_RUNLOG_H

#include "winnow/train.h"

enum { WN_RUN_LOG_LINE = 1024 };

struct wn_run_log {
  int fd;
  double before; /* seconds of the run's earlier parts, which are added to the seconds of new lines */
  char path[4096], last[WN_RUN_LOG_LINE]; /* last: the last line that was kept; "": none */
};

/* Opens (or creates) dir/log.jsonl and locks it, so that two processes cannot train in one folder. Called before any
 * other file of the folder is touched. */
wn_status wn_run_log_open(wn_context *ctx, const char *dir, struct wn_run_log *log);
/* Drops every line after step `keep` and a torn last line. */
wn_status wn_run_log_trim(wn_context *ctx, struct wn_run_log *log, int64_t keep);
/* Is the last line that was kept the line of step `step`, without an evaluation? Then *out receives its numbers. */
bool wn_run_log_unevaluated(const struct wn_run_log *log, int64_t step, wn_train_progress *out);
/* Adds the evaluation to that line. */
wn_status wn_run_log_complete(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *progress);
/* Appends a line with one write call, so that a kill leaves complete lines (a full disk may not). */
wn_status wn_run_log_append(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *progress);
wn_status wn_run_log_sync(wn_context *ctx, const struct wn_run_log *log);
void wn_run_log_close(struct wn_run_log *log);

#endif
