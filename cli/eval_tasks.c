#include "eval_tasks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/task.h>
#include "signals.h"

enum { TASKS_MAX = 64 };

char *cli_tasks_help(void) {
  char *text = NULL;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return NULL;
  fprintf(f, "\nTasks, and the fields of a line in TASK.jsonl or TASK.jsonl.gz (choices: in the file of --choices):\n");
  for (int i = 0; i < wn_task_count(); i++) {
    const wn_task_info *t = wn_task_at(i);
    fprintf(f, "  %-15s %s: %s\n", t->name, t->help, t->fields);
  }
  return fclose(f) == 0 ? text : NULL;
}

/* The task that a word of a list names; NULL after reporting. */
static const wn_task_info *tasks_word(const char *command, const char *word, int bytes) {
  const char *candidates[TASKS_MAX];
  int n = 0;
  for (; n < wn_task_count() && n < TASKS_MAX; n++) {
    const wn_task_info *t = wn_task_at(n);
    candidates[n] = t->name;
    if (strlen(t->name) != (size_t)bytes || memcmp(t->name, word, (size_t)bytes)) continue;
    if (strcmp(t->name, "choices")) return t;
    cli_usage_error(command, "--task choices: give --choices FILE");
    return NULL;
  }
  char name[64];
  snprintf(name, sizeof name, "%.*s", bytes, word);
  const char *near = cli_nearest(name, candidates, n);
  cli_usage_error(command, "--task: \"%s\" is unknown; %s%s", name,
                  near ? "did you mean " : "winnow eval --help lists the tasks", near ? near : "");
  return NULL;
}

int cli_tasks_named(const char *command, const char *names, const char *out[], int max, int *count) {
  *count = 0;
  if (!strcmp(names, "all")) {
    for (int i = 0; i < wn_task_count() && *count < max; i++)
      if (strcmp(wn_task_at(i)->name, "choices")) out[(*count)++] = wn_task_at(i)->name;
    return CLI_GO;
  }
  for (const char *word = names, *next; word; word = next ? next + 1 : NULL) {
    next = strchr(word, ',');
    const wn_task_info *found = tasks_word(command, word, next ? (int)(next - word) : (int)strlen(word));
    if (!found) return 2;
    for (int i = 0; i < *count; i++)
      if (out[i] == found->name) return cli_usage_error(command, "--task: %s stands there twice", found->name);
    if (*count == max) return cli_usage_error(command, "--task: more than %d tasks", max);
    out[(*count)++] = found->name;
  }
  return CLI_GO;
}

int cli_tasks_check(const char *command, const struct cli_tasks *tasks, const char *data, const char *answers) {
  const char *list[TASKS_MAX];
  int count;
  if (!cli_tasks_wanted(tasks)) {
    const char *name = tasks->log                 ? "log"
                       : tasks->resume            ? "resume"
                       : tasks->limit && !answers ? "limit"
                       : tasks->sweep             ? "sweep"
                       : tasks->policies          ? "policies"
                                                  : NULL;
    if (!name) return CLI_GO;
    return cli_usage_error(command, "--%s goes with --task%s", name,
                           strcmp(name, "limit") ? " or --choices" : ", --choices or --answers");
  }
  if (tasks->names && tasks->choices) return cli_usage_error(command, "--task and --choices exclude each other");
  if (tasks->names && !data) return cli_usage_error(command, "--task needs --data FOLDER, which has the tasks' files");
  if (tasks->choices && data) return cli_usage_error(command, "--choices and --data exclude each other");
  if (tasks->resume && !tasks->log) return cli_usage_error(command, "--resume needs --log FILE");
  if (tasks->policies && !tasks->sweep) return cli_usage_error(command, "--policies goes with --sweep");
  return tasks->names ? cli_tasks_named(command, tasks->names, list, TASKS_MAX, &count) : CLI_GO;
}

/* --- results --- */

struct tasks_run {
  wn_context *ctx;
  const struct cli_common *common;
  const struct cli_tasks *tasks;
  wn_model *model;
  wn_task_options options; /* of all tasks */
  const struct cli_task_settings *settings;
  wn_task_result *results; /* one for each setting */
};

static void tasks_print_head(bool sweep) {
  printf("%-15s %s%9s  %-15s %-15s %-15s %-16s %s%s\n", "task", sweep ? "setting        " : "", "questions", "acc",
         "acc_norm", "acc_bytes", "perplexity", sweep ? "change          " : "", "questions/s");
}

static void tasks_print_value(bool known, double unit, double value, double error) {
  char text[64] = "-";
  if (known) snprintf(text, sizeof text, isnan(error) ? "%.2f" : "%.2f +- %.2f", unit * value, unit * error);
  printf(" %-15s", text);
}

static void tasks_print(const wn_task_info *task, const char *setting, const wn_task_result *r) {
  const wn_task_metric chief = wn_task_chief_metric(task);
  const uint64_t scored = r->questions - r->resumed - r->reused;
  printf("%-15s ", task->name);
  if (setting) printf("%-15s", setting);
  printf("%9" PRIu64 " ", r->questions);
  for (int m = 0; m < WN_METRIC_COUNT; m++)
    tasks_print_value(r->counted[m] > 0, m == WN_METRIC_PERPLEXITY ? 1 : 100, r->value[m], r->stderr_[m]);
  printf(" ");
  if (setting) tasks_print_value(r->compared[chief] > 0, 100, r->change[chief], r->change_stderr[chief]);
  printf(" %.1f\n", r->seconds > 0 ? (double)scored / r->seconds : 0);
}

