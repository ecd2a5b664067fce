/* Figures, tables and images. Private to src/report. */
#ifndef WN_REPORT_FIGURE_H
#define WN_REPORT_FIGURE_H

#include <jansson.h>
#include "base/text.h"
#include "winnow/report.h"

/* WN_ERR_ARGUMENT names what is wrong with a figure. */
wn_status wn_figure_check(wn_context *ctx, const wn_figure *figure);
/* Saves a table, head [columns] and cells [rows,columns]; a cell NULL is empty. */
wn_status wn_table_save_csv(wn_context *ctx, const char *const *head, int columns, const char *const *cells,
                            int64_t rows, const char *path);
/* The figure as JSON for a page, with long series thinned. NULL: out of memory. */
json_t *wn_figure_json(const wn_figure *figure);
/* Appends s with & < > " ' as entities; bytes that are not UTF-8 become U+FFFD. */
void wn_html_add(struct wn_text *out, const char *s);
/* Appends a cell of a CSV file, quoted if need be. */
void wn_csv_add(struct wn_text *out, const char *s);
/* A JSON string, with invalid UTF-8 replaced; NULL: out of memory. */
json_t *wn_html_string(const char *s);
/* The path of a figure's file: folder, id and ending. */
wn_status wn_figure_path(wn_context *ctx, const char *folder, const char *id, const char *ending, char *out,
                         size_t out_bytes);
wn_status wn_text_save(wn_context *ctx, struct wn_text *text, const char *path); /* also frees the text */

/* Appends data [bytes], compressed by zlib, as base64. */
wn_status wn_blob_add(wn_context *ctx, struct wn_text *out, const void *data, size_t bytes);
/* Appends an image of w by h pixels with a palette of 256 RGB colours, as a data: URL in base64. */
wn_status wn_png_add(wn_context *ctx, struct wn_text *out, const uint8_t *pixels, int64_t w, int64_t h,
                     const uint8_t palette[768]);

/* Assets: the page's style sheet and script, and the plotting library; NUL-terminated (built from src/report/page/). */
extern const char wn_page_css[], wn_page_js[], wn_page_chart_js[];

#endif
