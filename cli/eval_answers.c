#include "eval_answers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "estimate.h"
#include "files.h"
#include "signals.h"

int cli_answers_check(const char *command, const struct cli_answers *a) {
  const char *name = a->save                                  ? "save"
                     : a->grid                                ? "grid"
                     : a->together                            ? "together"
                     : a->max_tokens                          ? "max-tokens"
                     : a->stop.count                          ? "stop"
                     : a->chat                                ? "chat"
                     : a->dialogue.system || a->dialogue.name ? "chat, --system and --template"
                                                              : NULL;
  if (!a->file) return name ? cli_usage_error(command, "--%s: for --answers only", name) : CLI_GO;
  if (!a->chat && (a->dialogue.system || a->dialogue.name))
    return cli_usage_error(command, "--system and --template need --chat");
  if (a->grid && a->save) return cli_usage_error(command, "--save goes into the settings of --grid");
  for (int i = 0; i < a->stop.count; i++)
    if (!*a->stop.items[i]) return cli_usage_error(command, "--stop: expected a text");
  return cli_check_output(a->save, false) ? 2 : CLI_GO;
}

static void answers_print(const wn_answers_figures *f) {
  char score[64], kept[64];
  snprintf(score, sizeof score, isnan(f->score.error) ? "%.2f" : "%.2f +- %.2f", 100 * f->score.value,
           100 * f->score.error);
  snprintf(kept, sizeof kept, isnan(f->context_kept) ? "-" : "%.1f", f->context_kept);
  printf("%-20s %8" PRIu64 "  %-15s %9.1f %9s %9.1f %8.1f %10s %10s %8.3f %9.1f\n",
         !f->task   ? "all"
         : *f->task ? f->task
                    : "-",
         f->samples, score, f->prompt_tokens, kept, f->kept, f->answer_tokens, cli_bytes((double)f->cache_peak),
         cli_bytes((double)f->cache_final), f->first_seconds, f->tokens_per_second);
}

static json_t *answers_json(const wn_answers_figures *f) {
  json_t *j = json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "samples", (json_int_t)f->samples,
                        "prompt_tokens", cli_number(f->prompt_tokens), "answer_tokens", cli_number(f->answer_tokens),
                        "context_kept", cli_number(f->context_kept), "kept", cli_number(f->kept), "cache_peak_bytes",
                        (json_int_t)f->cache_peak, "cache_final_bytes", (json_int_t)f->cache_final, "first_seconds",
                        cli_number(f->first_seconds), "tokens_per_second", cli_number(f->tokens_per_second));
  if (j && f->task) json_object_set_new(j, "task", cli_text(f->task));
  if (j) cli_estimate_json_whole(j, "score", &f->score);
  return j;
}

static json_t *answers_result_json(const char *model, const wn_answers_result *r) {
  json_t *tasks = json_array();
  for (int i = 0; i < r->task_count; i++) json_array_append_new(tasks, answers_json(&r->tasks[i]));
  return json_pack("{s:o, s:o, s:o, s:I, s:I, s:f}", "model", cli_text(model), "all", answers_json(&r->all), "tasks",
                   tasks, "resumed", (json_int_t)r->resumed, "contexts_read", (json_int_t)r->contexts, "seconds",
                   r->seconds);
}

static int answers_report(const struct cli_common *common, const char *model, const wn_answers_result *r) {
  if (common->json) return cli_print_json(answers_result_json(model, r));
  printf("%-20s %8s  %-15s %9s %9s %9s %8s %10s %10s %8s %9s\n", "task", "samples", "score", "prompt", "context",
         "kept at", "answer", "cache", "cache", "first", "tokens/s");
  printf("%-20s %8s  %-15s %9s %9s %9s %8s %10s %10s %8s\n", "", "", "", "tokens", "kept", "the end", "tokens", "peak",
         "at the end", "token s");
  for (int i = 0; i < r->task_count; i++) answers_print(&r->tasks[i]);
  if (r->task_count > 1) answers_print(&r->all);
  return 0;
}

