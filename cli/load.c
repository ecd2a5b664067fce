#include "load.h"

#include <string.h>
#include "files.h"

/* Loads a draft model, whose tokens must be the model's. */
static int load_draft(wn_context *ctx, const struct cli_loading *asked, struct cli_loaded *out) {
  wn_tokenizer *tok = NULL;
  size_t n = 0, other = 0;
  wn_status status = cli_model_load(ctx, asked->draft_model, asked->check, asked->weights, NULL, &out->draft);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (cli_tokenizer_load(ctx, NULL, asked->draft_model, out->draft, &tok)) return 1;
  const int32_t count = wn_tokenizer_vocab_size(out->tok), theirs = wn_tokenizer_vocab_size(tok);
  int code = 0;
  if (count != theirs || wn_model_config_get(out->model)->vocab_size != wn_model_config_get(out->draft)->vocab_size)
    code = cli_error("--draft-model %s has a vocabulary of %d tokens, %s of %d: expected the same", asked->draft_model,
                     theirs, asked->model, count);
  for (int32_t id = 0; id < count && !code; id++) {
    const char *a = wn_tokenizer_token_name(out->tok, id, &n), *b = wn_tokenizer_token_name(tok, id, &other);
    if (!a != !b || (a && (n != other || memcmp(a, b, n) != 0)))
      code = cli_error("--draft-model %s has another token %d than %s: expected the same vocabulary",
                       asked->draft_model, id, asked->model);
  }
  wn_tokenizer_destroy(tok);
  return code;
}

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
  if (!code && asked->draft_model) code = load_draft(ctx, asked, out);
  if (!code) code = cli_attention_apply(ctx, command, &asked->attention, out->model, out->tok);
  return code ? code : cli_budgets_load(ctx, &asked->budgets, out->model, &out->budgets);
}

void cli_loaded_clear(struct cli_loaded *loaded) {
  wn_budgets_clear(&loaded->budgets);
  wn_tokenizer_destroy(loaded->tok);
  wn_model_destroy(loaded->draft);
  wn_model_destroy(loaded->model);
  *loaded = (struct cli_loaded){0};
}

int cli_session_open(wn_context *ctx, const struct cli_loaded *loaded, int64_t capacity, wn_session **out) {
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = capacity,
                                      .budgets = &loaded->budgets,
                                      .cache = loaded->budgets.cache};
  const wn_status status = wn_session_create(ctx, loaded->model, &options, out);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

int cli_read_plain(wn_context *ctx, const wn_model *model, const char *path, char **out, size_t *bytes) {
  if (wn_model_config_get(model)->encoder.layers > 0)
    return cli_error("%s: the model has an encoder, for which a text alone has no inputs: --data", path);
  const int code = cli_read_text(ctx, path, out, bytes);
  return code || *bytes > 0 ? code : cli_error("%s: the file is empty", path);
}
