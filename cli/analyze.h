/* What the subcommands of winnow analyze share: a checkpoint, a text where one is needed, files for the result. */
#ifndef CLI_ANALYZE_H
#define CLI_ANALYZE_H

#include <inttypes.h>
#include <stdio.h>
#include <winnow/analyze.h>
#include "args.h"
#include "recipe.h"
#include "sampling.h"
#include "ui.h"

struct analysis {
  struct cli_common common;
  const char *command; /* "winnow analyze spans" */
  const char *model_dir, *text, *data, *tokenizer, *csv, *out;
  int64_t batch, context, memory;
  uint64_t max_batches;
  wn_context *ctx;
  wn_model *model;
  wn_tokenizer *tok;
  wn_data_source *source;
  char *content;
  size_t bytes;
  wn_eval_options eval;
  struct cli_progress bar;
};
/* clang-format off */
#define ANALYZE_OPTIONS(a)                                                                                            \
  CLI_MODEL_OPTION(&(a)->model_dir),                                                                                  \
  {.name = "text", .type = CLI_STRING, .out = &(a)->text, .metavar = "FILE", .help = "a text to analyze on; - is standard input"}, \
  {.name = "data", .type = CLI_STRING, .out = &(a)->data, .metavar = "FILE", .help = "a token file (.bin) to analyze on"}, \
  {.name = "tokenizer", .type = CLI_STRING, .out = &(a)->tokenizer, .metavar = "SPEC", .help = "for --text: " CLI_TOKENIZER_HELP "; else the model's own"}, \
  {.name = "batch", .type = CLI_INT, .out = &(a)->batch, .metavar = "N", .help = "sequences at a time; 0: 8", .min = 0, .max = 1 << 20}, \
  {.name = "context", .type = CLI_INT, .out = &(a)->context, .metavar = "N", .help = "tokens a sequence; 0: the model's", .min = 0, .max = 1 << 24}, \
  {.name = "memory", .type = CLI_INT, .out = &(a)->memory, .metavar = "N", .help = "tokens of earlier blocks; 0: the model's; -1: none", .min = -1, .max = 1 << 24}, \
  {.name = "max-batches", .type = CLI_UINT, .out = &(a)->max_batches, .metavar = "N", .help = "stop after so many; 0: all"}, \
  {.name = "csv", .type = CLI_STRING, .out = &(a)->csv, .metavar = "FILE", .help = "the table as CSV; - is standard output, in the report's place"}, \
  {.name = "out", .type = CLI_STRING, .out = &(a)->out, .metavar = "FILE", .help = "what --json prints, into a file"}, \
  CLI_COMMON_OPTIONS(&(a)->common)
/* clang-format on */

/* Opens the checkpoint, and the text or token file when one is given. 0, or the exit code; closed by analysis_close. */
int analysis_open(struct analysis *a, const struct cli_spec *spec, int argc, char **argv);
void analysis_close(struct analysis *a);
/* Loads the tokenizer where it is not there yet. */
wn_status analysis_tokenizer(struct analysis *a);
/* Of what is to be read; source and text NULL: nothing was given. */
wn_analysis_input analysis_input(const struct analysis *a);
/* The exit code of an analysis that ended so, after reporting. */
int analysis_end(const struct analysis *a, wn_status status);
/* Into the files that were asked for, then onto standard output: CSV, JSON, or the report. Takes `json`. */
int analysis_deliver(const struct analysis *a, json_t *json, void (*put_csv)(FILE *, const void *),
                     void (*put_report)(const struct analysis *, const void *), const void *what);
/* "0.5:1:0.05" or "0.5,0.9,1" into taus[*count], ascending in (0,1], *count at most what it was. 0, or the exit code.
 */
int analysis_taus(const struct analysis *a, const char *text, double *taus, int *count);
/* The control tokens that --control stands for; the tokenizer is loaded where it was not. */
int analysis_control(struct analysis *a, const char *text, int32_t **ids, int *count);

int analyze_meaningful(int argc, char **argv);
int analyze_sweep(int argc, char **argv);
int analyze_attention(int argc, char **argv);
int analyze_survival(int argc, char **argv);

#endif
