/* Recipes and checkpoint folders, shared by train, eval, bench and others. */
#ifndef CLI_RECIPE_H
#define CLI_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <winnow/tokenizer.h>
#include <winnow/train.h>
#include "args.h"

enum { CLI_PATH_BYTES = 4096 };

/* The text of wn_recipe_help with a title, malloc'd: for cli_spec.more_help. */
char *cli_recipe_keys(void);
/* "dir/name" into out; false when it does not fit. */
bool cli_join(char *out, size_t bytes, const char *dir, const char *name);
bool cli_exists(const char *path);
/* cli_parse of a command whose checkpoint is given as --model (*model, a field of `into`) or as the only positional
 * argument. Reports, too, that there is none although it is required, or two. */
int cli_parse_model(const struct cli_spec *spec, int argc, char **argv, void *into, bool required, const char **model);
/* 2 after reporting that there is no checkpoint. */
int cli_model_missing(const struct cli_spec *spec);
#define CLI_MODEL_OPTION(T, m) CLI_OPTION(T, m, "model", "DIR", "the checkpoint (or as an argument)")
/* Whether weights are checked; given NULL: the library's default. */
#define CLI_CHECK_OPTION(T, m)                                                                                         \
  CLI_OPTION(T, m, "check-tensors", "WHETHER",                                                                         \
             "refuse NaN and infinite weights (default: where they take at most 1 GiB) and checksums that differ "     \
             "(default: always)",                                                                                      \
             .choices = "yes|no")
wn_check cli_check_of(const char *given);
/* How matrices are held; given NULL: auto. */
#define CLI_WEIGHTS_OPTION(T, m)                                                                                       \
  CLI_OPTION(                                                                                                          \
      T, m, "weights", "HELD",                                                                                         \
      "matrices in memory; auto: in the file's types, blocks in the processor's order; file: in the file alone, "      \
      "shared with other processes; bf16, bfloat16: float32 rounded to it (default: auto)",                            \
      .choices = "auto|file|bf16|bfloat16")
#define CLI_ADAPTER_OPTION(T, m)                                                                                       \
  CLI_OPTION(T, m, "adapter", "DIR", "low-rank updates that peft saved, added to the model's projections")
wn_status cli_model_load(wn_context *ctx, const char *path, const char *check, const char *weights, const char *adapter,
                         wn_model **out);
/* Loads the given tokenizer, else the one in the model's folder `dir`; refuses one with more tokens than the model. 0,
 * or the exit code after reporting. The caller destroys *out in either case. */
int cli_tokenizer_load(wn_context *ctx, const char *given, const char *dir, const wn_model *model, wn_tokenizer **out);
/* The model's tokenizer, if the budgets' method asks in words for the context once more; else *out stays. */
int cli_tokenizer_to_repeat(wn_context *ctx, const wn_budgets *budgets, const char *dir, const wn_model *model,
                            wn_tokenizer **out);
/* Warns if, by the data.json beside a token file, the file was made with a vocabulary of another size than the model's
 * tokenizer, so that its ids mean other text. file NULL: nothing to check. */
void cli_tokens_check(wn_context *ctx, const char *file, const char *dir, const wn_model *model);
/* The recipe to use: the given one, else the recipe.json of a checkpoint's folder, whose path goes to `kept`; NULL:
 * there is none. */
const char *cli_recipe_of(const char *given, const char *dir, char kept[CLI_PATH_BYTES]);
/* Loads a recipe: path or defaults, then sets. 0, or the exit code after reporting. */
int cli_recipe_load(wn_context *ctx, const char *path, const struct cli_list *sets, wn_recipe *out);

#endif
