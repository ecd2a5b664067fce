/* The internals of a page. Private to src/report. */
#ifndef WN_REPORT_HTML_H
#define WN_REPORT_HTML_H

#include "report/figure.h"

#define WN_PAGE_LIMIT ((size_t)5000000)

/* A tile: data that a page's script decodes only when it draws it. */
struct wn_page_tile {
  uint8_t *data;
  size_t bytes;
  bool text;  /* of a text: values 0..255, which are quantised when the page is written */
  bool grows; /* a lower triangle of sums down the columns, stored as differences */
  int64_t T;  /* rows of the triangle */
};

struct wn_page {
  wn_context *ctx;
  size_t limit;
  char *title, *lead, *live, *folder;
  struct wn_text body, contents;
  int sections;
  json_t *figures, *texts, *means;
  struct wn_page_tile *tiles;
  int tile_count;
  size_t tile_room;
};

/* Adds heading, table and place of a figure; takes over json (NULL: out of memory). files: names the figure's files, or
 * NULL. */
wn_status wn_page_frame(wn_page *page, const wn_figure *figure, const char *files, json_t *json);
wn_status wn_page_no_memory(wn_page *page);
/* Adds to a list of the page; takes over the value (NULL: out of memory). */
wn_status wn_page_list(wn_page *page, json_t *list, json_t *value);
wn_status wn_page_tile(wn_page *page, size_t bytes, struct wn_page_tile **out, int *number);

#endif
