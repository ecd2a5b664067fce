/* The parts of `winnow report`: each adds its figures to the page. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <winnow/report.h>
#include <winnow/train.h>
#include "budgets.h"
#include "ui.h"

#define REPORT_INPUTS 64

struct report_input {
  const char *path;
  char name[256], file[4096];       /* file: of a search or comparison */
  bool log, model, search, compare; /* what is there */
  wn_model *loaded;
  wn_tokenizer *tok;
  wn_budgets budgets;
  bool has_budgets;
};

struct report {
  struct cli_common common;
  const char *text, *data, *out, *figures, *title, *policies;
  struct cli_budgets budgets;
  bool survives[WN_POLICY_COUNT]; /* of `policies`: whose survival is shown */
  int64_t tokens, models;
  uint64_t sequences;
  double limit;
  bool heads;
  char command[2048];
  wn_context *ctx;
  wn_page *page;
  char *content;
  size_t content_bytes;
  struct report_input inputs[REPORT_INPUTS];
  int input_count, shown;
};

/* Series with memory of their own. */
enum { REPORT_LINES = 128 };
struct report_lines {
  wn_figure_series series[REPORT_LINES];
  char names[REPORT_LINES][300];
  double *memory[REPORT_LINES];
  int count;
};
/* A line of `count` points, to be written by the caller: three axes' x [3,count], then y [count]. NULL: out of memory,
 * or as many lines as there is room for. */
double *report_line(struct report_lines *lines, int64_t count, int colour, int dash, const char *name);
/* What each head has, as points over layer and head; what each layer has, as a line over layers. first: of values
 * `stride` doubles apart, [layers,heads] and [layers]. False: as above. */
bool report_head_points(struct report_lines *lines, int64_t layers, int64_t heads, const double *first, size_t stride,
                        int colour, const char *name);
bool report_layer_line(struct report_lines *lines, int64_t layers, const double *first, size_t stride, int colour,
                       int dash, const char *name);
void report_lines_clear(struct report_lines *lines);

/* What the figures of models are measured on: the text, or the first sequences of the data. No source and no tokenizer
 * in *out: there is nothing to measure on. *source is the caller's. */
int report_measured_on(struct report *r, const struct report_input *in, wn_eval_options *options,
                       wn_data_source **source, wn_analysis_input *out);
/* Sequences of T tokens: --data, or what the run validates on; NULL where there is neither. */
int report_source(struct report *r, const struct report_input *in, int64_t T, wn_data_source **out);
/* 0, or the exit code after reporting. */
int report_training(struct report *r);                            /* curves of all runs */
int report_pruning(struct report *r);                             /* budgets by layer, quality against memory */
int report_policies_check(const char *command, struct report *r); /* and its default. CLI_GO, or 2 */
int report_budgets(struct report *r); /* --budgets: what they are, and what each policy keeps under them */
int report_models(struct report *r);  /* spans, and what winnow analyze measures */
int report_look(struct report *r);    /* what heads look at: similarity, entropy, sinks */

#endif
