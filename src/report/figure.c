/* Figures: checks, CSV, and their JSON for a page. */
#include "report/figure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/number.h"
#include "text/utf8.h"

enum { THIN_ABOVE = 2000, STRETCHES = 1000 };

wn_status wn_figure_check(wn_context *ctx, const wn_figure *f) {
  if (!f->id || !f->id[0]) return wn_fail(ctx, WN_ERR_ARGUMENT, "figure: no id");
  for (const char *c = f->id; *c; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-'))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "figure: the id \"%s\" has characters other than letters, digits and -",
                     f->id);
  if (!f->title || !f->about || !f->command)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "figure %s: expected a title, what it shows and a command", f->id);
  if (f->series_count == 0 && f->axes == 0) return WN_OK;
  bool ok = f->axes >= 1 && f->axes <= WN_FIGURE_AXES && f->y.label != NULL;
  for (int a = 0; ok && a < f->axes; a++) ok = f->x[a].label != NULL;
  for (int s = 0; ok && s < f->series_count; s++) {
    const wn_figure_series *line = &f->series[s];
    ok = line->name && line->count >= 0 && line->colour >= 0 && line->colour < 8 && line->dash >= 0 && line->dash < 4 &&
         (line->count == 0 || line->y) && (!line->z || f->z);
    for (int a = 0; ok && a < f->axes; a++) ok = line->count == 0 || line->x[a];
  }
  if (f->cell[0] > 0)
    ok = ok && f->z && f->z_max > 0 && f->cell[1] > 0 && (!f->x[0].log || f->cell[0] > 1) && !f->y.log && !f->bars;
  for (int l = 0; ok && l < f->level_count; l++) ok = f->levels[l].name && isfinite(f->levels[l].y);
  if (ok) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT,
                 "figure %s: expected 1 to %d axes with labels, and series with names, colours 0..7 and dashes 0..3; a "
                 "name for their z, and of cells the size and the largest z",
                 f->id, WN_FIGURE_AXES);
}

wn_status wn_text_save(wn_context *ctx, struct wn_text *text, const char *path) {
  const wn_status status = text->failed ? wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path)
                                        : wn_file_write(ctx, path, text->data, text->bytes);
  wn_free(text->data);
  *text = (struct wn_text){0};
  return status;
}

wn_status wn_figure_path(wn_context *ctx, const char *folder, const char *id, const char *ending, char *out,
                         size_t out_bytes) {
  char name[256];
  if (snprintf(name, sizeof name, "%s%s", id, ending) >= (int)sizeof name)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "figure %.40s...: the id is too long", id);
  return wn_path_join(ctx, out, out_bytes, folder, name);
}

void wn_csv_add(struct wn_text *t, const char *s) {
  if (!strpbrk(s, ",\"\r\n")) {
    wn_text_add(t, "%s", s);
    return;
  }
  wn_text_add(t, "\"");
  for (; *s; s++) wn_text_add(t, *s == '"' ? "\"\"" : "%c", *s);
  wn_text_add(t, "\"");
}

static void figure_add_number(struct wn_text *t, double v) {
  wn_text_add(t, ",");
  if (isfinite(v)) wn_text_add(t, "%.9g", v);
}

wn_status wn_figure_save_csv(wn_context *ctx, const wn_figure *f, const char *path) {
  WN_CHECK_CALL(WN_POINTER_AS("figure", f), WN_POINTER(path));
  struct wn_text text = {0};
  WN_TRY(wn_figure_check(ctx, f));
  wn_text_add(&text, "series");
  for (int a = 0; a < f->axes; a++) wn_text_add(&text, ","), wn_csv_add(&text, f->x[a].label);
  wn_text_add(&text, ",");
  wn_csv_add(&text, f->y.label);
  if (f->z) wn_text_add(&text, ","), wn_csv_add(&text, f->z);
  wn_text_add(&text, "\n");
  for (int s = 0; s < f->series_count; s++)
    for (int64_t i = 0; i < f->series[s].count; i++) {
      wn_csv_add(&text, f->series[s].name);
      for (int a = 0; a < f->axes; a++) figure_add_number(&text, f->series[s].x[a][i]);
      figure_add_number(&text, f->series[s].y[i]);
      if (f->z) figure_add_number(&text, f->series[s].z ? f->series[s].z[i] : NAN);
      wn_text_add(&text, "\n");
    }
  return wn_text_save(ctx, &text, path);
}

