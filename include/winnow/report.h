/* winnow: results as files: JSON, CSV and SVG. Nothing is measured or searched here. Every file is written beside its
 * final name, synced and renamed. */
#ifndef WINNOW_REPORT_H
#define WINNOW_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include "winnow/analyze.h"
#include "winnow/prune.h"

WN_API_BEGIN

/* A line through points, x ascending. Colour and style are places in the plot's lists. */
typedef struct wn_plot_series {
  const char *label;    /* beside its first point; NULL: none */
  int colour, style;
  int64_t count;
  const double *x, *y;  /* [count], finite; x > 0 */
} wn_plot_series;
/* A horizontal line. */
typedef struct wn_plot_level {
  const char *label;
  int style;
  double y;
} wn_plot_level;
/* x has a log2 axis; y one that is linear, or logarithmic where its values span more than a factor of 3. */
typedef struct wn_plot {
  const char *title, *x_label, *y_label;
  const wn_plot_series *series;
  int series_count;
  const wn_plot_level *levels;
  int level_count;            /* at most WN_PLOT_STYLES */
  const char *const *colours; /* what the colours stand for, for the legend; at most WN_PLOT_COLOURS */
  int colour_count;
  const char *colour_title;   /* over them; NULL: none */
  const char *const *styles;  /* what dashes and markers stand for; at most WN_PLOT_STYLES */
  int style_count;
  const char *style_title;
  double y_limit;             /* what lies above is cut off; 0: nothing */
} wn_plot;
#define WN_PLOT_COLOURS 8
#define WN_PLOT_STYLES 4
/* Readable on light and on dark ground; no scripts, no fonts of its own. */
wn_status wn_plot_save_svg(wn_context *ctx, const wn_plot *plot, const char *path);

/* step, layer, budgets ("512 504 ..."), total, saving, perplexities, evaluations, seconds. */
wn_status wn_prune_curve_save_csv(wn_context *ctx, const wn_prune_curve *curve, const char *path);
/* Perplexity on both sets against tokens kept a layer. */
wn_status wn_prune_curve_save_svg(wn_context *ctx, const wn_prune_curve *curve, const char *title, const char *path);

wn_status wn_prune_comparison_save_json(wn_context *ctx, const wn_prune_comparison *comparison, const char *path);
wn_status wn_prune_comparison_save_csv(wn_context *ctx, const wn_prune_comparison *comparison, const char *path);
wn_status wn_prune_comparison_save_svg(wn_context *ctx, const wn_prune_comparison *comparison, const char *title,
                                       const char *path);

/* Tokens needed against context length, a line for each of up to 8 of the report's shares. */
wn_status wn_meaning_save_svg(wn_context *ctx, const wn_meaning_report *report, const char *title, const char *path);
/* The same for one share, with its fits [WN_FIT_COUNT]. */
wn_status wn_meaning_fits_save_svg(wn_context *ctx, const wn_meaning_report *report, int tau, const wn_fit *fits,
                                   const char *title, const char *path);

WN_API_END
#endif
