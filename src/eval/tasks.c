/* The list of tasks. */
#include <string.h>

#include "eval/task.h"

static const struct wn_task_row *const task_rows[] = {
#define TASK_ROW(name) &wn_task_##name,
    WN_TASKS(TASK_ROW)};
enum { TASK_ROWS = sizeof task_rows / sizeof *task_rows };

int wn_task_count(void) {
  return TASK_ROWS;
}

const wn_task_info *wn_task_at(int i) {
  return i >= 0 && i < TASK_ROWS ? &task_rows[i]->info : NULL;
}

const char *wn_task_metric_name(wn_task_metric metric) {
  static const char *const names[WN_METRIC_COUNT] = {"acc", "acc_norm", "acc_bytes", "perplexity"};
  return (unsigned)metric < WN_METRIC_COUNT ? names[metric] : "?";
}

int wn_task_find(const char *name) {
  for (int i = 0; name && i < TASK_ROWS; i++)
    if (!strcmp(task_rows[i]->info.name, name)) return i;
  return -1;
}

wn_task_metric wn_task_chief_metric(const wn_task_info *task) {
  return task && (task->metrics & 1u << WN_METRIC_ACC_NORM) ? WN_METRIC_ACC_NORM : WN_METRIC_ACC;
}

const struct wn_task_row *wn_task_row(const char *name) {
  const int i = wn_task_find(name);
  return i >= 0 ? task_rows[i] : NULL;
}
