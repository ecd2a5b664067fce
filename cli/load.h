/* A model as the commands that run one on text take it: its files, its tokenizer, another attention, budgets. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include "attention.h"
#include "budgets.h"
#include "recipe.h"
#include "sampling.h"

/* What was asked for. */
struct cli_loading {
  const char *model, *tokenizer; /* tokenizer NULL: the model's own */
  const char *check, *weights, *adapter;
  struct cli_attention attention;
  struct cli_budgets budgets;
};
#define CLI_LOADING_DEFAULTS                                                                                           \
  { .attention = CLI_ATTENTION_DEFAULTS, .budgets = CLI_BUDGETS_DEFAULTS }

struct cli_loaded {
  wn_model *model;
  wn_tokenizer *tok;  /* may be NULL, unless it was needed */
  wn_budgets budgets; /* layers 0: none */
};
/* needs_tokenizer false: it is loaded for a threshold's control tokens alone, with a note where there is none. 0, or
 * the exit code after reporting; cli_loaded_clear the result all the same. */
int cli_load(wn_context *ctx, const char *command, const struct cli_common *common, struct cli_loading *asked,
             bool needs_tokenizer, struct cli_loaded *out);
void cli_loaded_clear(struct cli_loaded *loaded);
/* A session of one sequence with its budgets and its cache's format. 0, or the exit code after reporting. */
int cli_session_open(wn_context *ctx, const struct cli_loaded *loaded, int64_t capacity, wn_session **out);

/* A text that a model alone works on: not empty, and no model with an encoder, which has no inputs then. As
 * cli_read_text. */
int cli_read_plain(wn_context *ctx, const wn_model *model, const char *path, char **out, size_t *bytes);

#endif
