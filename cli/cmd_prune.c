/* winnow prune: budgets found by search; policies compared. */
#include "cmd.h"
#include "prune.h"

int prune_document_token(wn_context *ctx, const char *model, int64_t given, int32_t *out) {
  *out = (int32_t)given;
  if (given >= 0) return 0;
  wn_tokenizer *tok = NULL;
  wn_status status = wn_tokenizer_load(ctx, model, &tok);
  if (status == WN_OK) *out = wn_tokenizer_bos(tok);
  wn_tokenizer_destroy(tok);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (*out < 0)
    return cli_usage_error("winnow prune", "--long-only: the tokenizer of %s marks no documents: give --document-token",
                           model);
  return 0;
}

int cmd_prune(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"search", "budgets for every layer, found greedily", prune_search},
      {"compare", "all eviction policies at the same budgets", prune_compare}};
  return cli_dispatch("winnow prune", "Context pruning: how many tokens each layer needs, and which are evicted first.",
                      commands, CLI_COUNT(commands), argc, argv);
}
