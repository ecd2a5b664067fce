#include "eval_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/task.h>
#include "signals.h"
#include "ui.h"

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

/* The task of a word of a list; NULL after saying why not. */
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

int cli_tasks_check(const char *command, const struct cli_tasks *tasks, const char *data) {
  const char *list[TASKS_MAX];
  int count;
  if (!cli_tasks_wanted(tasks)) {
    const char *name = tasks->log ? "log" : tasks->resume ? "resume" : tasks->limit ? "limit" : NULL;
    return name ? cli_usage_error(command, "--%s goes with --task or --choices", name) : CLI_GO;
  }
  if (tasks->names && tasks->choices) return cli_usage_error(command, "--task and --choices exclude each other");
  if (tasks->names && !data) return cli_usage_error(command, "--task needs --data FOLDER, which has the tasks' files");
  if (tasks->choices && data) return cli_usage_error(command, "--choices and --data exclude each other");
  if (tasks->resume && !tasks->log) return cli_usage_error(command, "--resume needs --log FILE");
  return tasks->names ? cli_tasks_named(command, tasks->names, list, TASKS_MAX, &count) : CLI_GO;
}

/* What a log must agree on to be continued: the model, its attention, budgets and the cache's format. */
static char *tasks_settings(wn_context *ctx, const struct cli_loading *asked, const struct cli_loaded *in) {
  char *config = NULL;
  json_t *j = json_object(), *parsed = NULL;
  json_object_set_new(j, "model", json_string(asked->model));
  json_object_set_new(j, "cache", json_string(wn_cache_format_name(in->budgets.cache)));
  if (wn_model_config_json(ctx, wn_model_config_get(in->model), &config) == WN_OK) parsed = json_loads(config, 0, NULL);
  wn_text_free(config);
  if (json_object_get(parsed, "attention")) json_object_set(j, "attention", json_object_get(parsed, "attention"));
  json_decref(parsed);
  if (in->budgets.layers > 0) {
    json_object_set_new(j, "policy", json_string(wn_policy_name(in->budgets.policy)));
    if (asked->budgets.spec) json_object_set_new(j, "budgets", json_string(asked->budgets.spec));
    if (asked->budgets.choices.options) json_object_set_new(j, "options", json_string(asked->budgets.choices.options));
    json_object_set_new(j, "sinks", json_integer(in->budgets.sinks));
    json_object_set_new(j, "recent", json_real(in->budgets.recent));
    json_object_set_new(j, "per_kv_head", json_boolean(in->budgets.per_kv_head));
  }
  char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
  json_decref(j);
  return text;
}

static void tasks_print_head(void) {
  printf("%-15s %9s  %-15s %-15s %-15s %-16s %s\n", "task", "questions", "acc", "acc_norm", "acc_bytes", "perplexity",
         "questions/s");
}

static void tasks_print(const char *task, const wn_task_result *r) {
  printf("%-15s %9" PRIu64 " ", task, r->questions);
  for (int m = 0; m < WN_METRIC_COUNT; m++) {
    const double unit = m == WN_METRIC_PERPLEXITY ? 1 : 100;
    char text[64] = "-";
    if (r->counted[m]) snprintf(text, sizeof text, "%.2f +- %.2f", unit * r->value[m], unit * r->stderr_[m]);
    printf(" %-15s", text);
  }
  printf("  %.1f\n", r->seconds > 0 ? (double)(r->questions - r->resumed) / r->seconds : 0);
}

static json_t *tasks_json(const char *task, const wn_task_result *r) {
  json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f}", "task", task, "questions", (json_int_t)r->questions,
                        "resumed", (json_int_t)r->resumed, "tokens_scored", (json_int_t)r->tokens_scored, "tokens_fed",
                        (json_int_t)r->tokens_fed, "cache_bytes", (json_int_t)r->cache_bytes, "seconds", r->seconds);
  for (int m = 0; m < WN_METRIC_COUNT && j; m++) {
    char name[64];
    if (!r->counted[m]) continue;
    json_object_set_new(j, wn_task_metric_name((wn_task_metric)m), cli_number(r->value[m]));
    snprintf(name, sizeof name, "%s_stderr", wn_task_metric_name((wn_task_metric)m));
    json_object_set_new(j, name, cli_number(r->stderr_[m]));
  }
  return j;
}

struct tasks_run {
  wn_context *ctx;
  const struct cli_common *common;
  const struct cli_tasks *tasks;
  wn_model *model;
  wn_task_options options; /* of all tasks */
};

static int tasks_run_one(const struct tasks_run *run, const char *task, bool several, wn_task_result *r) {
  struct cli_progress bar;
  char log[4096];
  wn_task_options o = run->options;
  o.task = task;
  if (run->tasks->log && several) {
    if (snprintf(log, sizeof log, "%s.%s", run->tasks->log, task) >= (int)sizeof log)
      return cli_error("%.64s...: the path is too long", run->tasks->log);
    o.log = log;
  }
  cli_progress_begin(&bar, run->common, task, "questions");
  o.progress = cli_progress_on;
  o.user = &bar;
  const wn_status status = wn_task_run(run->ctx, run->model, &o, r);
  cli_progress_end(&bar);
  if (status == WN_OK) return 0;
  if (status != WN_ERR_CANCELLED) return cli_fail(run->ctx, status);
  cli_error("interrupted: %s%s%s", wn_context_error(run->ctx), o.log ? "; --resume goes on from " : "",
            o.log ? o.log : "");
  return CLI_INTERRUPTED;
}

int cli_tasks_run(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks, const char *data,
                  const struct cli_loading *asked, const struct cli_loaded *in, int64_t context, int64_t batch) {
  const char *names[TASKS_MAX] = {"choices"};
  int count = 1, code = CLI_GO;
  if (tasks->names) code = cli_tasks_named("winnow eval", tasks->names, names, TASKS_MAX, &count);
  if (code != CLI_GO) return code;
  char *settings = tasks_settings(ctx, asked, in);
  const struct tasks_run run = {ctx,
                                common,
                                tasks,
                                in->model,
                                {.size = sizeof(wn_task_options),
                                 .tok = in->tok,
                                 .path = tasks->names ? data : tasks->choices,
                                 .limit = tasks->limit,
                                 .context = context,
                                 .batch = batch,
                                 .budgets = in->budgets.layers > 0 ? &in->budgets : NULL,
                                 .cache = in->budgets.cache,
                                 .log = tasks->log,
                                 .log_name = settings,
                                 .resume = tasks->resume}};
  json_t *results = json_array();
  cli_signals_begin(ctx);
  for (int i = 0; i < count && !code; i++) {
    wn_task_result r;
    code = tasks_run_one(&run, names[i], count > 1, &r);
    if (code) break;
    json_array_append_new(results, tasks_json(names[i], &r));
    if (common->json) continue;
    if (i == 0) tasks_print_head();
    tasks_print(names[i], &r);
    fflush(stdout);
  }
  cli_signals_end();
  free(settings);
  if (!code && common->json) return cli_print_json(json_pack("{s:s, s:o}", "model", asked->model, "tasks", results));
  json_decref(results);
  return code;
}
