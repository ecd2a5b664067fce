/* Budgets of the key-value cache from options. */
#include "budgets.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ui.h"

int cli_budgets_check(const char *command, const struct cli_budgets *given) {
  wn_budgets tried;
  wn_budgets_init(&tried, NULL);
  if (given->spec) return cli_policy_choices_apply(command, &given->choices, &tried);
  const char *idle = given->policy                 ? "policy"
                     : given->choices.options      ? "policy-options"
                     : given->choices.per_kv_head  ? "per-kv-head"
                     : given->cache_positions      ? "cache-positions"
                     : given->choices.sinks_given  ? "sinks"
                     : given->choices.recent_given ? "recent"
                     : given->choices.seed_given   ? "random-seed"
                     : given->choices.when         ? "when"
                     : given->choices.every_given  ? "every"
                                                   : NULL;
  return idle ? cli_usage_error(command, "--%s needs --budgets", idle) : CLI_GO;
}

enum { POLICIES_BYTES = 1024 };
char cli_policy_names[2 * POLICIES_BYTES];
char cli_policies[POLICIES_BYTES], cli_policies_help[POLICIES_BYTES + 80], cli_policy_options_help[POLICIES_BYTES];

/* "keys of budgets.json: h2o: recent; streaming: sinks, ..." */
static void budgets_policy_options_init(void) {
  size_t n = (size_t)snprintf(cli_policy_options_help, POLICIES_BYTES, "keys of budgets.json");
  for (int p = 0; p < wn_policy_count(); p++) {
    const char *key;
    for (int i = 0; n < POLICIES_BYTES && (key = wn_policy_option(p, i, NULL)); i++)
      n += (size_t)snprintf(cli_policy_options_help + n, POLICIES_BYTES - n, "%s%s%s%s", i > 0 ? ", " : "; ",
                            i > 0 ? "" : wn_policy_name(p), i > 0 ? "" : ": ", key);
  }
}

void cli_policies_init(void) {
  cli_policies[0] = 0;
  for (int p = 0; p < wn_policy_count(); p++) {
    const size_t n = strlen(cli_policies);
    snprintf(cli_policies + n, POLICIES_BYTES - n, "%s%s", p ? "|" : "", wn_policy_name(p));
  }
  strcpy(cli_policy_names, cli_policies);
  for (int i = 0; wn_budgets_named_at(i); i++) {
    const size_t n = strlen(cli_policy_names);
    snprintf(cli_policy_names + n, sizeof cli_policy_names - n, "|%s", wn_budgets_named_at(i));
  }
  budgets_policy_options_init();
  snprintf(cli_policies_help, sizeof cli_policies_help, "all that the model supports, or names separated by commas: %s",
           cli_policies);
}

bool cli_policy_named(const char *name, size_t bytes, wn_policy *out) {
  char text[64];
  if (bytes >= sizeof text) return false;
  memcpy(text, name, bytes);
  text[bytes] = 0;
  return wn_policy_find(NULL, text, out) == WN_OK;
}

void cli_policy_set(const char *name, wn_budgets *out) {
  if (!wn_budgets_named(name, out)) (void)wn_policy_find(NULL, name, &out->policy);
}

int cli_policies_read(const char *command, const char *text, const char *others, wn_policy list[WN_POLICY_MAX],
                      int *count) {
  *count = 0;
  for (const char *at = text;; at++) {
    const int n = (int)strcspn(at, ",");
    wn_policy policy;
    if (!cli_policy_named(at, (size_t)n, &policy))
      return cli_usage_error(command, "--policies \"%s\": \"%.*s\" is no policy; expected %snames of %s with commas",
                             text, n, at, others, cli_policies);
    for (int i = 0; i < *count; i++)
      if (list[i] == policy) return cli_usage_error(command, "--policies \"%s\": %.*s is listed twice", text, n, at);
    list[(*count)++] = policy;
    at += n;
    if (!*at) return CLI_GO;
  }
}

int cli_policy_choices_apply(const char *command, const struct cli_policy_choices *choices, wn_budgets *budgets) {
  const struct cli_policy_choices untouched = CLI_POLICY_CHOICES_DEFAULTS;
  budgets->sinks = untouched.sinks;
  budgets->recent = untouched.recent;
  budgets->seed = untouched.seed;
  budgets->per_kv_head = untouched.per_kv_head;
  return cli_policy_choices_over(command, choices, budgets);
}

