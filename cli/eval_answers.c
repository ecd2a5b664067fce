#include "eval_answers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <winnow/answers.h>
#include "estimate.h"
#include "files.h"
#include "signals.h"
#include "ui.h"

int cli_answers_check(const char *command, const struct cli_answers *a) {
  const char *name = a->save                                  ? "save"
                     : a->max_tokens                          ? "max-tokens"
                     : a->stop.count                          ? "stop"
                     : a->chat                                ? "chat"
                     : a->dialogue.system || a->dialogue.name ? "chat, --system and --template"
                                                              : NULL;
  if (!a->file) return name ? cli_usage_error(command, "--%s: for --answers only", name) : CLI_GO;
  if (!a->chat && (a->dialogue.system || a->dialogue.name))
    return cli_usage_error(command, "--system and --template need --chat");
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

static int answers_report(const struct cli_common *common, const char *model, const wn_answers_result *r) {
  if (common->json) {
    json_t *tasks = json_array();
    for (int i = 0; i < r->task_count; i++) json_array_append_new(tasks, answers_json(&r->tasks[i]));
    return cli_print_json(json_pack("{s:o, s:o, s:o, s:I, s:I, s:f}", "model", cli_text(model), "all",
                                    answers_json(&r->all), "tasks", tasks, "resumed", (json_int_t)r->resumed,
                                    "contexts_read", (json_int_t)r->contexts, "seconds", r->seconds));
  }
  printf("%-20s %8s  %-15s %9s %9s %9s %8s %10s %10s %8s %9s\n", "task", "samples", "score", "prompt", "context",
         "kept at", "answer", "cache", "cache", "first", "tokens/s");
  printf("%-20s %8s  %-15s %9s %9s %9s %8s %10s %10s %8s\n", "", "", "", "tokens", "kept", "the end", "tokens", "peak",
         "at the end", "token s");
  for (int i = 0; i < r->task_count; i++) answers_print(&r->tasks[i]);
  if (r->task_count > 1) answers_print(&r->all);
  return 0;
}

int cli_answers_run(wn_context *ctx, const struct cli_common *common, const struct cli_answers *answers,
                    const struct cli_loading *asked, const struct cli_loaded *in, int64_t limit) {
  struct cli_progress bar;
  struct cli_dialogue_choice choice = {0};
  wn_answers_result result = {0};
  int code = answers->chat ? cli_dialogue_choose(ctx, &answers->dialogue, asked->model, in->tok, &choice) : 0;
  if (code) return code;
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
                                      .user = &bar};
  cli_signals_begin(ctx);
  const wn_status status = wn_answers_run(ctx, in->model, &options, &result);
  cli_signals_end();
  cli_progress_end(&bar);
  if (status == WN_ERR_CANCELLED) {
    cli_error("interrupted%s%s", answers->save ? "; the same command goes on from " : "",
              answers->save ? answers->save : "");
    code = CLI_INTERRUPTED;
  } else {
    code = status == WN_OK ? answers_report(common, asked->model, &result) : cli_fail(ctx, status);
  }
  wn_answers_result_clear(&result);
  cli_dialogue_clear(&choice);
  return code;
}
