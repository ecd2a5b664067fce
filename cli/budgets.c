/* Budgets from options. */
#include "budgets.h"

#include <string.h>
#include "ui.h"

int cli_budgets_check(const char *command, const struct cli_budgets *given) {
  if (!given->spec && (given->policy || given->per_kv_head || given->cache_positions))
    return cli_usage_error(command, "--%s needs --budgets",
                           given->policy        ? "policy"
                           : given->per_kv_head ? "per-kv-head"
                                                : "cache-positions");
  return CLI_GO;
}

static void choose_policy(const char *name, wn_budgets *out) {
  for (int p = 0; name && p < WN_POLICY_COUNT; p++)
    if (!strcmp(wn_policy_name((wn_policy)p), name)) out->policy = (wn_policy)p;
}

int cli_budgets_load(wn_context *ctx, const struct cli_budgets *given, const wn_model_config *config, wn_budgets *out) {
  wn_budgets_init(out);
  if (!given->spec) return 0;
  out->sinks = given->sinks;
  out->recent = given->recent;
  out->seed = given->seed;
  out->per_kv_head = given->per_kv_head;
  out->cache_positions = given->cache_positions;
  choose_policy(given->policy, out); /* bytes are counted for it */
  wn_status status = wn_budgets_parse(ctx, config, given->spec, out);
  choose_policy(given->policy, out);
  if (status == WN_OK) status = wn_budgets_check(ctx, out, config);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}
