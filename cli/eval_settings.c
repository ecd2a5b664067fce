/* The settings of winnow eval --task: budgets and policies, and how a log calls them. */
#include "eval_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "ui.h"

enum { BUDGETS_MAX = 64 };

/* What a log must agree on to be continued: the model, its attention, budgets and the cache's format. */
static char *settings_log_name(wn_context *ctx, const struct cli_loading *asked, const struct cli_loaded *in,
                               const wn_budgets *budgets, const char *spec) {
  char *config = NULL;
  json_t *j = json_object(), *parsed = NULL;
  json_object_set_new(j, "model", json_string(asked->model));
  json_object_set_new(j, "cache", json_string(wn_cache_format_name(in->budgets.cache)));
  if (wn_model_config_json(ctx, wn_model_config_get(in->model), &config) == WN_OK) parsed = json_loads(config, 0, NULL);
  wn_text_free(config);
  if (json_object_get(parsed, "attention")) json_object_set(j, "attention", json_object_get(parsed, "attention"));
  json_decref(parsed);
  if (budgets->layers > 0) {
    json_object_set_new(j, "policy", json_string(wn_policy_name(budgets->policy)));
    if (spec) json_object_set_new(j, "budgets", json_string(spec));
    if (asked->budgets.choices.options) json_object_set_new(j, "options", json_string(asked->budgets.choices.options));
    json_object_set_new(j, "sinks", json_integer(budgets->sinks));
    json_object_set_new(j, "recent", json_real(budgets->recent));
    json_object_set_new(j, "per_kv_head", json_boolean(budgets->per_kv_head));
  }
  char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
  json_decref(j);
  return text;
}

static int settings_error(void) {
  return cli_error("out of memory");
}

/* One more: K tokens in every layer under a policy; 0: no budgets. */
static int settings_add(wn_context *ctx, const struct cli_loading *asked, const struct cli_loaded *in, wn_policy policy,
                        int64_t K, struct cli_task_settings *out) {
  struct cli_task_setting *s = &out->all[out->count++];
  char spec[32];
  wn_budgets_init(&s->own);
  snprintf(s->name, sizeof s->name, "full");
  if (K > 0) {
    snprintf(spec, sizeof spec, "%" PRId64, K);
    snprintf(s->name, sizeof s->name, "%.40s-%" PRId64, wn_policy_name(policy), K);
    s->budgets = &s->own;
    s->own.policy = policy;
    s->own.cache = in->budgets.cache;
    if (cli_policy_choices_apply("winnow eval", &asked->budgets.choices, &s->own) != CLI_GO) return 2;
    wn_status status = wn_budgets_parse(ctx, wn_model_config_get(in->model), spec, &s->own);
    if (status == WN_OK) status = wn_budgets_check(ctx, &s->own, wn_model_config_get(in->model));
    if (status != WN_OK) return cli_fail(ctx, status);
  }
  s->log_name = settings_log_name(ctx, asked, in, &s->own, K > 0 ? spec : NULL);
  return s->log_name ? 0 : settings_error();
}

static int settings_read_sweep(wn_context *ctx, const struct cli_tasks *tasks, const struct cli_loading *asked,
                               const struct cli_loaded *in, struct cli_task_settings *out) {
  int64_t tokens[BUDGETS_MAX];
  wn_policy policies[WN_POLICY_MAX];
  int count, policy_count = cli_policies_suited(in->model, policies), code;
  code = cli_number_list("winnow eval", "sweep", tasks->sweep, "budgets", INT64_MAX, tokens, BUDGETS_MAX, &count);
  if (code == CLI_GO && tasks->policies)
    code = cli_policies_read("winnow eval", tasks->policies, policies, &policy_count);
  if (code != CLI_GO) return code;
  out->all = calloc((size_t)count * (size_t)policy_count + 1, sizeof *out->all);
  if (!out->all) return settings_error();
  code = settings_add(ctx, asked, in, policies[0], 0, out);
  for (int i = 0; i < count && !code; i++)
    for (int p = 0; p < policy_count && !code; p++) code = settings_add(ctx, asked, in, policies[p], tokens[i], out);
  return code == CLI_GO ? 0 : code;
}

int cli_task_settings_read(wn_context *ctx, const struct cli_tasks *tasks, const struct cli_loading *asked,
                           const struct cli_loaded *in, struct cli_task_settings *out) {
  if (tasks->sweep) return settings_read_sweep(ctx, tasks, asked, in, out);
  out->all = calloc(1, sizeof *out->all);
  if (!out->all) return settings_error();
  out->count = 1;
  out->all->budgets = in->budgets.layers > 0 ? &in->budgets : NULL;
  out->all->log_name = settings_log_name(ctx, asked, in, &in->budgets, asked->budgets.spec);
  return out->all->log_name ? 0 : settings_error();
}

void cli_task_settings_clear(struct cli_task_settings *settings) {
  for (int i = 0; i < settings->count; i++) {
    wn_budgets_clear(&settings->all[i].own);
    free(settings->all[i].log_name);
  }
  free(settings->all);
  *settings = (struct cli_task_settings){0};
}

int cli_sweep_check(const char *command, const struct cli_tasks *tasks, const struct cli_budgets *given) {
  struct cli_budgets each = *given;
  if (!tasks->sweep) return cli_budgets_check(command, given);
  if (given->spec || given->policy)
    return cli_usage_error(command, "--%s and --sweep exclude each other", given->spec ? "budgets" : "policy");
  if (given->cache_positions) return cli_usage_error(command, "--cache-positions goes with --budgets");
  each.spec = tasks->sweep; /* the policies' own choices have something to apply to */
  return cli_budgets_check(command, &each);
}