wn_status wn_table_save_csv(wn_context *ctx, const char *const *head, int columns, const char *const *cells,
                            int64_t rows, const char *path) {
  struct wn_text text = {0};
  for (int64_t r = -1; r < rows; r++)
    for (int c = 0; c < columns; c++) {
      const char *cell = r < 0 ? head[c] : cells[r * columns + c];
      if (cell) wn_csv_add(&text, cell);
      wn_text_add(&text, "%s", c + 1 < columns ? "," : "\n");
    }
  return wn_text_save(ctx, &text, path);
}

/* ---- for the page ---- */

static const char *figure_utf8(const char *s, char one[5]) {
  const int n = wn_utf8_sequence(s, strnlen(s, 4));
  if (n <= 0) return strcpy(one, "\xEF\xBF\xBD");
  memcpy(one, s, (size_t)n);
  one[n] = 0;
  return one;
}

static size_t figure_utf8_bytes(const char *s) {
  const int n = wn_utf8_sequence(s, strnlen(s, 4));
  return n > 0 ? (size_t)n : 1;
}

void wn_html_add(struct wn_text *out, const char *s) {
  char one[5];
  for (; *s; s += figure_utf8_bytes(s)) {
    const char *entity = *s == '&' ? "&amp;" : *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '"' ? "&quot;" : NULL;
    wn_text_add(out, "%s", entity ? entity : figure_utf8(s, one));
  }
}

json_t *wn_html_string(const char *s) {
  size_t bad;
  if (wn_utf8_check(s, strlen(s), &bad)) return json_string(s);
  struct wn_text text = {0};
  char one[5];
  for (; *s; s += figure_utf8_bytes(s)) wn_text_add(&text, "%s", figure_utf8(s, one));
  json_t *out = text.failed ? NULL : json_string(text.data ? text.data : "");
  wn_free(text.data);
  return out;
}

/* A number with seven digits, more than a screen shows. */
static json_t *figure_number(double v) {
  if (!isfinite(v)) return json_null();
  char s[40];
  wn_print(s, sizeof s, "%.7g", v);
  v = wn_number_read(s, NULL);
  if (v == floor(v) && fabs(v) < 1e15) return json_integer((json_int_t)v);
  return json_real(v);
}

/* Chooses the points to draw, as ascending indices: all of them; or of a long line the smallest and the largest of
 * every stretch; or of many marks without a line, whose density matters, every n-th. Returns how many. */
static int64_t figure_thin(const wn_figure_series *s, int64_t *at) {
  int64_t n = 0;
  if (s->count <= THIN_ABOVE) {
    for (; n < s->count; n++) at[n] = n;
    return n;
  }
  if (s->points) {
    for (; n < THIN_ABOVE; n++) at[n] = s->count * n / THIN_ABOVE;
    return n;
  }
  for (int64_t k = 0; k < STRETCHES; k++) {
    const int64_t from = s->count * k / STRETCHES, to = s->count * (k + 1) / STRETCHES;
    int64_t least = from, largest = from;
    for (int64_t i = from; i < to; i++) {
      if (s->y[i] < s->y[least] || !isfinite(s->y[least])) least = i;
      if (s->y[i] > s->y[largest] || !isfinite(s->y[largest])) largest = i;
    }
    at[n++] = least < largest ? least : largest;
    if (least != largest) at[n++] = least < largest ? largest : least;
  }
  return n;
}