/* --- settings --- */

/* The settings of --grid. */
struct grid {
  json_t *file, *refused; /* refused: for each setting its refusal, or null */
  int count;              /* settings that are answered */
  int *entry;             /* [count] which ones of the file */
  wn_budgets *budgets;
  wn_answers_setting *settings;
  wn_answers_result *results;
};

static void grid_clear(struct grid *g) {
  for (int i = 0; i < g->count; i++) {
    wn_budgets_clear(&g->budgets[i]);
    wn_answers_result_clear(&g->results[i]);
  }
  json_decref(g->file);
  json_decref(g->refused);
  free(g->entry), free(g->budgets), free(g->settings), free(g->results);
}

/* Reads setting i, whose budgets refuse the model or not: WN_OK, or the refusal; *code is 1 if it is no setting. */
static wn_status grid_setting(wn_context *ctx, const char *path, const wn_model *model, struct grid *g, int i,
                              int *code) {
  json_int_t every = -1;
  const char *policy = NULL, *budgets = NULL, *when = NULL, *options = NULL, *save = NULL, *bad = NULL;
  wn_budgets *out = &g->budgets[g->count];
  json_error_t error;
  *code = json_unpack_ex(json_array_get(g->file, (size_t)i), &error, JSON_STRICT, "{s?s, s?s, s?s, s?I, s?s, s?s}",
                         "policy", &policy, "budgets", &budgets, "when", &when, "every", &every, "options", &options,
                         "save", &save)
              ? cli_error("%s: setting %d: %s", path, i, error.text)
              : 0;
  if (*code) return WN_OK;
  wn_budgets_init(out, &wn_model_config_get(model)->attention);
  g->entry[g->count] = i;
  g->settings[g->count] = (wn_answers_setting){.budgets = budgets ? out : NULL, .save = save};
  if (policy && !wn_budgets_named(policy, out) && wn_policy_find(NULL, policy, &out->policy) != WN_OK) bad = policy;
  int w = 0;
  while (when && w < WN_WHEN_COUNT && strcmp(when, wn_when_name((wn_when)w)) != 0) w++;
  if (w == WN_WHEN_COUNT) bad = when;
  if (bad) *code = cli_error("%s: setting %d: \"%s\" is not known", path, i, bad);
  if (!budgets && (policy || when || every >= 0 || options))
    *code = cli_error("%s: setting %d: policy, when, every and options need \"budgets\"", path, i);
  if (*code || !budgets) return WN_OK;
  out->when = (wn_when)w;
  if (every >= 0) out->every = every;
  wn_status status = options ? wn_budgets_set(ctx, options, out) : WN_OK;
  if (status == WN_OK) status = wn_budgets_parse(ctx, wn_model_config_get(model), budgets, out);
  if (status == WN_OK) status = wn_budgets_check(ctx, out, wn_model_config_get(model));
  return status;
}

static int grid_load(wn_context *ctx, const struct cli_common *common, const char *path, const wn_model *model,
                     struct grid *g) {
  json_error_t error;
  char *text;
  size_t bytes;
  int code = cli_read_text(ctx, path, &text, &bytes);
  if (code) return code;
  g->file = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  wn_text_free(text);
  if (!g->file) return cli_error("%s:%d: %s", path, error.line, error.text);
  const int n = (int)json_array_size(g->file);
  if (n < 1) return cli_error("%s: expected a list of settings", path);
  g->refused = json_array();
  g->entry = calloc((size_t)n, sizeof *g->entry);
  g->budgets = calloc((size_t)n, sizeof *g->budgets);
  g->settings = calloc((size_t)n, sizeof *g->settings);
  g->results = calloc((size_t)n, sizeof *g->results);
  if (!g->refused || !g->entry || !g->budgets || !g->settings || !g->results) return cli_error("out of memory");
  for (int i = 0; i < n && !code; i++) {
    const wn_status status = grid_setting(ctx, path, model, g, i, &code);
    json_array_append_new(g->refused, status == WN_OK ? json_null() : cli_text(wn_context_error(ctx)));
    if (code || status != WN_OK) wn_budgets_clear(&g->budgets[g->count]);
    if (status != WN_OK) cli_note(common, "%s: setting %d is left out: %s", path, i, wn_context_error(ctx));
    g->count += !code && status == WN_OK;
  }
  return !code && g->count == 0 ? cli_error("%s: every setting is refused", path) : code;
}

