/* What train, eval and bench share about recipes and checkpoint folders. */
#ifndef CLI_RECIPE_H
#define CLI_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <winnow/train.h>
#include "args.h"

/* The text of wn_recipe_help with a title, malloc'd: for cli_spec.more_help. */
char *cli_recipe_keys(void);
/* "dir/name" into out; false when it does not fit. */
bool cli_join(char *out, size_t bytes, const char *dir, const char *name);
bool cli_exists(const char *path);
/* A checkpoint that was given as --model or as the one positional argument: the list is cleared, *model set. CLI_GO, or
 * 2 after reporting that there is none, or two; `code` comes from cli_parse and is passed on when it is not CLI_GO. */
int cli_model_argument(const struct cli_spec *spec, int code, bool required, struct cli_list *positionals,
                       const char **model);
/* Loads (path or defaults, then sets). 0, or the exit code after reporting. */
int cli_recipe_load(wn_context *ctx, const char *path, const struct cli_list *sets, wn_recipe *out);

#endif
