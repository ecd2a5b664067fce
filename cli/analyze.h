/* What the subcommands of winnow analyze share: a checkpoint, a text if one is needed, files for the result. */
#ifndef CLI_ANALYZE_H
#define CLI_ANALYZE_H

#include <inttypes.h>
#include <stdio.h>
#include <winnow/analyze.h>
#include "args.h"
#include "recipe.h"
#include "rows.h"
#include "sampling.h"
#include "ui.h"

struct analysis {
  struct cli_common common;
  const char *command; /* "winnow analyze spans" */
  const char *model_dir, *check, *text, *data, *tokenizer, *csv, *out;
  bool encoder; /* --data gives inputs of the model's encoder */
  struct cli_rows rows;
  wn_context *ctx;
  wn_model *model;
  wn_tokenizer *tok;
  wn_data_source *source;
  char *content;
  size_t bytes;
  wn_eval_options eval;
  struct cli_progress bar;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define ANALYSIS_MODEL_OPTIONS(T, m) CLI_MODEL_OPTION(T, m.model_dir), CLI_CHECK_OPTION(T, m.check)
#define ANALYSIS_DATA_OPTIONS(T, m)                                                                                    \
  CLI_OPTION(T, m.data, "data", "FILE", "a token file (.bin) to analyze on"),                                          \
      CLI_OPTION(T, m.tokenizer, "tokenizer", "SPEC", CLI_TOKENIZER_HELP "; else the model's own"),                    \
      CLI_OPTION(T, m.eval.context, "context", "N", "tokens per sequence; 0: the model's context", .min = 0,           \
                 .max = 1 << 24),                                                                                      \
      CLI_ROWS_OPTIONS(T, m.rows)
#define ANALYSIS_RESULT_OPTIONS(T, m)                                                                                  \
  CLI_OPTION(T, m.csv, "csv", "FILE", "the table as CSV; - is standard output, instead of the report"),                \
      CLI_OPTION(T, m.out, "out", "FILE", "writes what --json prints to a file"), CLI_COMMON_OPTIONS(T, m.common)
/* Options of subcommands that read a text or a token file in batches. */
#define ANALYSIS_OPTIONS(T, m)                                                                                         \
  ANALYSIS_MODEL_OPTIONS(T, m), CLI_OPTION(T, m.text, "text", "FILE", "a text to analyze on; - is standard input"),    \
      ANALYSIS_DATA_OPTIONS(T, m),                                                                                     \
      CLI_OPTION(T, m.eval.batch, "batch", "N", "sequences at a time; 0: of 8192 tokens in all, at most 8", .min = 0,  \
                 .max = 1 << 20),                                                                                      \
      CLI_OPTION(T, m.eval.recurrence, "memory", "N",                                                                  \
                 "segment recurrence: tokens of earlier blocks; 0: the model's; -1: none", .min = -1, .max = 1 << 24), \
      CLI_OPTION(T, m.eval.max_batches, "max-batches", "N",                                                            \
                 "the most batches to run, with rows spread evenly; 0: all"),                                          \
      ANALYSIS_RESULT_OPTIONS(T, m)
/* NOLINTEND(bugprone-macro-parentheses) */

#define ANALYSIS_DEFAULTS                                                                                              \
  { .common = CLI_COMMON_DEFAULTS, .rows = CLI_ROWS_DEFAULTS, .eval.size = sizeof(wn_eval_options) }

/* Reads the options into `into`, the struct of spec's rows, which contains *a; opens the checkpoint, and the text or
 * token file if one is given. 0, or the exit code. To be closed by analysis_close. */
int analysis_open(struct analysis *a, const struct cli_spec *spec, int argc, char **argv, void *into);
void analysis_close(struct analysis *a);
/* Loads the tokenizer, if it is not loaded yet. */
wn_status analysis_tokenizer(struct analysis *a);
/* Checks that the file of --`option` can be written and is not that of another result; path NULL: not given. 0, or the
 * exit code after reporting. analysis_open does this for --csv and --out. */
int analysis_plot(const struct analysis *a, const char *option, const char *path);
int analysis_apart(const struct analysis *a, const char *option, const char *path, const char *other,
                   const char *other_path);
/* The input for the library; source and text NULL: neither was given. */
wn_analysis_input analysis_input(const struct analysis *a);
/* 2 after reporting if neither --text nor --data was given. */
int analysis_needs_text(const struct analysis *a);
/* Called before and after the library's call: a progress bar, and Ctrl-C. */
void analysis_begin(struct analysis *a, const char *label, const char *unit);
wn_status analysis_ended(struct analysis *a, wn_status status);
/* Reports the status of an analysis and returns its exit code. */
int analysis_end(const struct analysis *a, wn_status status);
/* Writes the result to the files that were asked for, then to standard output, whether or not the files could be
 * written: as CSV, JSON or report. Takes over `json`. */
int analysis_deliver(const struct analysis *a, json_t *json, void (*put_csv)(FILE *, const void *),
                     void (*put_report)(const struct analysis *, const void *), const void *what);
/* "0.5:1:0.05" or "0.5,0.9,1" into taus, ascending in (0,1]. *count: on entry the size of taus, then the number. 0, or
 * the exit code. */
int analysis_taus(const struct analysis *a, const char *text, double *taus, int *count);
/* The control tokens that --control stands for; the model's threshold keeps them from here on. Loads the tokenizer if
 * need be. */
int analysis_control(struct analysis *a, const char *text, int32_t **ids, int *count);
/* For commands without --control: the model's threshold keeps the tokenizer's control tokens, as in winnow eval. */
int analysis_special(struct analysis *a);

int analyze_meaningful(int argc, char **argv);
int analyze_sweep(int argc, char **argv);
int analyze_attention(int argc, char **argv);
int analyze_survival(int argc, char **argv);
int analyze_fits(int argc, char **argv);
int analyze_selection(int argc, char **argv);
int analyze_task(int argc, char **argv);
int analyze_kept(int argc, char **argv);
int analyze_spans(int argc, char **argv);

#endif
