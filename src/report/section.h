/* The internals of a report: its inputs, what is measured of them, and the sections that draw it. Private to
 * src/report. */
#ifndef WN_REPORT_SECTION_H
#define WN_REPORT_SECTION_H

#include "report/drawing.h"
#include "winnow/report.h"
#include "winnow/train.h"

struct wn_report_input {
  const char *path;
  char name[256], file[4096];                /* file: of a search or comparison */
  bool log, model, search, compare, answers; /* what the input contains */
  wn_model *loaded;  /* NULL: no model, or not loaded yet. Sections borrow this and the next fields */
  wn_tokenizer *tok; /* NULL: none */
  int32_t *control;  /* [control_count] its control tokens, as in `winnow analyze`; may be NULL */
  int control_count;
  bool is_task; /* a run on a synthetic task, without a tokenizer: `task` is its data; its sequences are shown, with
                   names for their tokens */
  wn_data_config task;
  bool task_told; /* a note has said that its sequences are longer than what is shown */
  bool shown;     /* its text is shown, with the options' budgets in force; only for decoders among the first models */
  wn_budgets budgets; /* layers 0: none */
};

struct wn_report {
  wn_context *ctx;
  const wn_report_options *options;
  wn_page *page;
  const char *command, *heading; /* heading: of the current section, until its first figure; then NULL */
  struct wn_report_input *inputs;
  int input_count, texts; /* texts: number shown so far */
  bool loaded;            /* the inputs' models are loaded */
};

/* What a section needs; without it the section is left out. */
enum {
  WN_NEEDS_RUNS = 1,
  WN_NEEDS_MODELS = 2,   /* loaded before the first section that needs them */
  WN_NEEDS_BUDGETS = 4,  /* budgets in the options */
  WN_NEEDS_SEARCHES = 8, /* or comparisons */
  WN_NEEDS_ANSWERS = 16,
};

struct wn_section {
  const char *name;  /* for wn_report_options.sections */
  const char *title; /* the page's heading above its figures */
  unsigned needs;    /* WN_NEEDS_ bits, all of which must be met */
  wn_status (*draw)(struct wn_report *report);
};
/* Sections in the page's order. A new one is a file in src/report/sections/ and a row in sections.c. */
int wn_section_count(void);
const struct wn_section *wn_section_at(int i);

/* Adds the drawing as a figure of the current section, and clears it. */
wn_status wn_report_add(struct wn_report *report, struct wn_drawing *drawing);
/* The same for its cells, as a table. */
wn_status wn_report_add_table(struct wn_report *report, struct wn_drawing *drawing, const char *const *head,
                              int columns);
/* Adds the section's heading if it has none yet, for figures that are added to the page directly. */
wn_status wn_report_head(struct wn_report *report);
/* Passes "PATH: ..." to the options' `note`. */
__attribute__((format(printf, 3, 4))) void wn_report_note(const struct wn_report *report,
                                                          const struct wn_report_input *input, const char *format, ...);

/* inputs.c: recognises the paths; loads their models; frees everything. */
wn_status wn_report_find_inputs(struct wn_report *report);
wn_status wn_report_load_models(struct wn_report *report);
void wn_report_clear_inputs(struct wn_report *report);
/* Is there a model, and does it have no encoder? */
bool wn_report_has_decoder(const struct wn_report_input *input);
/* The token file to read for an input: that of the options, or the run's validation file. out->val "": there is
 * none. */
wn_status wn_report_data(const struct wn_report *report, const struct wn_report_input *input, wn_data_config *out);
/* A source of sequences of T tokens from that file, or from a task; *out NULL: there is none. */
wn_status wn_report_source(const struct wn_report *report, const struct wn_report_input *input, int64_t T,
                           wn_data_source **out);

/* measure.c: measurements of src/analyze on the text or on the first sequences of the data; *from says which. *out
 * NULL: there is nothing to measure on, or (after a note) the analysis does not support the model. */
wn_status wn_measure_spans(struct wn_report *report, const struct wn_report_input *input, wn_span_report **out);
/* Only on the text; *out is also NULL if spans are not dynamic. */
wn_status wn_measure_span_tokens(struct wn_report *report, const struct wn_report_input *input, wn_span_tokens **out);
wn_status wn_measure_look(struct wn_report *report, const struct wn_report_input *input, wn_look_report **out,
                          const char **from);
wn_status wn_measure_meaning(struct wn_report *report, const struct wn_report_input *input, wn_meaning_report **out,
                             const char **from);
/* Fits curves to every row's tokens needed at one share. *fitted false: there are too few rows. */
wn_status wn_measure_fits(struct wn_report *report, const wn_meaning_report *meaning, int tau,
                          wn_fit fits[WN_FIT_COUNT], bool *fitted);
wn_status wn_measure_survival(struct wn_report *report, const struct wn_report_input *input,
                              const wn_budgets *const *budgets, int count, wn_survival_report **out, const char **from);

#endif
