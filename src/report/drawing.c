/* Figures that own their memory. Each line is one block: its three x, its y, its z, then its name. */
#include "report/drawing.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/number.h"

void wn_drawing_begin(struct wn_drawing *d, wn_context *ctx, const char *id, int number, const char *title,
                      const char *name) {
  *d = (struct wn_drawing){.ctx = ctx};
  if (number < 0)
    snprintf(d->id, sizeof d->id, "%s", id);
  else
    snprintf(d->id, sizeof d->id, "%s-%d", id, number);
  if (name)
    snprintf(d->title, sizeof d->title, "%s: %.250s", title, name);
  else
    snprintf(d->title, sizeof d->title, "%s", title);
  d->figure = (wn_figure){.id = d->id, .title = d->title, .about = d->about, .levels = d->levels};
}

void wn_drawing_clear(struct wn_drawing *d) {
  for (int i = 0; i < d->figure.series_count; i++) wn_free((void *)(uintptr_t)d->series[i].x[0]);
  wn_free(d->series);
  for (int i = 0; i < d->cell_count; i++) wn_free(d->cells[i]);
  wn_free(d->cells);
  d->series = NULL;
  d->cells = NULL;
  d->cell_count = 0;
  d->room = d->cell_room = 0;
  d->figure.series = NULL;
  d->figure.series_count = 0;
  d->status = WN_OK;
}

double *wn_drawing_line(struct wn_drawing *d, int64_t count, int colour, int dash, const char *name) {
  size_t bytes;
  void *memory;
  if (d->status == WN_OK)
    d->status = WN_GROW(d->ctx, "a figure's lines", &d->series, d->figure.series_count, 1, &d->room);
  if (d->status != WN_OK) return NULL;
  d->figure.series = d->series;
  if (!wn_mul_size((size_t)count, 5 * sizeof(double), &bytes) || !wn_add_size(bytes, strlen(name) + 1, &bytes)) {
    d->status = wn_fail(d->ctx, WN_ERR_MEMORY, "a line of %lld points", (long long)count);
    return NULL;
  }
  d->status = wn_alloc(d->ctx, "a figure's line", bytes, &memory);
  if (d->status != WN_OK) return NULL;
  double *m = memory;
  char *copy = (char *)(m + 5 * count);
  memcpy(copy, name, strlen(name) + 1);
  d->series[d->figure.series_count++] = (wn_figure_series){.name = copy,
                                                           .count = count,
                                                           .x = {m, m + count, m + 2 * count},
                                                           .y = m + 3 * count,
                                                           .z = d->figure.z ? m + 4 * count : NULL,
                                                           .colour = colour % 8,
                                                           .dash = dash % 4};
  return m;
}

void wn_drawing_head_points(struct wn_drawing *d, int64_t layers, int64_t heads, const double *first, size_t stride,
                            int colour, const char *name) {
  const int64_t n = layers * heads;
  double *m = wn_drawing_line(d, n, colour, 0, name);
  if (!m) return;
  for (int64_t i = 0; i < n; i++) {
    const int64_t layer = i / heads, head = i % heads;
    m[i] = (double)layer;
    m[n + i] = (double)head;
    m[3 * n + i] = first[(size_t)i * stride];
  }
  d->series[d->figure.series_count - 1].points = true;
}

void wn_drawing_layer_line(struct wn_drawing *d, int64_t layers, const double *first, size_t stride, int colour,
                           int dash, const char *name) {
  double *m = wn_drawing_line(d, layers, colour, dash, name);
  if (!m) return;
  for (int64_t k = 0; k < layers; k++) {
    m[k] = (double)k;
    m[layers + k] = NAN; /* a layer has no x on the axis of heads */
    m[3 * layers + k] = first[(size_t)k * stride];
  }
}

void wn_drawing_cell(struct wn_drawing *d, const char *format, ...) {
  char text[320];
  va_list arguments;
  if (d->status == WN_OK) d->status = WN_GROW(d->ctx, "a table's cells", &d->cells, d->cell_count, 1, &d->cell_room);
  if (d->status != WN_OK) return;
  va_start(arguments, format);
  wn_print_list(text, sizeof text, format, arguments);
  va_end(arguments);
  char *cell = wn_strdup(d->ctx, text);
  if (cell)
    d->cells[d->cell_count++] = cell;
  else
    d->status = WN_ERR_MEMORY;
}

void wn_drawing_level(struct wn_drawing *d, const char *name, double y) {
  if (d->figure.level_count < WN_DRAWING_LEVELS)
    d->levels[d->figure.level_count++] = (wn_figure_level){.name = name, .y = y};
}

wn_status wn_drawing_save_svg(struct wn_drawing *d, const char *title, const char *path) {
  d->figure.title = title;
  d->figure.command = "";
  const wn_status status = d->status == WN_OK ? wn_figure_save_svg(d->ctx, &d->figure, path) : d->status;
  wn_drawing_clear(d);
  return status;
}
