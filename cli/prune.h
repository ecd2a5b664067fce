/* What the subcommands of winnow prune share. */
#ifndef CLI_PRUNE_H
#define CLI_PRUNE_H

#include <winnow/prune.h>
#include "args.h"
#include "budgets.h"
#include "recipe.h"
#include "rows.h"
#include "ui.h"

#define PRUNE_BATCH_OPTION(T, m) CLI_OPTION(T, m, "batch", "N", "rows at a time; 0: 8", .min = 0, .max = 1 << 20)

int prune_search(int argc, char **argv);
int prune_compare(int argc, char **argv);

#endif
