/* Options for which rows of a token file are read: blocks as long as the context, or long documents. */
#ifndef CLI_ROWS_H
#define CLI_ROWS_H

#include <winnow/data.h>
#include "args.h"

struct cli_rows {
  bool long_only;
  int64_t document; /* -1: not given */
};
#define CLI_ROWS_DEFAULTS                                                                                              \
  { .document = -1 }
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_ROWS_OPTIONS(T, m)                                                                                         \
  CLI_OPTION(T, m.long_only, "long-only", NULL,                                                                        \
             "rows are documents that fill at least 90% of the context, each from its start"),                         \
      CLI_OPTION(T, m.document, "document-token", "ID",                                                                \
                 "--long-only: the token that starts a document; -1: the tokenizer's, or data.json's", .min = -1,      \
                 .max = INT32_MAX)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Checks that the options go together. 0, or the exit code after reporting. */
int cli_rows_check(const char *command, const struct cli_rows *rows);
/* The token that starts a document: the given one, else that of the given tokenizer or of the one in the model's
 * folder; -1: none is known, and the library looks into data.json. */
int32_t cli_rows_token(wn_context *ctx, const struct cli_rows *rows, const char *tokenizer, const char *model);
/* Applies --long-only to the configuration of a source for a token file. 0, or the exit code after reporting. */
int cli_rows_apply(wn_context *ctx, const char *command, const struct cli_rows *rows, const char *tokenizer,
                   const char *model, wn_data_config *data);

#endif
