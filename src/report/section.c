/* How sections add to a report: a heading before the first figure, figures, tables, notes. */
#include <stdarg.h>
#include <stdio.h>

#include "base/number.h"
#include "report/section.h"

void wn_report_note(const struct wn_report *r, const struct wn_report_input *in, const char *format, ...) {
  char line[1200];
  va_list arguments;
  if (!r->options->note) return;
  const int n = snprintf(line, sizeof line, "%.500s: ", in->path);
  va_start(arguments, format);
  wn_print_list(line + n, sizeof line - (size_t)n, format, arguments);
  va_end(arguments);
  r->options->note(r->options->user, line);
}

wn_status wn_report_head(struct wn_report *r) {
  const char *heading = r->heading;
  r->heading = NULL;
  return heading ? wn_page_add_section(r->page, heading) : WN_OK;
}

wn_status wn_report_add(struct wn_report *r, struct wn_drawing *d) {
  wn_status status = d->status;
  d->figure.command = r->command;
  if (status == WN_OK) status = wn_report_head(r);
  if (status == WN_OK) status = wn_page_add_figure(r->page, &d->figure);
  wn_drawing_clear(d);
  return status;
}

wn_status wn_report_add_table(struct wn_report *r, struct wn_drawing *d, const char *const *head, int columns) {
  wn_status status = d->status;
  d->figure.command = r->command;
  if (status == WN_OK) status = wn_report_head(r);
  if (status == WN_OK)
    status =
        wn_page_add_table(r->page, &d->figure, head, columns, (const char *const *)d->cells, d->cell_count / columns);
  wn_drawing_clear(d);
  return status;
}