/* Every setting with its answers, or why it was refused. */
static json_t *grid_json(const char *model, const struct grid *g) {
  json_t *list = json_array();
  for (int i = 0, next = 0; i < (int)json_array_size(g->file); i++) {
    json_t *row = json_pack("{s:O}", "setting", json_array_get(g->file, (size_t)i));
    json_t *refused = json_array_get(g->refused, (size_t)i);
    if (json_is_null(refused))
      json_object_update_missing_new(row, answers_result_json(model, &g->results[next++]));
    else
      json_object_set(row, "refused", refused);
    json_array_append_new(list, row);
  }
  return list;
}

static int grid_report(const struct cli_common *common, const char *model, const struct grid *g) {
  if (common->json) return cli_print_json(grid_json(model, g));
  for (int i = 0; i < g->count; i++) {
    char *text = json_dumps(json_array_get(g->file, (size_t)g->entry[i]), JSON_COMPACT);
    printf("%s%s\n", i ? "\n" : "", text ? text : "");
    free(text);
    answers_report(common, model, &g->results[i]);
  }
  return 0;
}

static int answers_end(wn_context *ctx, wn_status status, const char *save) {
  if (status != WN_ERR_CANCELLED) return cli_fail(ctx, status);
  cli_error("interrupted%s%s", save ? "; the same command goes on from " : "", save ? save : "");
  return CLI_INTERRUPTED;
}

int cli_answers_run(wn_context *ctx, const struct cli_common *common, const struct cli_answers *answers,
                    const struct cli_loading *asked, const struct cli_loaded *in, int64_t limit) {
  struct cli_progress bar;
  struct cli_dialogue_choice choice = {0};
  wn_answers_result result = {0};
  struct grid grid = {0};
  int code = answers->chat ? cli_dialogue_choose(ctx, &answers->dialogue, asked->model, in->tok, &choice) : 0;
  if (!code && answers->grid) code = grid_load(ctx, common, answers->grid, in->model, &grid);
  if (code) {
    grid_clear(&grid);
    cli_dialogue_clear(&choice);
    return code;
  }
  cli_progress_begin(&bar, common, "answers", "answers");
  const wn_answers_options options = {.size = sizeof options,
                                      .tok = in->tok,
                                      .path = answers->file,
                                      .limit = limit,
                                      .max_tokens = answers->max_tokens,
                                      .stop = answers->stop.items,
                                      .stop_count = answers->stop.count,
                                      .chat = choice.chat,
                                      .system = choice.system,
                                      .budgets = in->budgets.layers > 0 ? &in->budgets : NULL,
                                      .cache = in->budgets.cache,
                                      .save = answers->save,
                                      .progress = cli_progress_on,
                                      .user = &bar,
                                      .together = answers->together ? answers->together
                                                  : answers->grid   ? 8
                                                                    : 1};
  cli_signals_begin(ctx);
  const wn_status status =
      answers->grid ? wn_answers_run_settings(ctx, in->model, &options, grid.settings, grid.count, grid.results)
                    : wn_answers_run(ctx, in->model, &options, &result);
  cli_signals_end();
  cli_progress_end(&bar);
  if (status != WN_OK)
    code = answers_end(ctx, status, answers->grid ? answers->grid : answers->save);
  else
    code = answers->grid ? grid_report(common, asked->model, &grid) : answers_report(common, asked->model, &result);
  grid_clear(&grid);
  wn_answers_result_clear(&result);
  cli_dialogue_clear(&choice);
  return code;
}
