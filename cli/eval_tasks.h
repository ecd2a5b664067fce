/* winnow eval --task: multiple choice and word prediction. */
#ifndef CLI_EVAL_TASKS_H
#define CLI_EVAL_TASKS_H

#include "load.h"

struct cli_tasks {
  const char *names, *choices, *log, *sweep, *policies; /* NULL: not given */
  int64_t limit;
  bool resume;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_TASKS_OPTIONS(T, m)                                                                                        \
  CLI_OPTION(T, m.names, "task", "NAME,...",                                                                           \
             "downstream tasks, whose files are in the folder --data; all: each of them"),                             \
      CLI_OPTION(T, m.choices, "choices", "FILE", "questions of your own, one JSON object per line"),                  \
      CLI_OPTION(T, m.limit, "limit", "N", "only the first N questions of every task; 0: all", .min = 0, .max = 1e9),  \
      CLI_OPTION(T, m.log, "log", "FILE",                                                                              \
                 "receives one line of JSON per question; with several tasks FILE.TASK for each, with --sweep "        \
                 "FILE.TASK.full and FILE.TASK.POLICY-K"),                                                             \
      CLI_OPTION(T, m.resume, "resume", NULL, "continues --log: questions in it are not scored again"),                \
      CLI_OPTION(T, m.sweep, "sweep", "K,...",                                                                         \
                 "answers without budgets, then with K tokens in every layer under every policy: each question that "  \
                 "fits into a budget is answered once"),                                                               \
      CLI_OPTION(T, m.policies, "policies", "NAME,...", cli_policies_help)
/* NOLINTEND(bugprone-macro-parentheses) */

static inline bool cli_tasks_wanted(const struct cli_tasks *tasks) {
  return tasks->names || tasks->choices;
}
/* Parses comma-separated names, each at most once, into the library's own strings; "all": every task with a file of its
 * own. CLI_GO, or 2 after reporting. */
int cli_tasks_named(const char *command, const char *names, const char *out[], int max, int *count);
/* Checks the options: CLI_GO, or 2 after reporting which is wrong. answers: --answers, which has --limit as well. */
int cli_tasks_check(const char *command, const struct cli_tasks *tasks, const char *data, const char *answers);
/* The settings under which questions are answered: one, or all of --sweep. */
struct cli_task_setting {
  char name[64]; /* "full", "h2o-64" */
  wn_budgets own;
  const wn_budgets *budgets; /* its own or the command's; NULL: none */
};
struct cli_task_settings {
  struct cli_task_setting *all;
  int count;
};
/* 0, or the exit code after reporting. Call cli_task_settings_clear in either case. */
int cli_task_settings_read(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks,
                           const struct cli_loading *asked, const struct cli_loaded *in, struct cli_task_settings *out);
/* Checks --sweep together with the options for budgets: CLI_GO or 2. */
int cli_sweep_check(const char *command, const struct cli_tasks *tasks, const struct cli_budgets *given);
void cli_task_settings_clear(struct cli_task_settings *settings);

/* Answers the questions, prints the results and returns the exit code. context 0: the model's; batch 0: the library's
 * choice. */
int cli_tasks_run(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks, const char *data,
                  const struct cli_loading *asked, const struct cli_loaded *in, int64_t context, int64_t batch);
/* The tasks with the fields of their files, for --help; freed with free(). */
char *cli_tasks_help(void);

#endif