static json_t *tasks_json(const char *task, const char *setting, const wn_task_result *r) {
  json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "task", task, "questions", (json_int_t)r->questions,
                        "resumed", (json_int_t)r->resumed, "reused", (json_int_t)r->reused, "tokens_scored",
                        (json_int_t)r->tokens_scored, "tokens_fed", (json_int_t)r->tokens_fed, "cache_bytes",
                        (json_int_t)r->cache_bytes, "seconds", r->seconds);
  if (j && setting) json_object_set_new(j, "setting", json_string(setting));
  for (int m = 0; m < WN_METRIC_COUNT && j; m++) {
    const char *metric = wn_task_metric_name((wn_task_metric)m);
    const struct {
      const char *end;
      uint64_t counted;
      double value;
    } numbers[] = {{"", r->counted[m], r->value[m]},
                   {"_stderr", r->counted[m], r->stderr_[m]},
                   {"_low", r->counted[m], r->low[m]},
                   {"_high", r->counted[m], r->high[m]},
                   {"_change", r->compared[m], r->change[m]},
                   {"_change_stderr", r->compared[m], r->change_stderr[m]},
                   {"_change_low", r->compared[m], r->change_low[m]},
                   {"_change_high", r->compared[m], r->change_high[m]}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
      char name[64];
      if (!numbers[i].counted) continue;
      snprintf(name, sizeof name, "%s%s", metric, numbers[i].end);
      json_object_set_new(j, name, cli_number(numbers[i].value));
    }
  }
  return j;
}

/* --- evaluations --- */

/* The log's path: FILE, with several tasks FILE.TASK, in a sweep followed by the setting's name. */
static int tasks_log_path(const struct tasks_run *run, const char *task, bool several, int setting, char path[4096]) {
  const bool sweep = run->tasks->sweep != NULL;
  const int n = snprintf(path, 4096, "%s%s%s%s%s", run->tasks->log, several ? "." : "", several ? task : "",
                         sweep ? "." : "", sweep ? run->settings->all[setting].name : "");
  return n < 4096 ? 0 : cli_error("%.64s...: the path is too long", run->tasks->log);
}

static int tasks_run_one(const struct tasks_run *run, const char *task, bool several) {
  const int count = run->settings->count;
  struct cli_progress bar;
  wn_task_options o = run->options;
  wn_task_setting *settings = calloc((size_t)count, sizeof *settings);
  char(*logs)[4096] = calloc((size_t)count, sizeof *logs);
  int code = settings && logs ? 0 : cli_error("out of memory");
  for (int i = 0; i < count && !code; i++) {
    const struct cli_task_setting *s = &run->settings->all[i];
    settings[i] = (wn_task_setting){.budgets = s->budgets};
    if (!run->tasks->log) continue;
    code = tasks_log_path(run, task, several, i, logs[i]);
    settings[i].log = logs[i];
  }
  if (!code) {
    o.task = task;
    cli_progress_begin(&bar, run->common, task, "questions");
    o.progress = cli_progress_on;
    o.user = &bar;
    const wn_status status = wn_task_sweep(run->ctx, run->model, &o, settings, count, run->results);
    cli_progress_end(&bar);
    if (status == WN_ERR_CANCELLED) {
      const bool logged = run->tasks->log != NULL;
      cli_error("interrupted: %s%s%s", wn_context_error(run->ctx), logged ? "; --resume goes on from " : "",
                logged ? run->tasks->log : "");
      code = CLI_INTERRUPTED;
    } else if (status != WN_OK) {
      code = cli_fail(run->ctx, status);
    }
  }
  free(logs);
  free(settings);
  return code;
}

static int tasks_run_all(const struct tasks_run *run, const char *const *names, int count, json_t *results) {
  const bool sweep = run->tasks->sweep != NULL;
  for (int i = 0; i < count; i++) {
    const int code = tasks_run_one(run, names[i], count > 1);
    if (code) return code;
    if (i == 0 && !run->common->json) tasks_print_head(sweep);
    for (int n = 0; n < run->settings->count; n++) {
      const char *setting = sweep ? run->settings->all[n].name : NULL;
      json_array_append_new(results, tasks_json(names[i], setting, &run->results[n]));
      if (!run->common->json) tasks_print(wn_task_at(wn_task_find(names[i])), setting, &run->results[n]);
    }
    fflush(stdout);
  }
  return 0;
}

int cli_tasks_run(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks, const char *data,
                  const struct cli_loading *asked, const struct cli_loaded *in, int64_t context, int64_t batch) {
  const char *names[TASKS_MAX] = {"choices"};
  int count = 1, code = CLI_GO;
  struct cli_task_settings settings = {0};
  if (tasks->names) code = cli_tasks_named("winnow eval", tasks->names, names, TASKS_MAX, &count);
  if (code != CLI_GO) return code;
  code = cli_task_settings_read(ctx, common, tasks, asked, in, &settings);
  wn_task_result *found = code ? NULL : calloc((size_t)settings.count, sizeof *found);
  if (!code && !found) code = cli_error("out of memory");
  const struct tasks_run run = {.ctx = ctx,
                                .common = common,
                                .tasks = tasks,
                                .model = in->model,
                                .options = {.size = sizeof(wn_task_options),
                                            .tok = in->tok,
                                            .path = tasks->names ? data : tasks->choices,
                                            .limit = tasks->limit,
                                            .context = context,
                                            .batch = batch,
                                            .cache = in->budgets.cache,
                                            .resume = tasks->resume},
                                .settings = &settings,
                                .results = found};
  json_t *results = json_array();
  cli_signals_begin(ctx);
  if (!code) code = tasks_run_all(&run, names, count, results);
  cli_signals_end();
  free(found);
  cli_task_settings_clear(&settings);
  if (!code && common->json)
    return cli_print_json(json_pack("{s:o, s:o}", "model", cli_text(asked->model), "tasks", results));
  json_decref(results);
  return code;
}
