#include "load.h"

#include "files.h"
#include "ui.h"

int cli_load(wn_context *ctx, const char *command, const struct cli_common *common, struct cli_loading *asked,
             bool needs_tokenizer, struct cli_loaded *out) {
  *out = (struct cli_loaded){0};
  const wn_status status = cli_model_load(ctx, asked->model, asked->check, asked->weights, asked->adapter, &out->model);
  if (status != WN_OK) return cli_fail(ctx, status);
  const wn_model_config *config = wn_model_config_get(out->model);
  int code = 0;
  if (needs_tokenizer) {
    code = cli_tokenizer_load(ctx, asked->tokenizer, asked->model, out->model, &out->tok);
  } else if (asked->attention.sets.count > 0 || config->attention.threshold.enabled) {
    if (wn_tokenizer_load(ctx, asked->tokenizer ? asked->tokenizer : asked->model, &out->tok) != WN_OK)
      cli_note(common, "no control tokens: %s", wn_context_error(ctx));
  }
  if (!code) code = cli_attention_apply(ctx, command, &asked->attention, out->model, out->tok);
  return code ? code : cli_budgets_load(ctx, &asked->budgets, out->model, &out->budgets);
}

void cli_loaded_clear(struct cli_loaded *loaded) {
  wn_budgets_clear(&loaded->budgets);
  wn_tokenizer_destroy(loaded->tok);
  wn_model_destroy(loaded->model);
  *loaded = (struct cli_loaded){0};
}

int cli_session_open(wn_context *ctx, const struct cli_loaded *loaded, int64_t capacity, wn_session **out) {
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = capacity,
                                      .budgets = &loaded->budgets,
                                      .cache = loaded->budgets.cache};
  const wn_status status = wn_session_create_with(ctx, loaded->model, &options, out);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

int cli_read_plain(wn_context *ctx, const wn_model *model, const char *path, char **out, size_t *bytes) {
  if (wn_model_config_get(model)->encoder.layers > 0)
    return cli_error("%s: the model has an encoder, for which a text alone has no inputs: --data", path);
  const int code = cli_read_text(ctx, path, out, bytes);
  return code || *bytes > 0 ? code : cli_error("%s: the file is empty", path);
}
