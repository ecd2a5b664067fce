/* winnow report: runs, checkpoints, searches and comparisons as one self-contained HTML page, and the same figures as
 * SVG and CSV. */
#include "cmd.h"

#include <stdio.h>
#include <string.h>
#include <winnow/report.h>
#include "budgets.h"
#include "signals.h"
#include "files.h"
#include "rows.h"
#include "ui.h"

enum { REPORT_INPUTS = 4096 };

struct report_command {
  struct cli_common common;
  wn_report_options options;
  const char *text, *out, *figures, *policies;
  bool no_figures;
  double limit; /* MB */
  struct cli_budgets budgets;
  struct cli_rows rows;
  wn_budgets choices;
  char policy_options[1024];
  wn_policy list[WN_POLICY_MAX];
  char command[2048], folder[4200];
};

static int report_policies(struct report_command *r) {
  const char *names = r->policies;
  if (names && !r->budgets.spec) return cli_usage_error("winnow report", "--policies needs --budgets");
  r->options.policies = r->list;
  if (!names || !strcmp(names, "all")) return CLI_GO;
  r->options.policy_count = 0;
  if (!strcmp(names, "none")) return CLI_GO;
  return cli_policies_read("winnow report", names, "all, none, or ", r->list, &r->options.policy_count);
}

static int report_budgets(struct report_command *r) {
  const char *name = r->budgets.policy;
  wn_policy policy = 0;
  r->options.budgets = r->budgets.spec;
  wn_budgets_init(&r->choices, NULL);
  if (cli_policy_choices_apply("winnow report", &r->budgets.choices, &r->choices)) return 2;
  r->options.choices = &r->choices;
  if (cli_policy_choices_text(&r->budgets.choices, r->policy_options, sizeof r->policy_options))
    r->options.policy_options = r->policy_options;
  r->choices.cache_positions = r->budgets.cache_positions;
  if ((name && !cli_policy_named(name, strlen(name), &policy)) || r->choices.when != WN_WHEN_ALWAYS)
    return cli_usage_error("winnow report",
                           "%s: a report reads whole sequences, which have no place where a context ends",
                           r->choices.when != WN_WHEN_ALWAYS ? "--when" : name);
  if (name) r->options.policy = (int)policy;
  return CLI_GO;
}

/* Adds a word as a shell reads it, quoted unless it has only harmless characters. */
static size_t report_add_word(char *out, size_t n, size_t bytes, const char *word) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+@%-";
  const char *mark = word[0] && !word[strspn(word, plain)] ? "" : "'";
  n += (size_t)snprintf(out + n, bytes - n, " %s", mark);
  for (; *word && n < bytes - 1; word++)
    n += (size_t)snprintf(out + n, bytes - n, *word == '\'' ? "'\\''" : "%c", *word);
  if (n < bytes - 1) n += (size_t)snprintf(out + n, bytes - n, "%s", mark);
  return n;
}

/* Stores the command line that reproduces this page's figures. */
static void report_note_command(struct report_command *r, int argc, char **argv) {
  size_t n = (size_t)snprintf(r->command, sizeof r->command, "winnow report");
  for (int i = 1; i < argc && n < sizeof r->command - 1; i++)
    n = report_add_word(r->command, n, sizeof r->command, argv[i]);
  r->options.command = r->command;
}

/* The folder of figures: --figures, or the page's name with -figures in place of .html. */
static void report_figures(struct report_command *r) {
  const size_t n = strlen(r->out);
  const bool html = n > 5 && !strcmp(r->out + n - 5, ".html");
  if (r->no_figures) return;
  snprintf(r->folder, sizeof r->folder, "%.*s-figures", (int)(html ? n - 5 : n), r->out);
  r->options.figures = r->figures ? r->figures : r->folder;
}

/* Notes about missing figures are printed even with --quiet. */
static void report_note(void *user, const char *line) {
  (void)user;
  cli_warning("%s", line);
}

static int report_run(struct report_command *r) {
  wn_context *ctx = NULL;
  wn_report_result result;
  char *text = NULL;
  int code = cli_context_open(&r->common, &ctx);
  if (!code && r->text) {
    code = cli_read_text(ctx, r->text, &text, &r->options.text_bytes);
    if (!code && r->options.text_bytes == 0) code = cli_error("%s: the file is empty", r->text);
    r->options.text = text;
  }
  const double start = cli_seconds();
  if (!code) {
    cli_signals_begin(ctx);
    const wn_status status = wn_report_save(ctx, &r->options, r->out, &result);
    cli_signals_end();
    if (status != WN_OK) code = cli_fail(ctx, status);
  }
  const char *figures = r->options.figures;
  if (!code && r->common.json)
    code = cli_print_json(json_pack("{s:o, s:I, s:i, s:f, s:o}", "out", cli_text(r->out), "bytes",
                                    (json_int_t)result.bytes, "texts", result.texts, "seconds", cli_seconds() - start,
                                    "figures", figures ? cli_text(figures) : json_null()));
  else if (!code)
    cli_note(&r->common, "%s: %s in %.1f s%s%s", r->out, cli_bytes((double)result.bytes), cli_seconds() - start,
             figures ? "; figures as SVG and CSV in " : "", figures ? figures : "");
  wn_text_free(text);
  wn_context_destroy(ctx);
  return code;
}

