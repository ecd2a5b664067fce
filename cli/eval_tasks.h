/* winnow eval --task: multiple choice and word prediction. */
#ifndef CLI_EVAL_TASKS_H
#define CLI_EVAL_TASKS_H

#include "load.h"

struct cli_tasks {
  const char *names, *choices, *log; /* NULL: not given */
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
                 "receives one line of JSON per question; with several tasks FILE.TASK for each"),                     \
      CLI_OPTION(T, m.resume, "resume", NULL, "continues --log: questions in it are not scored again")
/* NOLINTEND(bugprone-macro-parentheses) */

static inline bool cli_tasks_wanted(const struct cli_tasks *tasks) {
  return tasks->names || tasks->choices;
}
/* Names with commas between them as the library's own strings, each once; "all": each that has a file of its own.
 * CLI_GO, or 2 after saying what is wrong. */
int cli_tasks_named(const char *command, const char *names, const char *out[], int max, int *count);
/* CLI_GO, or 2 after saying which option is wrong. */
int cli_tasks_check(const char *command, const struct cli_tasks *tasks, const char *data);
/* The exit code, after printing the results. context 0: the model's; batch 0: the library's choice. */
int cli_tasks_run(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks, const char *data,
                  const struct cli_loading *asked, const struct cli_loaded *in, int64_t context, int64_t batch);
/* The tasks with the fields of their files, for --help; freed with free(). */
char *cli_tasks_help(void);

#endif
