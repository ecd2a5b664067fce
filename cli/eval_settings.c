/* The settings of winnow eval --task: budgets and policies. */
#include "eval_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUDGETS_MAX = 64 };

static int settings_error(void) {
  return cli_error("out of memory");
}

/* Adds a setting: K tokens in every layer under a policy; K 0: no budgets. */
static int settings_add(wn_context *ctx, const wn_budgets *choices, const struct cli_loaded *in, wn_policy policy,
                        int64_t K, struct cli_task_settings *out) {
  struct cli_task_setting *s = &out->all[out->count++];
  char spec[32];
  s->own = *choices; /* options only, no tokens */
  snprintf(s->name, sizeof s->name, "full");
  if (K > 0) {
    snprintf(spec, sizeof spec, "%" PRId64, K);
    snprintf(s->name, sizeof s->name, "%.40s-%" PRId64, wn_policy_name(policy), K);
    s->budgets = &s->own;
    s->own.policy = policy;
    s->own.cache = in->budgets.cache;
    wn_status status = wn_budgets_parse(ctx, wn_model_config_get(in->model), spec, &s->own);
    if (status == WN_OK) status = wn_budgets_move(ctx, wn_model_config_get(in->model), policy, &s->own);
    if (status != WN_OK) return cli_fail(ctx, status);
  }
  return 0;
}

static int settings_read_sweep(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks,
                               const struct cli_loading *asked, const struct cli_loaded *in,
                               struct cli_task_settings *out) {
  int64_t tokens[BUDGETS_MAX];
  wn_policy policies[WN_POLICY_MAX];
  wn_budgets choices;
  int count, policy_count = 0;
  wn_budgets_init(&choices, NULL);
  int code = cli_policy_choices_apply("winnow eval", &asked->budgets.choices, &choices);
  if (code == CLI_GO && !tasks->policies)
    policy_count = cli_policies_suited(ctx, common, in->model, &choices, policies);
  if (code == CLI_GO)
    code = cli_number_list("winnow eval", "sweep", tasks->sweep, "budgets", INT64_MAX, tokens, BUDGETS_MAX, &count);
  if (code == CLI_GO && tasks->policies)
    code = cli_policies_read("winnow eval", tasks->policies, "", policies, &policy_count);
  if (code != CLI_GO) return code;
  out->all = calloc((size_t)count * (size_t)policy_count + 1, sizeof *out->all);
  if (!out->all) return settings_error();
  code = settings_add(ctx, &choices, in, policies[0], 0, out);
  for (int i = 0; i < count && !code; i++)
    for (int p = 0; p < policy_count && !code; p++) code = settings_add(ctx, &choices, in, policies[p], tokens[i], out);
  return code == CLI_GO ? 0 : code;
}

int cli_task_settings_read(wn_context *ctx, const struct cli_common *common, const struct cli_tasks *tasks,
                           const struct cli_loading *asked, const struct cli_loaded *in,
                           struct cli_task_settings *out) {
  if (tasks->sweep) return settings_read_sweep(ctx, common, tasks, asked, in, out);
  out->all = calloc(1, sizeof *out->all);
  if (!out->all) return settings_error();
  out->count = 1;
  out->all->budgets = in->budgets.layers > 0 ? &in->budgets : NULL;
  return 0;
}

void cli_task_settings_clear(struct cli_task_settings *settings) {
  for (int i = 0; i < settings->count; i++) wn_budgets_clear(&settings->all[i].own);
  free(settings->all);
  *settings = (struct cli_task_settings){0};
}

int cli_sweep_check(const char *command, const struct cli_tasks *tasks, const struct cli_budgets *given) {
  struct cli_budgets each = *given;
  if (!tasks->sweep) return cli_budgets_check(command, given);
  if (given->spec || given->policy)
    return cli_usage_error(command, "--%s and --sweep exclude each other", given->spec ? "budgets" : "policy");
  if (given->cache_positions) return cli_usage_error(command, "--cache-positions goes with --budgets");
  each.spec = tasks->sweep; /* so that the policies' options have budgets to apply to */
  return cli_budgets_check(command, &each);
}
