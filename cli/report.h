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
  const char *text, *data, *out, *figures, *title;
  struct cli_budgets budgets;
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

/* Sequences of T tokens: --data, or what the run validates on; NULL where there is neither. */
int report_source(struct report *r, const struct report_input *in, int64_t T, wn_data_source **out);
/* 0, or the exit code after reporting. */
int report_training(struct report *r); /* curves of all runs */
int report_pruning(struct report *r);  /* budgets by layer, quality against memory */
int report_models(struct report *r);   /* spans, and what winnow analyze measures */

#endif
