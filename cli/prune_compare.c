/* winnow prune compare: every policy on every checkpoint, on the same data at the same budgets. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <winnow/report.h>
#include <winnow/task.h>
#include "estimate.h"
#include "eval_tasks.h"
#include "prune.h"
#include "files.h"
#include "signals.h"
#include "together.h"

enum { SUBJECTS = 3, BUDGETS_MAX = 64 };
static const char *const subject_names[SUBJECTS] = {"standard", "selective", "selective + L_mem"};

struct compare {
  struct cli_common common;
  struct cli_policy_choices choices;
  struct cli_rows rows;
  wn_prune_compare_options options;
  const char *dirs[SUBJECTS], *searches[SUBJECTS], *budgets, *policies, *labels, *out, *task;
  char names[SUBJECTS][64];
  /* For each subject's search: the largest distance, in tokens per layer, between a column and a point shown in it. */
  double reach[SUBJECTS];
  int64_t tokens[BUDGETS_MAX];
  wn_policy chosen[WN_POLICY_MAX];
  const char *tasks[WN_PRUNE_TASKS];
};

/* Reads the checkpoints' names: from --labels if given, one for each checkpoint. */
static int compare_read_labels(struct compare *c) {
  const char *at = c->labels;
  for (int i = 0; i < SUBJECTS; i++) {
    if (!c->dirs[i]) continue;
    const char *name = at ? at : subject_names[i];
    const size_t n = strcspn(name, ",");
    if (n == 0 || n >= sizeof c->names[i])
      return cli_usage_error("winnow prune compare",
                             "--labels: \"%s\" must have a short name for each checkpoint given", c->labels);
    memcpy(c->names[i], name, n);
    char shown[4 * sizeof c->names[i]];
    wn_line_escape(c->names[i], shown, sizeof shown);
    if (strcmp(shown, c->names[i]) != 0) /* result files could not hold this name */
      return cli_usage_error("winnow prune compare", "--labels: \"%s\" is not a line of UTF-8", shown);
    if (at) at += n + (at[n] == ',');
  }
  return at && *at ? cli_usage_error("winnow prune compare",
                                     "--labels: \"%s\" has more names than there are checkpoints", c->labels)
                   : 0;
}

/* The result for a column. Searched budgets match few columns exactly, so the nearest one is taken. */
static const wn_prune_row *compare_find_row(const struct compare *c, const wn_prune_comparison *r, int subject,
                                            int policy, bool searched, int64_t tokens) {
  const double want = tokens < r->context ? (double)tokens : (double)r->context;
  const wn_prune_row *best = NULL;
  for (int64_t i = 0; i < r->count; i++) {
    const wn_prune_row *row = &r->results[i];
    if (row->subject != subject || row->policy != policy || row->searched != searched) continue;
    const double away = policy < 0 ? 0 : fabs(row->per_layer - want);
    if (away <= (searched ? c->reach[subject] : 0) && (!best || away < fabs(best->per_layer - want))) best = row;
  }
  return best;
}

/* The quality that a table shows: a task's accuracy, or the perplexity if task is below 0. */
static double compare_quality(const wn_prune_row *row, int task) {
  return task < 0 ? exp(row->loss) : 100 * row->scores[task].accuracy;
}

static void compare_print_line(const struct compare *c, const wn_prune_comparison *r, int task, int subject, int policy,
                               bool searched) {
  char name[64];
  bool any = false;
  for (int i = 0; i < c->options.token_count; i++)
    any = any || compare_find_row(c, r, subject, policy, searched, c->tokens[i]);
  if (!any) return;
  snprintf(name, sizeof name, "%s%s", wn_policy_name((wn_policy)policy), searched ? ", searched" : "");
  printf("%-18s %-21s", r->names[subject], name);
  for (int i = 0; i < c->options.token_count; i++) {
    const wn_prune_row *row = compare_find_row(c, r, subject, policy, searched, c->tokens[i]);
    if (row)
      printf(task < 0 ? " %9.3f" : " %9.2f", compare_quality(row, task));
    else
      printf(" %9s", "-");
  }
  putchar('\n');
}

