/* winnow: results as files: JSON, CSV, SVG, and pages in HTML. Nothing is measured or searched here. Every file is
 * written next to its final name, synced and renamed. */
#ifndef WINNOW_REPORT_H
#define WINNOW_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/analyze.h"
#include "winnow/prune.h"
#include "winnow/selection.h"

WN_EXPERIMENTAL_BEGIN

/* ---- figures: lines, points or bars; in a page, as SVG and as CSV ---- */

/* The largest number of x axes of a figure. */
#define WN_FIGURE_AXES 3
typedef struct wn_figure_axis {
  const char *label;
  bool log; /* then values of 0 and below are not drawn */
} wn_figure_axis;
typedef struct wn_figure_series {
  const char *name;
  int64_t count;
  const double *x[WN_FIGURE_AXES]; /* [count] for each of the figure's axes */
  /* [count]; values that are not finite are not drawn; in an SVG a line to +infinity leaves the plot */
  const double *y;
  const double *z; /* [count], or NULL: none. Of a line half the height of the band around it, such as a standard error;
                      of cells what shades them */
  int colour;      /* 0..7 */
  int dash;        /* 0..3 */
  bool points;     /* marks without a line */
  bool hidden;     /* hidden on a page at first */
  const char *key; /* live pages: the field of the log from which y grows; else NULL */
} wn_figure_series;
typedef struct wn_figure_level {
  const char *name;
  double y;
} wn_figure_level;
typedef struct wn_figure {
  const char *id, *title;              /* id: letters, digits and -; also the files' names */
  const char *about, *command;         /* what it shows, in a sentence or two; how to reproduce its numbers */
  wn_figure_axis x[WN_FIGURE_AXES], y; /* on a page the reader chooses among the x axes; files use the first */
  int axes;
  bool bars, smooth;     /* smooth: a page offers smoothing */
  double y_max;          /* points above are cut off; 0: none */
  const char *z;         /* what the series' z are; NULL: no series has any */
  double cell[2], z_max; /* cell[0] > 0: the points are the middles of cells of this width (on a logarithmic axis a
                            factor) and height, shaded from 0 to z_max; y grows downwards */
  const wn_figure_series *series;
  int series_count;
  const wn_figure_level *levels; /* horizontal lines */
  int level_count;
  bool small; /* a page draws it small, beside other small figures that precede or follow it, until the reader enlarges
                 it */
} wn_figure;
wn_status wn_figure_save_svg(wn_context *ctx, const wn_figure *figure, const char *path);
wn_status wn_figure_save_csv(wn_context *ctx, const wn_figure *figure, const char *path); /* every point, all axes */

/* ---- pages: one self-contained HTML file that works offline; charts by Chart.js, embedded ---- */

/* A page of figures under construction; opaque. */
typedef struct wn_page wn_page;
/* The options of a page. */
typedef struct wn_page_options {
  size_t size;              /* sizeof the struct (context.h) */
  const char *title, *lead; /* lead: a sentence under the title; may be NULL */
  const char *figures;      /* a folder (created) for every figure as ID.svg and ID.csv; NULL: none */
  size_t limit;             /* largest size of the page in bytes; 0: 5,000,000. Matrices are quantised more coarsely,
                               and texts cut, until it fits */
  const char *live;         /* the figure that grows while the page is open (a server's page); else NULL */
} wn_page_options;
wn_status wn_page_create(wn_context *ctx, const wn_page_options *options, wn_page **out);
void wn_page_destroy(wn_page *page); /* NULL is allowed */
/* Adds a heading for the figures that follow. */
wn_status wn_page_add_section(wn_page *page, const char *title);
/* Copies the figure. Of a series with more than 2,000 points the page shows the smallest and the largest of each of
 * 1,000 stretches, and the stretches' means where it can be smoothed; of points without a line it shows every n-th. The
 * CSV has all points. */
wn_status wn_page_add_figure(wn_page *page, const wn_figure *figure);
/* Adds a table. cells [rows*columns]: text; beyond the first column a cell that parses as a number is one; NULL: empty.
 * Its file is ID.csv; there is no SVG. */