static json_t *figure_axis_json(const wn_figure_axis *a) {
  return json_pack("{s:o, s:b}", "label", wn_html_string(a->label), "log", (int)a->log);
}

static json_t *figure_numbers(const double *values, const int64_t *at, int64_t n) {
  json_t *out = json_array();
  for (int64_t i = 0; i < n; i++) json_array_append_new(out, figure_number(values[at[i]]));
  return out;
}

/* Means of a thinned line's stretches, [axes] of x and y, for smoothing: a moving average over extremes would be biased
 * to their middle. */
static json_t *figure_means(const wn_figure *f, const wn_figure_series *s) {
  json_t *all[WN_FIGURE_AXES + 1], *x = json_array();
  for (int a = 0; a <= f->axes; a++) {
    const double *values = a < f->axes ? s->x[a] : s->y;
    all[a] = json_array();
    for (int64_t k = 0; k < STRETCHES; k++) {
      const int64_t from = s->count * k / STRETCHES, to = s->count * (k + 1) / STRETCHES;
      double sum = 0;
      int64_t n = 0;
      for (int64_t i = from; i < to; i++)
        if (isfinite(values[i])) sum += values[i], n++;
      json_array_append_new(all[a], figure_number(n > 0 ? sum / (double)n : NAN));
    }
    if (a < f->axes) json_array_append_new(x, all[a]);
  }
  return json_pack("{s:o, s:o}", "x", x, "y", all[f->axes]);
}

static json_t *figure_series_json(const wn_figure *f, const wn_figure_series *s) {
  int64_t at[THIN_ABOVE];
  const int64_t n = figure_thin(s, at);
  json_t *x = json_array();
  for (int a = 0; a < f->axes; a++) json_array_append_new(x, figure_numbers(s->x[a], at, n));
  json_t *out =
      json_pack("{s:o, s:i, s:i, s:b, s:b, s:o, s:o}", "name", wn_html_string(s->name), "colour", s->colour, "dash",
                s->dash, "points", (int)s->points, "hidden", (int)s->hidden, "x", x, "y", figure_numbers(s->y, at, n));
  if (out && s->z) json_object_set_new(out, "z", figure_numbers(s->z, at, n));
  if (out && s->key) json_object_set_new(out, "key", json_string(s->key));
  if (out && n < s->count) json_object_set_new(out, "all", json_integer(s->count));
  if (!out || n == s->count || !f->smooth || s->points || !json_object_set_new(out, "mean", figure_means(f, s)))
    return out;
  json_decref(out);
  return NULL;
}

json_t *wn_figure_json(const wn_figure *f) {
  json_t *axes = json_array(), *series = json_array(), *levels = json_array();
  for (int a = 0; a < f->axes; a++) json_array_append_new(axes, figure_axis_json(&f->x[a]));
  for (int s = 0; s < f->series_count; s++) json_array_append_new(series, figure_series_json(f, &f->series[s]));
  for (int l = 0; l < f->level_count; l++)
    json_array_append_new(
        levels, json_pack("{s:o, s:o}", "name", wn_html_string(f->levels[l].name), "y", figure_number(f->levels[l].y)));
  json_t *out = json_pack("{s:s, s:s, s:o, s:o, s:o, s:b, s:b, s:o, s:o}", "id", f->id, "kind", "chart", "title",
                          wn_html_string(f->title), "x", axes, "y", figure_axis_json(&f->y), "bars", (int)f->bars,
                          "smooth", (int)f->smooth, "series", series, "levels", levels);
  if (out && f->y_max > 0) json_object_set_new(out, "yMax", json_real(f->y_max));
  if (out && f->z) json_object_set_new(out, "z", wn_html_string(f->z));
  if (out && f->cell[0] > 0) json_object_set_new(out, "cell", json_pack("[f,f,f]", f->cell[0], f->cell[1], f->z_max));
  return out;
}