/* The differences from the first model without budgets, with what their intervals say. */
static void compare_print_differences(const wn_prune_comparison *r) {
  char rows[64], error[2][96];
  cli_estimate_rows((uint64_t)r->rows, r->unit, rows);
  printf("\nloss, its standard error over %s%s; difference from %s without budgets, paired row by row, with its 95%% "
         "interval; equal: the interval lies within %g nats\n",
         rows, strcmp(r->unit, "block") ? "" : " (taken as independent)", r->names[0], r->margin);
  for (int64_t i = 0; i < r->count; i++) {
    const wn_prune_row *row = &r->results[i];
    char name[64];
    snprintf(name, sizeof name, "%s%s", row->policy < 0 ? "none" : wn_policy_name((wn_policy)row->policy),
             row->searched ? ", searched" : "");
    printf("%-18s %-21s %7.1f %9.4f%s", r->names[row->subject], name, row->per_layer, row->loss,
           cli_estimate_error(&row->loss_rows, 1, 4, error[0]));
    if (i > 0)
      printf("  %+.4f%s %s", row->difference.value, cli_estimate_interval(&row->difference, 4, error[1]),
             wn_verdict_name(row->verdict));
    putchar('\n');
  }
  for (int64_t i = 0; i < r->saving_count; i++) {
    const wn_prune_saving *s = &r->savings[i];
    double most = 1; /* of a line that passes that loss nowhere */
    for (int64_t k = 0; k < r->count; k++) {
      const wn_prune_row *row = &r->results[k];
      if (row->subject == s->subject && row->policy == s->policy && row->searched == s->searched)
        most = fmax(most, row->saving);
    }
    printf("%s%-18s %s%s: %s%.2fx less memory at the loss of %s without budgets", i ? "" : "\n", r->names[s->subject],
           wn_policy_name((wn_policy)s->policy), s->searched ? ", searched" : "",
           s->saving.value < most ? "" : "at least ", s->saving.value, r->names[0]);
    if (isfinite(s->saving.low))
      printf(" (95%%: %.2f to %.2f%s)", s->saving.low, s->saving.high, s->open > 0.025 ? " or more" : "");
    putchar('\n');
  }
}

static void compare_print_table(const struct compare *c, const wn_prune_comparison *r, int task) {
  double error = 0;
  for (int64_t i = 0; i < r->count && task >= 0; i++) error = fmax(error, r->results[i].scores[task].error);
  if (task < 0)
    printf("perplexity on %" PRIu64 " tokens of %s, context %" PRId64 "; columns: tokens kept per layer\n", r->counted,
           c->options.data.path, r->context);
  else
    printf("\n%s, accuracy in %% (%s, standard error at most %.2f); columns: tokens kept per layer\n", r->tasks[task],
           wn_task_metric_name(wn_task_chief_metric(wn_task_at(wn_task_find(r->tasks[task])))), 100 * error);
  printf("%-18s %-21s", "model", "policy");
  for (int i = 0; i < c->options.token_count; i++) printf(" %9" PRId64, c->tokens[i]);
  printf(" %9s\n", "unpruned");
  for (int s = 0; s < r->subjects; s++) {
    const wn_prune_row *whole = compare_find_row(c, r, s, -1, false, 0);
    printf("%-18s %-21s%*s %9.3f\n", r->names[s], "none", 10 * c->options.token_count, "",
           whole ? compare_quality(whole, task) : NAN);
    for (int p = 0; p < wn_policy_count(); p++) {
      compare_print_line(c, r, task, s, p, false);
      compare_print_line(c, r, task, s, p, true);
    }
    const wn_prune_row *end = NULL; /* the result with the fewest tokens of a search */
    for (int64_t i = 0; i < r->count; i++)
      if (r->results[i].subject == s && r->results[i].searched && (!end || r->results[i].total < end->total))
        end = &r->results[i];
    if (end && task < 0)
      printf("%-18s searched to its end: %.5g tokens per layer, %.2fx less memory, perplexity %.3f\n", r->names[s],
             end->per_layer, end->saving, exp(end->loss));
  }
}

