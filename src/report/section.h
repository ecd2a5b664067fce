/* A report's inside: what was given, what is measured of it, and the sections that draw it. Private to src/report. */
#ifndef WN_REPORT_SECTION_H
#define WN_REPORT_SECTION_H

#include "report/drawing.h"
#include "winnow/report.h"
#include "winnow/train.h"

struct wn_report_input {
  const char *path;
  char name[256], file[4096];       /* file: of a search or comparison */
  bool log, model, search, compare; /* what is there */
  wn_model *loaded;                 /* borrowed by sections, like what follows; NULL: no model, or not loaded yet */
  wn_tokenizer *tok;                /* NULL: none */
  int32_t *control;                 /* [control_count] its control tokens, as of `winnow analyze`; may be NULL */
  int control_count;
  bool is_task; /* a run on a synthetic task, which has no tokenizer: `task` is its data, whose own
                   sequences are shown, with names for their tokens */
  wn_data_config task;
  bool task_told;     /* that its sequences are longer than what is to be shown */
  bool shown;         /* its text, with the options' budgets in force: a decoder among the first models */
  wn_budgets budgets; /* layers 0: none */
};

struct wn_report {
  wn_context *ctx;
  const wn_report_options *options;
  wn_page *page;
  const char *command, *heading; /* heading: of the section at work, until its first figure; then NULL */
  struct wn_report_input *inputs;
  int input_count, texts; /* texts: shown so far */
  bool loaded;            /* the inputs' models */
};

/* What a section needs; it is left out where nothing of that was given. */
enum {
  WN_NEEDS_RUNS = 1,
  WN_NEEDS_MODELS = 2,   /* loaded before the first section that needs them */
  WN_NEEDS_BUDGETS = 4,  /* the options' */
  WN_NEEDS_SEARCHES = 8, /* or comparisons */
};

struct wn_section {
  const char *name;  /* for wn_report_options.sections */
  const char *title; /* the page's heading above its figures */
  unsigned needs;    /* of all of these something */
  wn_status (*draw)(struct wn_report *report);
};
/* In the page's order. A new one is a file in src/report/sections/ and a row in sections.c. */
int wn_section_count(void);
const struct wn_section *wn_section_at(int i);

/* The drawing as a figure of the section at work; it is cleared. */
wn_status wn_report_add(struct wn_report *report, struct wn_drawing *drawing);
wn_status wn_report_add_table(struct wn_report *report, const wn_figure *what, const char *const *head, int columns,
                              const char *const *cells, int64_t rows);
/* The section's heading, where it has none yet: for figures that are put into the page directly. */
wn_status wn_report_head(struct wn_report *report);
/* "PATH: ..." to the options' note. */
__attribute__((format(printf, 3, 4))) void wn_report_note(const struct wn_report *report,
                                                          const struct wn_report_input *input, const char *format, ...);

/* inputs.c: what the paths are; their models; the memory. */
wn_status wn_report_find_inputs(struct wn_report *report);
wn_status wn_report_load_models(struct wn_report *report);
void wn_report_clear_inputs(struct wn_report *report);
/* Is there a model, and does it have no encoder? */
bool wn_report_has_decoder(const struct wn_report_input *input);
/* Of the token file to read of an input: the options', or what the run was validated on; val "": there is none. */
wn_status wn_report_data(const struct wn_report *report, const struct wn_report_input *input, wn_data_config *out);
/* Sequences of T tokens of that file, or of a task; NULL: there is none. */
wn_status wn_report_source(const struct wn_report *report, const struct wn_report_input *input, int64_t T,
                           wn_data_source **out);

/* measure.c: structs of src/analyze, on the text or on the first sequences of the data; *from says which. *out NULL:
 * there is nothing to measure on, or (after a note) the analysis does not know such a model. */
wn_status wn_measure_spans(struct wn_report *report, const struct wn_report_input *input, wn_span_report **out);
/* On the text alone; NULL as well where spans are not dynamic. */
wn_status wn_measure_span_tokens(struct wn_report *report, const struct wn_report_input *input, wn_span_tokens **out);
wn_status wn_measure_look(struct wn_report *report, const struct wn_report_input *input, wn_look_report **out,
                          const char **from);
wn_status wn_measure_meaning(struct wn_report *report, const struct wn_report_input *input, wn_meaning_report **out,
                             const char **from);
/* Of every row's tokens needed at one of the shares; not fitted: there are too few rows. */
wn_status wn_measure_fits(struct wn_report *report, const wn_meaning_report *meaning, int tau,
                          wn_fit fits[WN_FIT_COUNT], bool *fitted);
wn_status wn_measure_survival(struct wn_report *report, const struct wn_report_input *input,
                              const wn_budgets *const *budgets, int count, wn_survival_report **out, const char **from);

#endif