wn_status wn_page_add_table(wn_page *page, const wn_figure *what, const char *const *head, int columns,
                            const char *const *cells, int64_t rows);

/* A text and what its tokens see. Texts of one page are shown side by side. */
typedef struct wn_page_text {
  const char *name;          /* of the model or run */
  const char *const *pieces; /* [T] the tokens' text, UTF-8 */
  int64_t T, layers, heads;
  bool selective;
  const wn_budgets *budgets; /* or NULL */
  double loss;               /* mean, nats */
} wn_page_text;
wn_status wn_page_begin_text(wn_page *page, const wn_page_text *text);
/* Adds the next layer of the text begun last. It is a wn_selection_fn, with `page` as its user. Weights by head are
 * kept if the layer has them. */
wn_status wn_page_add_layer(void *page, const wn_selection_layer *layer);
wn_status wn_page_set_loss(wn_page *page, double loss); /* of the text begun last */
wn_status wn_page_add_mean(wn_page *page, const char *name, const wn_selection_mean *mean);
/* Adds the figures of the texts and means added so far: text, matrices, last rows, heads. */
wn_status wn_page_add_texts(wn_page *page, const char *command);

/* Writes the page; *bytes (may be NULL) is its size. wn_page_html gives the same as text, freed with wn_text_free. */
wn_status wn_page_save(wn_page *page, const char *path, size_t *bytes);
wn_status wn_page_html(wn_page *page, char **out, size_t *bytes);

/* ---- results as files ---- */

/* One line per step: step, layer, budgets ("512 504 ..."), total, saving, perplexities, evaluations, seconds. */
wn_status wn_prune_curve_save_csv(wn_context *ctx, const wn_prune_curve *curve, const char *path);
/* The results of a comparison with their budgets, as JSON and as CSV. */
wn_status wn_prune_comparison_save_json(wn_context *ctx, const wn_prune_comparison *comparison, const char *path);
wn_status wn_prune_comparison_save_csv(wn_context *ctx, const wn_prune_comparison *comparison, const char *path);
/* Reads what wn_prune_comparison_save_json wrote. Clear with wn_prune_comparison_loaded_clear, which also frees the
 * names. */
wn_status wn_prune_comparison_load(wn_context *ctx, const char *path, wn_prune_comparison *out);
void wn_prune_comparison_loaded_clear(wn_prune_comparison *comparison);

/* SVG files, drawn as the figures of a report. A perplexity of +infinity lies above all others, and its line leaves the
 * plot. This one: perplexity on both sets against tokens kept per layer. */
wn_status wn_prune_curve_save_svg(wn_context *ctx, const wn_prune_curve *curve, const char *title, const char *path);
/* Perplexity against tokens kept per layer, one line per model and policy. */
wn_status wn_prune_comparison_save_svg(wn_context *ctx, const wn_prune_comparison *comparison, const char *title,
                                       const char *path);
/* Tokens needed against context length, a line for each of up to 8 of the report's shares. */
wn_status wn_meaning_save_svg(wn_context *ctx, const wn_meaning_report *report, const char *title, const char *path);
/* Tokens needed for one share (the index tau), one point a row, with the fitted curves fits [WN_FIT_COUNT]. */
wn_status wn_meaning_fits_save_svg(wn_context *ctx, const wn_meaning_report *report, int tau, const wn_fit *fits,
                                   const char *title, const char *path);
/* Against tau: how much of each metric's improvement over the baseline is kept. */
wn_status wn_sweep_save_svg(wn_context *ctx, const wn_sweep_report *report, const char *title, const char *path);
/* The three similarities by layer. */
wn_status wn_look_save_svg(wn_context *ctx, const wn_look_report *report, const char *title, const char *path);
/* The share of tokens still held against their age, one line per policy. */
wn_status wn_survival_save_svg(wn_context *ctx, const wn_survival_report *report, const char *title, const char *path);

