/* Options for answers in JSON, shared by generate and chat. */
#ifndef CLI_FORMAT_H
#define CLI_FORMAT_H

#include <winnow/constraint.h>
#include "args.h"

struct cli_format {
  bool object;
  const char *schema; /* path of a file */
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_FORMAT_OPTIONS(T, m)                                                                                       \
  CLI_OPTION(T, m.object, "json-object", NULL, "the model writes a JSON object, and nothing else"),                    \
      CLI_OPTION(T, m.schema, "json-schema", "FILE", "the model writes JSON that fits this schema; docs/json.md")
/* NOLINTEND(bugprone-macro-parentheses) */

bool cli_format_is_given(const struct cli_format *f);
int cli_format_check(const char *command, const struct cli_format *f); /* CLI_GO, or the exit code */
/* Makes the constraint; *out is NULL if none was asked for. 0, or the exit code after reporting. */
int cli_format_open(wn_context *ctx, const struct cli_format *f, const wn_tokenizer *tok, wn_constraint **out);

#endif
