/* winnow eval --answers: written answers, compared with references. */
#ifndef CLI_EVAL_ANSWERS_H
#define CLI_EVAL_ANSWERS_H

#include <winnow/answers.h>
#include "load.h"

struct cli_answers {
  const char *file, *save, *grid; /* NULL: not given */
  int64_t max_tokens, together;
  struct cli_list stop;
  bool chat;
  struct cli_dialogue dialogue;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_ANSWERS_OPTIONS(T, m)                                                                                      \
  CLI_OPTION(T, m.file, "answers", "FILE",                                                                             \
             "JSON lines: the model reads a context and a question and writes an answer, which is compared with "      \
             "references (docs/tasks.md)"),                                                                            \
      CLI_OPTION(                                                                                                      \
          T, m.save, "save", "FILE",                                                                                   \
          "--answers: gets a line of JSON for each answer as it is finished; the same command goes on from it"),       \
      CLI_OPTION(T, m.grid, "grid", "FILE",                                                                            \
                 "--answers: a JSON list of settings that share the reading of contexts, {\"policy\": NAME, "          \
                 "\"budgets\": SPEC, \"when\": ..., \"every\": N, \"options\": \"KEY=VALUE,...\", \"save\": FILE}"),   \
      CLI_OPTION(T, m.together, "together", "N",                                                                       \
                 "--answers: so many answers are written at a time, under other settings of --grid or to other "       \
                 "questions about a context; 0: 1, with --grid 8",                                                     \
                 .min = 0, .max = WN_ANSWERS_TOGETHER),                                                                \
      CLI_OPTION(T, m.max_tokens, "max-tokens", "N",                                                                   \
                 "--answers: the most tokens of an answer, where its line does not say; 0: 128", .min = 0,             \
                 .max = 1 << 24),                                                                                      \
      CLI_OPTION(T, m.stop, "stop", "TEXT", "--answers: ends an answer where TEXT would be written"),                  \
      CLI_OPTION(T, m.chat, "chat", NULL,                                                                              \
                 "--answers: context and question are a message, put into the model's chat template"),                 \
      CLI_DIALOGUE_OPTIONS(T, m.dialogue)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Checks the options that need --answers: CLI_GO, or 2 after reporting. */
int cli_answers_check(const char *command, const struct cli_answers *answers);
/* Answers the questions, prints the results and returns the exit code. limit 0: every line. */
int cli_answers_run(wn_context *ctx, const struct cli_common *common, const struct cli_answers *answers,
                    const struct cli_loading *asked, const struct cli_loaded *in, int64_t limit);

#endif
