/* A run with its progress on the terminal: what train and adapt share. */
#ifndef CLI_TRAIN_RUN_H
#define CLI_TRAIN_RUN_H

#include <stdbool.h>
#include <winnow/train.h>
#include "args.h"
#include "train_views.h"

/* wn_train_run and what it says at the end, as text or JSON. verb: the subcommand, done: its past tense; views:
 * opened and closed here. Returns the exit code. */
int cli_train_run(const struct cli_common *common, wn_context *ctx, const wn_recipe *given, const char *out,
                  bool resume, struct cli_views *views, const char *verb, const char *done);

#endif
