/* What train, eval and bench share about recipes and checkpoint folders. */
#ifndef CLI_RECIPE_H
#define CLI_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <winnow/tokenizer.h>
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
#define CLI_MODEL_OPTION(T, m) CLI_OPTION(T, m, "model", "DIR", "the checkpoint (or as an argument)")
/* Whether weights are looked through; NULL where it was not asked: the library's default. */
#define CLI_CHECK_OPTION(T, m)                                                                                         \
  CLI_OPTION(T, m, "check-tensors", "WHETHER",                                                                         \
             "refuse NaN and infinite weights (default: where they take at most 1 GiB) and checksums that differ "     \
             "(default: always)",                                                                                      \
             .choices = "yes|no")
wn_check cli_check_of(const char *given);
/* How matrices are held; NULL where it was not asked: auto. */
#define CLI_WEIGHTS_OPTION(T, m)                                                                                       \
  CLI_OPTION(                                                                                                          \
      T, m, "weights", "HELD",                                                                                         \
      "matrices in memory; auto: in the file's types, blocks in the processor's order; file: in the file alone, "      \
      "shared with other processes; bf16, bfloat16: float32 rounded to it (default: auto)",                            \
      .choices = "auto|file|bf16|bfloat16")
#define CLI_ADAPTER_OPTION(T, m)                                                                                       \
  CLI_OPTION(T, m, "adapter", "DIR", "low-rank updates that peft saved, added to the model's projections")
wn_weights cli_weights_of(const char *given);
wn_status cli_model_load(wn_context *ctx, const char *path, const char *check, const char *weights, const char *adapter,
                         wn_model **out);
/* The tokenizer that is given, else the one in the model's folder `dir`; refused where it has more tokens than the
 * model. 0, or the exit code after reporting; the caller destroys *out all the same. */
int cli_tokenizer_load(wn_context *ctx, const char *given, const char *dir, const wn_model *model, wn_tokenizer **out);
/* A warning where the data.json in a token file's folder says that it was made with another tokenizer than the model's,
 * so that its numbers mean other text: the vocabularies' sizes differ. file NULL: nothing to look at. */
void cli_tokens_check(wn_context *ctx, const char *file, const char *dir, const wn_model *model);
/* Loads (path or defaults, then sets). 0, or the exit code after reporting. */
int cli_recipe_load(wn_context *ctx, const char *path, const struct cli_list *sets, wn_recipe *out);

#endif
