/* Private to src/report: figures, tiles and pictures. */
#ifndef WN_REPORT_FIGURE_H
#define WN_REPORT_FIGURE_H

#include <jansson.h>
#include "base/text.h"
#include "winnow/report.h"

/* "figure": a finding is WN_ERR_ARGUMENT naming what is wrong. */
wn_status wn_figure_check(wn_context *ctx, const wn_figure *figure);
/* A table's head [columns] and cells [rows,columns]; NULL: empty. */
wn_status wn_table_save_csv(wn_context *ctx, const char *const *head, int columns, const char *const *cells,
                            int64_t rows, const char *path);
/* The figure for a page, its long series thinned. NULL: out of memory. */
json_t *wn_figure_json(const wn_figure *figure);
/* & < > " ' as entities; what is not UTF-8 becomes U+FFFD. */
void wn_html_add(struct wn_text *out, const char *s);
/* A cell of a CSV file, quoted where it has to be. */
void wn_csv_add(struct wn_text *out, const char *s);
/* A string for JSON, invalid UTF-8 replaced; NULL: out of memory. */
json_t *wn_html_string(const char *s);
/* A folder and ID with this ending. */
wn_status wn_figure_path(wn_context *ctx, const char *folder, const char *id, const char *ending, char *out,
                         size_t out_bytes);
wn_status wn_text_save(wn_context *ctx, struct wn_text *text, const char *path); /* and frees it */

/* bytes as zlib, then base64, appended. */
wn_status wn_blob_add(wn_context *ctx, struct wn_text *out, const void *data, size_t bytes);
/* An image of w by h, 8-bit palette of 256 RGB colours, as a data: URL with base64 appended. */
wn_status wn_png_add(wn_context *ctx, struct wn_text *out, const uint8_t *pixels, int64_t w, int64_t h,
                     const uint8_t palette[768]);

/* Assets: the page's style sheet and script, and the plotting library; NUL-terminated (built from src/report/page/). */
extern const char wn_page_css[], wn_page_js[], wn_page_chart_js[];

#endif
