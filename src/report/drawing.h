/* A figure with memory of its own: how sections, and results saved as SVG, put one together. Private to src/report. */
#ifndef WN_REPORT_DRAWING_H
#define WN_REPORT_DRAWING_H

#include "winnow/report.h"

enum { WN_DRAWING_LEVELS = 4 };
/* The figure's id, title, about, series and levels point into this struct; the rest of it is the caller's. */
struct wn_drawing {
  wn_context *ctx;
  wn_figure figure;
  char id[64], title[400], about[800];
  wn_figure_series *series; /* [room] */
  wn_figure_level levels[WN_DRAWING_LEVELS];
  int room;
  wn_status status; /* the first failure; wn_drawing_clear forgets it */
};
/* number below 0: the id stands alone, else "ID-NUMBER". name NULL: the title stands alone, else "TITLE: NAME". */
void wn_drawing_begin(struct wn_drawing *drawing, wn_context *ctx, const char *id, int number, const char *title,
                      const char *name);
void wn_drawing_clear(struct wn_drawing *drawing);

/* A line of `count` points, to be written by the caller: three axes' x [3,count], then y [count]. NULL: out of memory,
 * which the status keeps. Colours and dashes come again beyond 8 and 4. */
double *wn_drawing_line(struct wn_drawing *drawing, int64_t count, int colour, int dash, const char *name);
/* What each head has, as points over layer and head; what each layer has, as a line over layers. first: of values
 * `stride` doubles apart, [layers,heads] and [layers]. */
void wn_drawing_head_points(struct wn_drawing *drawing, int64_t layers, int64_t heads, const double *first,
                            size_t stride, int colour, const char *name);
void wn_drawing_layer_line(struct wn_drawing *drawing, int64_t layers, const double *first, size_t stride, int colour,
                           int dash, const char *name);
/* A horizontal line; beyond WN_DRAWING_LEVELS they are left out. */
void wn_drawing_level(struct wn_drawing *drawing, const char *name, double y);

/* As an SVG under another title; the drawing is cleared. */
wn_status wn_drawing_save_svg(struct wn_drawing *drawing, const char *title, const char *path);

#endif
