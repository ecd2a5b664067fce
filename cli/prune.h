/* What the subcommands of winnow prune share: which rows of a token file are read. */
#ifndef CLI_PRUNE_H
#define CLI_PRUNE_H

#include <winnow/prune.h>
#include "args.h"
#include "budgets.h"
#include "recipe.h"
#include "ui.h"

enum { PRUNE_PATH_BYTES = 4096 };

/* Which rows of a token file, and how many at a time. */
struct prune_rows {
  int64_t document, batch;
  bool long_only;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define PRUNE_ROWS_OPTIONS(T, m)                                                                                       \
  CLI_OPTION(T, m.long_only, "long-only", NULL,                                                                        \
             "rows are documents that fill at least 90% of the context, each from its start"),                         \
      CLI_OPTION(T, m.document, "document-token", "ID",                                                                \
                 "--long-only: the token that starts a document; -1: the tokenizer's", .min = -1, .max = INT32_MAX),   \
      CLI_OPTION(T, m.batch, "batch", "N", "rows at a time; 0: 8", .min = 0, .max = 1 << 20)
/* NOLINTEND(bugprone-macro-parentheses) */

/* The token that starts a document: given, or (-1) that of the tokenizer in the checkpoint's folder. 0, or the exit
 * code. */
int prune_document_token(wn_context *ctx, const char *model, int64_t given, int32_t *out);

int prune_search(int argc, char **argv);
int prune_compare(int argc, char **argv);

#endif