/* ---- reports: one page with the results of runs, checkpoints, searches and comparisons ---- */

/* The content of a report; wn_report_options_init sets the defaults. */
typedef struct wn_report_options {
  size_t size;               /* sizeof the struct (context.h); wn_report_options_init sets it and the defaults below */
  const char *const *inputs; /* [input_count] runs' folders, checkpoints, models in one file; searches and comparisons
                                of prune.h: their folders or JSON files */
  int input_count;
  const char *sections; /* names of wn_report_section, separated by commas; NULL: all */
  const char *title;    /* NULL: the inputs' names */
  const char *command;  /* how to reproduce the figures, shown on the page; NULL: "wn_report_save" */
  const char *figures;  /* a folder (created) for every figure as SVG and CSV; NULL: none */
  size_t limit;         /* as in wn_page_options */
  const char *text;     /* [text_bytes] shown token by token; NULL: the first tokens of `data` */
  size_t text_bytes;
  const char *data;    /* a token file; NULL: each run's validation tokens */
  int64_t tokens;      /* 512: the most tokens of a text or sequence */
  uint64_t sequences;  /* number of sequences of the data for means and measurements; 0: no means, and measurements on
                          the text or on one sequence */
  int64_t models;      /* 2: the most models to show */
  bool heads;          /* show the weights of every head even for texts of more than 64 tokens */
  const char *budgets; /* budgets in force while the text is read, as wn_budgets_parse takes them; NULL: none */
  int policy;          /* the budgets' policy, a wn_policy. -1: the file's, else selective or, if the model does not
                          select, h2o */
  const wn_budgets *choices; /* the policies' options where a file of budgets does not give them; its tokens are not
                                read. NULL: the defaults */
  const wn_policy *policies; /* [policy_count] policies whose survival under the budgets is shown */
  int policy_count;          /* -1: all that the budgets allow; 0: none */
  void (*note)(void *user, const char *line); /* says why a figure is missing; the line is borrowed. May be NULL */
  void *user;
  bool long_only;         /* sequences are documents that fill at least 90% of `tokens`, each from its start */
  int32_t document_token; /* with long_only: the token that starts a document; -1, the default: that of data.json beside
                             the data */
  const char *policy_options; /* options as wn_budgets_set takes them, which override `choices` and a file of budgets;
                                 NULL: none */
} wn_report_options;
typedef struct wn_report_result {
  size_t bytes; /* of the page */
  int texts;    /* shown in it */
} wn_report_result;
/* The name of section i in the page's order, and its heading (title may be NULL); NULL after the last. */
const char *wn_report_section(int i, const char **title);
void wn_report_options_init(wn_report_options *options, size_t size); /* size: sizeof *options */
/* Writes the page and the figures' files. Loads the models and measures them with the functions of analyze.h and
 * selection.h. out may be NULL. wn_context_cancel: WN_ERR_CANCELLED, and no page. */
wn_status wn_report_save(wn_context *ctx, const wn_report_options *options, const char *path, wn_report_result *out);

/* ---- event files for TensorBoard ---- */

/* An event file being written; opaque. */
typedef struct wn_events wn_events;
/* One value of a step. */
typedef struct wn_event_value {
  const char *tag; /* "loss/train" */
  double value;    /* stored as float32, as in TensorBoard */
} wn_event_value;
/* Creates `dir` and in it a new events.out.tfevents.*. wall_time: seconds since 1970. resumed_from: for a run that is
 * continued, the first step in this file (steps from there on in older files no longer count); 0: the start of a
 * run. */
wn_status wn_events_open(wn_context *ctx, const char *dir, double wall_time, int64_t resumed_from, wn_events **out);
/* Writes one record immediately. */
wn_status wn_events_add(wn_context *ctx, wn_events *events, double wall_time, int64_t step,
                        const wn_event_value *values, int count);
const char *wn_events_path(const wn_events *events);
void wn_events_close(wn_events *events); /* NULL is allowed */

WN_API_END
#endif
