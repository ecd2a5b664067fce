/* The models of winnow serve: --model [NAME=]PATH, once or several times. */
#ifndef CLI_SERVE_MODELS_H
#define CLI_SERVE_MODELS_H

#include <winnow/serve.h>
#include "args.h"
#include "load.h"

struct serve_models {
  const struct cli_common *common;
  const struct cli_loading *load; /* how each is loaded, but for its path */
  const char **paths;             /* [count] borrowed */
  char **names;                   /* [count] */
  uint64_t *bytes;                /* [count] sizes of the weights' files */
  int count;
};
/* Reads the list. name: of --name, for one model; NULL: not given. 0, or the exit code after reporting. */
int serve_models_read(const char *command, const struct cli_list *given, const char *name, struct serve_models *out);
void serve_models_clear(struct serve_models *models); /* a zeroed struct is allowed */
/* of wn_server_models, with a struct serve_models */
wn_status serve_models_load(void *user, int model, wn_context **ctx, wn_model **out, wn_tokenizer **tok,
                            wn_budgets *budgets);

#endif
