/* Series of a report's figures, with memory of their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "report.h"

double *report_line(struct report_lines *l, int64_t count, int colour, int dash, const char *name) {
  if (l->count == REPORT_LINES) return NULL;
  double *m = malloc((size_t)(count > 0 ? count : 1) * 4 * sizeof *m);
  if (!m) return NULL;
  l->memory[l->count] = m;
  snprintf(l->names[l->count], sizeof l->names[0], "%s", name);
  l->series[l->count] = (wn_figure_series){.name = l->names[l->count],
                                           .count = count,
                                           .x = {m, m + count, m + 2 * count},
                                           .y = m + 3 * count,
                                           .colour = colour % 8,
                                           .dash = dash % 4};
  l->count++;
  return m;
}

bool report_head_points(struct report_lines *l, int64_t layers, int64_t heads, const double *first, size_t stride,
                        int colour, const char *name) {
  const int64_t n = layers * heads;
  double *m = report_line(l, n, colour, 0, name);
  if (!m) return false;
  for (int64_t i = 0; i < n; i++) {
    m[i] = (double)(i / heads);
    m[n + i] = (double)(i % heads);
    m[3 * n + i] = first[(size_t)i * stride];
  }
  l->series[l->count - 1].points = true;
  return true;
}

bool report_layer_line(struct report_lines *l, int64_t layers, const double *first, size_t stride, int colour, int dash,
                       const char *name) {
  double *m = report_line(l, layers, colour, dash, name);
  if (!m) return false;
  for (int64_t k = 0; k < layers; k++) {
    m[k] = (double)k;
    m[layers + k] = NAN; /* a layer has no place on the axis of heads */
    m[3 * layers + k] = first[(size_t)k * stride];
  }
  return true;
}

void report_lines_clear(struct report_lines *l) {
  for (int i = 0; i < l->count; i++) free(l->memory[i]);
  l->count = 0;
}
