/* Options that change the attention of a loaded model. */
#ifndef CLI_ATTENTION_H
#define CLI_ATTENTION_H

#include <winnow/model.h>
#include "args.h"
#include "ui.h"

struct cli_attention {
  struct cli_list sets;
  const char *control;
};
#define CLI_ATTENTION_DEFAULTS                                                                                         \
  { .control = "special" }
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_ATTENTION_OPTIONS(T, m)                                                                                    \
  CLI_OPTION(T, m.sets, "attention", "KEY=VALUE",                                                                      \
             "changes the attention, such as threshold.tau=0.9 or sqrt.buffer=64"),                                    \
      CLI_CONTROL_OPTION(T, m.control)
/* NOLINTEND(bugprone-macro-parentheses) */
#define CLI_CONTROL_OPTION(T, m)                                                                                       \
  CLI_OPTION(T, m, "control", "IDS",                                                                                   \
             "control tokens, which a threshold keeps and counts exclude: special (the tokenizer's), none, or ids "    \
             "such as 0,1,2")

/* Applies the options to the model. tok: the model's; NULL: control tokens can only be ids. Clears the list. 0, or the
 * exit code. */
int cli_attention_apply(wn_context *ctx, const char *command, struct cli_attention *a, wn_model *model,
                        const wn_tokenizer *tok);
/* The ids that `text` stands for: "special" (tok's control tokens; tok NULL: none), "none", or "0,1,2". *ids is
 * malloc'd. 0, or the exit code. */
int cli_control_tokens(const char *command, const char *text, const wn_tokenizer *tok, int32_t **ids, int *count);

#endif
