/* --attention and --control: changes the attention of a loaded model. */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

int cli_control_tokens(const char *command, const char *text, const wn_tokenizer *tok, int32_t **ids, int *count) {
  *ids = NULL, *count = 0;
  if (!strcmp(text, "none")) return 0;
  const bool special = !strcmp(text, "special");
  const int32_t V = special && tok ? wn_tokenizer_vocab_size(tok) : 0;
  size_t room = (size_t)V + 1;
  for (const char *c = text; *c; c++) room += *c == ',';
  if (!(*ids = calloc(room, sizeof **ids))) return cli_error("out of memory");
  for (int32_t id = 0; id < V; id++)
    if (wn_tokenizer_is_control(tok, id)) (*ids)[(*count)++] = id;
  for (const char *at = text; !special;) {
    char *end;
    const long id = strtol(at, &end, 10);
    if (end == at || (*end && *end != ',') || id < 0 || id > INT32_MAX)
      return cli_usage_error(command, "--control \"%s\": expected special, none, or ids such as 0,1,2", text);
    (*ids)[(*count)++] = (int32_t)id;
    if (!*end) break;
    at = end + 1;
  }
  return 0;
}

int cli_attention_apply(wn_context *ctx, const char *command, struct cli_attention *a, wn_model *model,
                        const wn_tokenizer *tok) {
  int32_t *ids = NULL;
  int count = 0, code = 0;
  for (int i = 0; !code && i < a->sets.count; i++)
    if (wn_model_set_attention(ctx, model, a->sets.items[i]) != WN_OK)
      code = cli_error("--attention %s: %s", a->sets.items[i], wn_context_error(ctx));
  cli_list_clear(&a->sets);
  const wn_attention_config *attention = &wn_model_config_get(model)->attention;
  if (!code && !attention->threshold.enabled && strcmp(a->control, "special"))
    code = cli_usage_error(command, "--control needs a threshold, as --attention threshold.tau=0.9");
  if (!code && attention->threshold.enabled) {
    code = cli_control_tokens(command, a->control, tok, &ids, &count);
    if (!code && wn_model_set_control_tokens(ctx, model, ids, count) != WN_OK) code = cli_fail(ctx, WN_ERR_ARGUMENT);
  }
  free(ids);
  return code;
}
