/* log.jsonl: one object per step, appended. */
#ifndef WN_TRAIN_RUNLOG_H
#define WN_TRAIN_RUNLOG_H

#include "winnow/train.h"

enum { WN_RUN_LOG_LINE = 1024 };

struct wn_run_log {
  int fd;
  double before;                          /* seconds of the run's earlier parts, which lines of this process add to */
  char path[4096], last[WN_RUN_LOG_LINE]; /* last: the line that was kept last; "": none */
};

/* Opens (and creates) dir/log.jsonl and locks it, so that two processes cannot train in one folder: taken before any
 * other file of the folder is touched. */
wn_status wn_run_log_open(wn_context *ctx, const char *dir, struct wn_run_log *log);
/* Drops every line after step `keep` and a torn last line. */
wn_status wn_run_log_trim(wn_context *ctx, struct wn_run_log *log, int64_t keep);
/* Is the line that was kept last that of step `step`, and without an evaluation? Then out has its figures. */
bool wn_run_log_unevaluated(const struct wn_run_log *log, int64_t step, wn_train_progress *out);
/* The evaluation joins that line. */
wn_status wn_run_log_complete(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *progress);
/* One write call per line: a kill leaves whole lines, but for a full disk. */
wn_status wn_run_log_append(wn_context *ctx, const struct wn_run_log *log, const wn_train_progress *progress);
wn_status wn_run_log_sync(wn_context *ctx, const struct wn_run_log *log);
void wn_run_log_close(struct wn_run_log *log);

#endif