static int compare_save_comparison(wn_context *ctx, const struct compare *c, const wn_prune_comparison *r) {
  char path[CLI_PATH_BYTES], title[256];
  wn_status status = WN_OK;
  snprintf(title, sizeof title, "Perplexity by tokens kept per layer, context %" PRId64, r->context);
  if (cli_join(path, sizeof path, c->out, "compare.json")) status = wn_prune_comparison_save_json(ctx, r, path);
  if (status == WN_OK && cli_join(path, sizeof path, c->out, "compare.csv"))
    status = wn_prune_comparison_save_csv(ctx, r, path);
  if (status == WN_OK && cli_join(path, sizeof path, c->out, "compare.svg"))
    status = wn_prune_comparison_save_svg(ctx, r, title, path);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

static int compare_print_comparison(const struct compare *c, const wn_prune_comparison *r) {
  char path[CLI_PATH_BYTES];
  if (c->common.json && cli_join(path, sizeof path, c->out, "compare.json")) return cli_print_json(cli_read_json(path));
  for (int task = -1; task < r->task_count; task++) compare_print_table(c, r, task);
  compare_print_differences(r);
  return 0;
}

/* Chooses all policies that suit at least one of the models with the given options. */
static void compare_choose_policies(wn_context *ctx, struct compare *c, const wn_prune_subject *subjects, int n,
                                    const wn_budgets *choices) {
  bool suits[WN_POLICY_MAX] = {false};
  for (int i = 0; i < n; i++) {
    wn_policy list[WN_POLICY_MAX];
    const int count = cli_policies_suited(ctx, &c->common, subjects[i].model, choices, list);
    for (int p = 0; p < count; p++) suits[list[p]] = true;
  }
  for (int p = 0; p < wn_policy_count(); p++)
    if (suits[p]) c->chosen[c->options.policy_count++] = (wn_policy)p;
}

static int run_compare(wn_context *ctx, struct compare *c) {
  wn_prune_compare_options *o = &c->options;
  wn_prune_subject subjects[SUBJECTS] = {0};
  wn_prune_curve curves[SUBJECTS] = {0};
  wn_model *models[SUBJECTS] = {0};
  wn_tokenizer *toks[SUBJECTS] = {0};
  wn_status status = WN_OK;
  int n = 0, code = 0;
  if (cli_policy_choices_apply("winnow prune compare", &c->choices, &o->budgets)) return 2;
  o->data.long_only = c->rows.long_only;
  for (int i = 0; i < SUBJECTS && status == WN_OK && !code; i++) {
    if (!c->dirs[i]) continue;
    if (c->rows.long_only && n == 0) o->data.document_token = cli_rows_token(ctx, &c->rows, NULL, c->dirs[i]);
    status = wn_model_load(ctx, c->dirs[i], NULL, &models[i]);
    char path[CLI_PATH_BYTES];
    if (status == WN_OK && c->searches[i] && cli_join(path, sizeof path, c->searches[i], "search.json"))
      status = wn_prune_curve_load(ctx, path, &curves[i]);
    if (status == WN_OK) cli_tokens_check(ctx, c->options.data.path, c->dirs[i], models[i]);
    if (status == WN_OK && c->options.task_count) code = cli_tokenizer_load(ctx, NULL, c->dirs[i], models[i], &toks[i]);
    c->reach[n] = (double)curves[i].step / (double)(curves[i].layers > 0 ? curves[i].layers : 1);
    subjects[n++] = (wn_prune_subject){
        .name = c->names[i], .model = models[i], .searched = c->searches[i] ? &curves[i] : NULL, .tok = toks[i]};
  }
  if (status == WN_OK && !c->policies) compare_choose_policies(ctx, c, subjects, n, &o->budgets);
  o->subjects = subjects;
  o->subject_count = n;
  o->tokens = c->tokens;
  o->policies = c->chosen;
  o->tasks = c->tasks;
  wn_prune_comparison result = {0};
  if (!code && status == WN_OK) {
    struct cli_progress bar;
    cli_progress_begin(&bar, &c->common, "compare", "evaluations");
    cli_signals_begin(ctx);
    status = wn_prune_compare(ctx, o, cli_progress_on, &bar, &result);
    cli_signals_end();
    cli_progress_end(&bar);
  }
  if (status != WN_OK) code = cli_fail(ctx, status);
  const bool speaks = cli_together_speaks(ctx);
  if (!code && speaks) code = compare_save_comparison(ctx, c, &result);
  if (!code && speaks) code = compare_print_comparison(c, &result);
  wn_prune_comparison_clear(&result);
  for (int i = 0; i < SUBJECTS; i++) {
    wn_prune_curve_clear(&curves[i]);
    wn_tokenizer_destroy(toks[i]);
    wn_model_destroy(models[i]);
  }
  return code;
}

static const struct cli_option compare_options[] = {
    CLI_OPTION(struct compare, dirs[0], "standard", "DIR", "a checkpoint with standard attention"),
    CLI_OPTION(struct compare, dirs[1], "selective", "DIR", "a checkpoint with selective attention"),
    CLI_OPTION(struct compare, dirs[2], "mem", "DIR", "a checkpoint also trained with L_mem"),
    CLI_OPTION(struct compare, searches[0], "standard-search", "DIR",
               "its `winnow prune search`, whose budgets are measured too"),
    CLI_OPTION(struct compare, searches[1], "selective-search", "DIR", "the same for --selective"),
    CLI_OPTION(struct compare, searches[2], "mem-search", "DIR", "the same for --mem"),
    CLI_OPTION(struct compare, labels, "labels", "NAME,...", "names of the given checkpoints, in this order"),
    CLI_OPTION(struct compare, options.data.path, "data", "FILE", "a token file", .required = true),
    CLI_OPTION(struct compare, options.data.rows, "rows", "N", "the most rows to take from it, spread evenly; 0: all",
               .min = 0, .max = 1e12),
    CLI_OPTION(struct compare, options.context, "context", "N", "tokens per row; 0: the shortest context of the models",
               .min = 0, .max = 1 << 24),
    CLI_OPTION(struct compare, budgets, "budgets", "K,...", "budgets, the same in every layer"),
    CLI_OPTION(struct compare, policies, "policies", "NAME,...",
               "the policies; selective only on models that have it; else all"),
    CLI_OPTION(struct compare, task, "task", "NAME,...",
               "downstream tasks to answer under every budget as well: accuracy by tokens kept"),
    CLI_OPTION(struct compare, options.task_path, "task-data", "DIR", "the folder of their files"),
    CLI_OPTION(struct compare, options.task_limit, "limit", "N", "only the first N questions of every task; 0: all",
               .min = 0, .max = 1e9),
    CLI_OPTION(struct compare, options.margin, "margin", "NATS",
               "two losses are called equal where the 95% interval of their difference lies within it", .min = 0,
               .max = 100),
    CLI_ROWS_OPTIONS(struct compare, rows),
    PRUNE_BATCH_OPTION(struct compare, options.batch),
    CLI_POLICY_CHOICES_OPTIONS(struct compare, choices),
    CLI_OPTION(struct compare, out, "out", "DIR", "receives compare.json, compare.csv and compare.svg",
               .required = true),
    CLI_COMMON_OPTIONS(struct compare, common)};

static const struct cli_spec compare_spec = {
    .command = "winnow prune compare",
    .summary =
        "Perplexity, and with --task accuracy, against tokens kept: every policy on every given checkpoint, on the\n"
        "same data under the same budgets.",
    CLI_TABLE(compare_options)};

static int check_compare(struct compare *c, int code) {
  const char *command = compare_spec.command;
  if (code != CLI_GO) return code;
  if (!c->dirs[0] && !c->dirs[1] && !c->dirs[2])
    return cli_usage_error(command, "give at least one of --standard, --selective and --mem");
  for (int i = 0; i < SUBJECTS; i++)
    if (c->searches[i] && !c->dirs[i])
      return cli_usage_error(command, "a search is given for a checkpoint that is not (%s)", subject_names[i]);
  code = compare_read_labels(c);
  if (code == CLI_GO)
    code = cli_number_list(command, "budgets", c->budgets, "budgets", INT64_MAX, c->tokens, BUDGETS_MAX,
                           &c->options.token_count);
  if (code == CLI_GO && c->policies)
    code = cli_policies_read(command, c->policies, "", c->chosen, &c->options.policy_count);
  if (code == CLI_GO && c->task && !c->options.task_path)
    code = cli_usage_error(command, "--task needs --task-data DIR, which has the tasks' files");
  if (code == CLI_GO && !c->task && (c->options.task_path || c->options.task_limit))
    code = cli_usage_error(command, "--task-data and --limit go with --task");
  if (code == CLI_GO && c->task)
    code = cli_tasks_named(command, c->task, c->tasks, WN_PRUNE_TASKS, &c->options.task_count);
  return code == CLI_GO ? cli_make_folder(c->out) : code;
}

int prune_compare(int argc, char **argv) {
  struct compare c = {.common = CLI_COMMON_DEFAULTS,
                      .choices = CLI_POLICY_CHOICES_DEFAULTS,
                      .budgets = "16,32,64,128,256",
                      .rows = CLI_ROWS_DEFAULTS};
  wn_context *ctx = NULL;
  wn_prune_compare_options_init(&c.options, sizeof c.options);
  int code = check_compare(&c, cli_parse(&compare_spec, argc, argv, &c, NULL));
  if (code == CLI_GO) code = cli_together_open(&c.common, &ctx);
  if (!code) code = run_compare(ctx, &c);
  cli_together_close(ctx, code);
  return code;
}
