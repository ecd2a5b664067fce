#include "recipe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "files.h"
#include "ui.h"

char *cli_recipe_keys(void) {
  wn_context *ctx = NULL;
  char *keys = NULL, *text = NULL;
  if (wn_context_create(NULL, &ctx) == WN_OK && wn_recipe_help(ctx, &keys) == WN_OK) {
    if (asprintf(&text, "Recipe keys, for --config (nested objects) and --set KEY=VALUE:\n%s%s", keys,
                 *keys && keys[strlen(keys) - 1] != '\n' ? "\n" : "") < 0)
      text = NULL;
    wn_text_free(keys);
  }
  wn_context_destroy(ctx);
  return text;
}

bool cli_join(char *out, size_t bytes, const char *dir, const char *name) {
  int n = snprintf(out, bytes, "%s/%s", dir, name);
  return n >= 0 && (size_t)n < bytes;
}

bool cli_exists(const char *path) {
  return access(path, F_OK) == 0;
}

int cli_model_missing(const struct cli_spec *spec) {
  return cli_usage_error(spec->command, "which checkpoint? Give --model DIR or the folder");
}

int cli_parse_model(const struct cli_spec *spec, int argc, char **argv, void *into, bool required, const char **model) {
  struct cli_list given = {0};
  int code = cli_parse(spec, argc, argv, into, &given);
  if (code == CLI_GO && *model && given.count) code = cli_usage_error(spec->command, "one checkpoint at a time");
  if (code == CLI_GO && given.count) *model = given.items[0];
  if (code == CLI_GO && required && !*model) code = cli_model_missing(spec);
  cli_list_clear(&given);
  return code;
}

wn_check cli_check_of(const char *given) {
  if (!given) return WN_CHECK_AUTO;
  return strcmp(given, "yes") == 0 ? WN_CHECK_YES : WN_CHECK_NO;
}

static wn_weights weights_of(const char *given) {
  if (!given || strcmp(given, "auto") == 0) return WN_WEIGHTS_AUTO;
  return strcmp(given, "file") == 0 ? WN_WEIGHTS_FILE : WN_WEIGHTS_BFLOAT16; /* bf16 or bfloat16 */
}

wn_status cli_model_load(wn_context *ctx, const char *path, const char *check, const char *weights, const char *adapter,
                         wn_model **out) {
  const wn_model_load_options options = {
      .size = sizeof options, .check_tensors = cli_check_of(check), .weights = weights_of(weights), .adapter = adapter};
  return wn_model_load(ctx, path, &options, out);
}

int cli_tokenizer_load(wn_context *ctx, const char *given, const char *dir, const wn_model *model, wn_tokenizer **out) {
  const char *from = given ? given : dir;
  const int64_t V = wn_model_config_get(model)->vocab_size;
  const wn_status status = wn_tokenizer_load(ctx, from, out);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (wn_tokenizer_vocab_size(*out) <= V) return 0;
  return cli_error("%s: the tokenizer has %d tokens, the model %s has %" PRId64, from, wn_tokenizer_vocab_size(*out),
                   dir, V);
}

int cli_tokenizer_to_repeat(wn_context *ctx, const wn_budgets *budgets, const char *dir, const wn_model *model,
                            wn_tokenizer **out) {
  const bool asks = !*out && dir && !strcmp(wn_method_name(budgets->method, NULL), "kvzip");
  return asks ? cli_tokenizer_load(ctx, NULL, dir, model, out) : 0;
}

void cli_tokens_check(wn_context *ctx, const char *file, const char *dir, const wn_model *model) {
  if (!file) return;
  const char *slash = strrchr(file, '/');
  char path[4096];
  if (snprintf(path, sizeof path, "%.*sdata.json", slash ? (int)(slash + 1 - file) : 0, file) >= (int)sizeof path)
    return;
  json_t *data = cli_read_json(path);
  const json_t *size = json_object_get(data, "vocab_size");
  const json_int_t theirs = json_is_integer(size) ? json_integer_value(size) : 0;
  json_int_t ours = wn_model_config_get(model)->vocab_size;
  json_decref(data);
  if (theirs == 0 || theirs == ours) return;
  /* A model may have more rows than its tokenizer has tokens. */
  wn_tokenizer *tok = NULL;
  if (wn_tokenizer_load(ctx, dir, &tok) == WN_OK) ours = wn_tokenizer_vocab_size(tok);
  wn_tokenizer_destroy(tok);
  if (theirs != ours)
    cli_warning("%s: the tokens are of a vocabulary of %" JSON_INTEGER_FORMAT ", those of %s of %" JSON_INTEGER_FORMAT
                "; its losses say nothing",
                path, theirs, dir, ours);
}

const char *cli_recipe_of(const char *given, const char *dir, char kept[CLI_PATH_BYTES]) {
  if (given) return given;
  return cli_join(kept, CLI_PATH_BYTES, dir, "recipe.json") && cli_exists(kept) ? kept : NULL;
}

int cli_recipe_load(wn_context *ctx, const char *path, const struct cli_list *sets, wn_recipe *out) {
  wn_status status = wn_recipe_load(ctx, path, sets->items, sets->count, out);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}
