/* A training run with progress on the terminal, shared by train and adapt. */
#ifndef CLI_TRAIN_RUN_H
#define CLI_TRAIN_RUN_H

#include <stdbool.h>
#include <winnow/train.h>
#include "args.h"
#include "train_views.h"

/* Runs wn_train_run and prints the result, as text or JSON. verb: the subcommand; done: its past tense. Opens and
 * closes the views. Returns the exit code. */
int cli_train_run(const struct cli_common *common, wn_context *ctx, const wn_recipe *given, const char *out,
                  bool resume, struct cli_views *views, const char *verb, const char *done);

#endif
