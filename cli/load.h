/* Loading a model for commands that run it on text: model, tokenizer, changed attention, budgets. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include "attention.h"
#include "budgets.h"
#include "recipe.h"
#include "sampling.h"

/* The options. */
struct cli_loading {
  const char *model, *tokenizer; /* tokenizer NULL: the model's own */
  const char *check, *weights, *adapter;
  const char *draft_model; /* NULL: none */
  struct cli_attention attention;
  struct cli_budgets budgets;
};
#define CLI_LOADING_DEFAULTS                                                                                           \
  { .attention = CLI_ATTENTION_DEFAULTS, .budgets = CLI_BUDGETS_DEFAULTS }

struct cli_loaded {
  wn_model *model;
  wn_tokenizer *tok;  /* may be NULL, unless it was needed */
  wn_model *draft;    /* NULL: none */
  wn_budgets budgets; /* layers 0: none */
};
/* needs_tokenizer false: the tokenizer is loaded only for a threshold's control tokens, with a note if there is none.
 * 0, or the exit code after reporting. Call cli_loaded_clear in either case. */
int cli_load(wn_context *ctx, const char *command, const struct cli_common *common, struct cli_loading *asked,
             bool needs_tokenizer, struct cli_loaded *out);
void cli_loaded_clear(struct cli_loaded *loaded);
/* Opens a session of one sequence, with the loaded budgets and cache format. 0, or the exit code after reporting. */
int cli_session_open(wn_context *ctx, const struct cli_loaded *loaded, int64_t capacity, wn_session **out);

/* cli_read_text for a text that a decoder reads. Refuses an empty text, and a model with an encoder, which would have
 * no inputs. */
int cli_read_plain(wn_context *ctx, const wn_model *model, const char *path, char **out, size_t *bytes);

#endif
