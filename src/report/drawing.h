/* A figure or a table that owns its memory, for sections and for results saved as SVG. Private to src/report. */
#ifndef WN_REPORT_DRAWING_H
#define WN_REPORT_DRAWING_H

#include "winnow/report.h"

enum { WN_DRAWING_LEVELS = 4 };
/* The figure's id, title, about, series and levels point into this struct; the caller sets the rest of the figure. */
struct wn_drawing {
  wn_context *ctx;
  wn_figure figure;
  char id[64], title[400], about[800];
  wn_figure_series *series; /* [room] */
  wn_figure_level levels[WN_DRAWING_LEVELS];
  size_t room, cell_room;
  char **cells; /* [cell_room] of a table, row by row */
  int cell_count;
  wn_status status; /* the first failure; wn_drawing_clear forgets it */
};
/* The id is "ID-NUMBER", or "ID" if number is below 0. The title is "TITLE: NAME", or "TITLE" if name is NULL. */
void wn_drawing_begin(struct wn_drawing *drawing, wn_context *ctx, const char *id, int number, const char *title,
                      const char *name);
void wn_drawing_clear(struct wn_drawing *drawing);

/* Adds a line of `count` points, which the caller writes: three axes' x [3,count], then y [count], and z [count] where
 * the figure says what z is. NULL: out of memory, which the status records. Colours repeat after 8, dashes after 4. */
double *wn_drawing_line(struct wn_drawing *drawing, int64_t count, int colour, int dash, const char *name);
/* A value per head as points over layer and head; a value per layer as a line over layers. first: the first of the
 * values [layers,heads] or [layers], which are `stride` doubles apart. */
void wn_drawing_head_points(struct wn_drawing *drawing, int64_t layers, int64_t heads, const double *first,
                            size_t stride, int colour, const char *name);
void wn_drawing_layer_line(struct wn_drawing *drawing, int64_t layers, const double *first, size_t stride, int colour,
                           int dash, const char *name);
/* Adds the next cell of a table. */
__attribute__((format(printf, 2, 3))) void wn_drawing_cell(struct wn_drawing *drawing, const char *format, ...);
/* Adds a horizontal line; more than WN_DRAWING_LEVELS are left out. */
void wn_drawing_level(struct wn_drawing *drawing, const char *name, double y);

/* Saves it as an SVG under another title; the drawing is cleared. */
wn_status wn_drawing_save_svg(struct wn_drawing *drawing, const char *title, const char *path);

#endif