static const struct cli_option report_options[] = {
    CLI_OPTION(struct report_command, text, "text", "FILE",
               "the text to show token by token; - is standard input; else the run's validation tokens"),
    CLI_OPTION(struct report_command, options.data, "data", "FILE",
               "a token file (.bin) instead, also for --sequences"),
    CLI_OPTION(struct report_command, out, "out", "FILE", "the page"),
    CLI_OPTION(struct report_command, figures, "figures", "DIR",
               "folder for the figures as SVG and CSV; else next to the page"),
    CLI_OPTION(struct report_command, no_figures, "no-figures", NULL, "only the page"),
    CLI_OPTION(struct report_command, options.title, "title", "TEXT", "the page's heading"),
    CLI_OPTION(struct report_command, options.sections, "sections", "NAMES",
               "sections of the page, separated by commas (below); else all"),
    CLI_OPTION(struct report_command, options.tokens, "tokens", "N", "the most tokens of the text to show", .min = 1,
               .max = 65536),
    CLI_OPTION(struct report_command, options.sequences, "sequences", "N", "sequences for mean matrices; 0: none"),
    CLI_ROWS_OPTIONS(struct report_command, rows),
    CLI_OPTION(struct report_command, options.heads, "heads", NULL,
               "matrices of every head, also for texts longer than 64 tokens"),
    CLI_OPTION(struct report_command, options.models, "models", "N",
               "the most models whose texts are shown side by side", .min = 0, .max = 8),
    CLI_OPTION(struct report_command, limit, "limit", "MB", "the largest size of the page", .min = 0.1, .max = 1000),
    CLI_BUDGETS_OPTIONS(struct report_command, budgets),
    CLI_OPTION(struct report_command, policies, "policies", "NAMES",
               "policies whose survival under --budgets is shown: all that the budgets allow, none, or names separated "
               "by commas"),
    CLI_COMMON_OPTIONS(struct report_command, common)};

/* The names of all sections, malloc'd. */
static char *report_sections(void) {
  char *text = NULL;
  size_t bytes = 0;
  const char *name, *title;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return NULL;
  fputs("Sections, for --sections:\n", f);
  for (int i = 0; (name = wn_report_section(i, &title)); i++) fprintf(f, "  %-10s %s\n", name, title);
  return fclose(f) ? NULL : text;
}

static const struct cli_spec report_spec = {
    .command = "winnow report",
    .summary =
        "Writes one self-contained HTML page (no network is needed or used): training curves, the context that\n"
        "every token of a text sees, selections and evictions, budgets, quality against memory, spans. The same\n"
        "figures are written to a folder as SVG and CSV.",
    CLI_TABLE(report_options),
    .positional = "RUN_OR_CHECKPOINT...",
    .positional_min = 1,
    .positional_max = REPORT_INPUTS,
    .epilog = "An argument is a run's folder, a checkpoint, a model file, a folder or search.json of winnow prune\n"
              "search, a folder or compare.json of winnow prune compare, or a file that winnow eval --answers saved "
              "(.jsonl).",
    .more_help = report_sections};

int cmd_report(int argc, char **argv) {
  static struct report_command r = {
      .common = CLI_COMMON_DEFAULTS, .budgets = CLI_BUDGETS_DEFAULTS, .rows = CLI_ROWS_DEFAULTS};
  struct cli_list inputs = {0};
  r.out = "report.html";
  r.limit = 5;
  wn_report_options_init(&r.options, sizeof r.options);
  int code = cli_parse(&report_spec, argc, argv, &r, &inputs);
  if (code == CLI_GO) code = cli_budgets_check(report_spec.command, &r.budgets);
  if (code == CLI_GO) code = cli_rows_check(report_spec.command, &r.rows);
  if (code == CLI_GO && r.rows.long_only && r.options.sequences == 0)
    code = cli_usage_error(report_spec.command, "--long-only needs --sequences");
  if (code == CLI_GO) code = report_policies(&r);
  if (code == CLI_GO) code = report_budgets(&r);
  if (code == CLI_GO) {
    report_figures(&r);
    report_note_command(&r, argc, argv);
    r.options.inputs = inputs.items;
    r.options.input_count = inputs.count;
    r.options.limit = (size_t)(r.limit * 1e6);
    r.options.long_only = r.rows.long_only;
    r.options.document_token = (int32_t)r.rows.document;
    r.options.note = report_note;
    code = report_run(&r);
  }
  cli_list_clear(&inputs);
  return code;
}