int cli_policy_choices_over(const char *command, const struct cli_policy_choices *choices, wn_budgets *budgets) {
  if (choices->sinks_given) budgets->sinks = choices->sinks;
  if (choices->recent_given) budgets->recent = choices->recent;
  if (choices->seed_given) budgets->seed = choices->seed;
  if (choices->per_kv_head) budgets->per_kv_head = true;
  for (int w = 0; choices->when && w < WN_WHEN_COUNT; w++)
    if (!strcmp(choices->when, wn_when_name((wn_when)w))) budgets->when = (wn_when)w;
  if (choices->every_given) budgets->every = choices->every;
  if (!choices->options) return CLI_GO;
  wn_context *ctx;
  int code = CLI_GO;
  const wn_status status = wn_context_create(NULL, &ctx);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (wn_budgets_set(ctx, choices->options, budgets) != WN_OK)
    code = cli_usage_error(command, "--policy-options %s: %s", choices->options, wn_context_error(ctx));
  wn_context_destroy(ctx);
  return code;
}

bool cli_policy_choices_text(const struct cli_policy_choices *choices, char *out, size_t bytes) {
  size_t n = 0;
  *out = 0;
  if (choices->sinks_given) n += (size_t)snprintf(out, bytes, "sinks=%" PRId64 ",", choices->sinks);
  if (choices->recent_given) n += (size_t)snprintf(out + n, bytes - n, "recent=%.17g,", choices->recent);
  if (choices->seed_given) n += (size_t)snprintf(out + n, bytes - n, "seed=%" PRIu64 ",", choices->seed);
  if (choices->when) n += (size_t)snprintf(out + n, bytes - n, "when=%s,", choices->when);
  if (choices->every_given) n += (size_t)snprintf(out + n, bytes - n, "every=%" PRId64 ",", choices->every);
  if (choices->options) n += (size_t)snprintf(out + n, bytes - n, "%s", choices->options);
  if (n > 0 && n < bytes && out[n - 1] == ',') out[n - 1] = 0;
  return n > 0;
}

int cli_policies_suited(wn_context *ctx, const struct cli_common *common, const wn_model *model,
                        const wn_budgets *choices, wn_policy list[WN_POLICY_MAX]) {
  const wn_model_config *config = wn_model_config_get(model);
  int count = 0;
  for (int p = 0; p < wn_policy_count(); p++) {
    wn_budgets budgets = *choices;
    if (!wn_policy_suits((wn_policy)p, &config->attention)) continue;
    if (wn_budgets_move(ctx, config, (wn_policy)p, &budgets) == WN_OK)
      list[count++] = (wn_policy)p;
    else
      cli_note(common, "%s is left out: %s", wn_policy_name((wn_policy)p), wn_context_error(ctx));
  }
  return count;
}

static wn_cache_format budgets_format_of(wn_context *ctx, const struct cli_budgets *given, const wn_model *model,
                                         const wn_budgets *budgets) {
  wn_cache_format format = WN_CACHE_AUTO;
  for (int f = 0; f < WN_CACHE_COUNT; f++)
    if (!strcmp(given->cache, wn_cache_format_name((wn_cache_format)f))) format = (wn_cache_format)f;
  return wn_cache_format_resolve(ctx, model, budgets, format);
}

int cli_budgets_load(wn_context *ctx, const struct cli_budgets *given, const wn_model *model, wn_budgets *out) {
  const wn_model_config *config = wn_model_config_get(model);
  wn_budgets_init(out, &config->attention);
  out->cache_positions = given->cache_positions;
  out->cache = budgets_format_of(ctx, given, model, out);
  if (!given->spec) return 0;
  if (cli_policy_choices_apply("winnow", &given->choices, out)) return 2;
  if (given->policy) cli_policy_set(given->policy, out); /* budgets in bytes depend on the policy */
  wn_status status = wn_budgets_parse(ctx, config, given->spec, out);
  if (given->policy) cli_policy_set(given->policy, out); /* over a file's; and options over what a name stands for */
  if (status == WN_OK && cli_policy_choices_over("winnow", &given->choices, out)) return 2;
  if (given->cache_positions) out->cache_positions = true;
  if (status == WN_OK) status = wn_budgets_check(ctx, out, config);
  out->cache =
      budgets_format_of(ctx, given, model, out); /* the format depends on cache_positions, which a file may set */
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}
