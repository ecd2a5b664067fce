/* Line plots as SVG. Colours and dashes are classes of a style sheet with a second set for dark ground, so that one
 * file serves both. Labels of lines stand to the left of their first points, where budgets are small and lines lie
 * apart; those that would touch are moved down and tied to their point by a thin line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "winnow/report.h"

enum {
  WIDTH = 1080,
  HEIGHT = 560,
  LEFT = 64,
  RIGHT = 320,  /* names of levels, then the legend */
  LEGEND = 170, /* the legend alone */
  TOP = 52,
  BOTTOM = 56,
  LINE = 14,  /* between labels */
  FAR = 10000 /* above the plot: where lines go that leave it */
};

static const char style_sheet[] =
    "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px}\n"
    ".ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#57606a}.title{font-size:15px;font-weight:600}\n"
    ".grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}.tie{stroke:#afb8c1;stroke-width:1}\n"
    ".level{stroke:#57606a;stroke-width:1.2}.line{fill:none;stroke-width:2;stroke-linejoin:round}\n"
    ".s0{}.s1{stroke-dasharray:7 4}.s2{stroke-dasharray:2 3}.s3{stroke-dasharray:9 3 2 3}\n"
    ".c0{stroke:#0a5fc4}.f0{fill:#0a5fc4}.c1{stroke:#c2410c}.f1{fill:#c2410c}.c2{stroke:#15803d}.f2{fill:#15803d}\n"
    ".c3{stroke:#9d2fa8}.f3{fill:#9d2fa8}.c4{stroke:#92700c}.f4{fill:#92700c}.c5{stroke:#64748b}.f5{fill:#64748b}\n"
    ".c6{stroke:#0e7c86}.f6{fill:#0e7c86}.c7{stroke:#be185d}.f7{fill:#be185d}\n"
    "@media (prefers-color-scheme:dark){\n"
    ".ground{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9ea7b3}.grid{stroke:#2b323b}.axis{stroke:#6e7681}\n"
    ".tie{stroke:#484f58}.level{stroke:#9ea7b3}\n"
    ".c0{stroke:#6cb6ff}.f0{fill:#6cb6ff}.c1{stroke:#ff9b5e}.f1{fill:#ff9b5e}.c2{stroke:#5fd38a}.f2{fill:#5fd38a}\n"
    ".c3{stroke:#e08cf0}.f3{fill:#e08cf0}.c4{stroke:#e3bf4e}.f4{fill:#e3bf4e}.c5{stroke:#a9b6c6}.f5{fill:#a9b6c6}\n"
    ".c6{stroke:#4fd3de}.f6{fill:#4fd3de}.c7{stroke:#ff8cb8}.f7{fill:#ff8cb8}\n"
    "}\n";

struct frame {
  double x0, x1, y0, y1; /* the data's; x in log2 unless `x_linear`, y in log where `log_y` */
  bool x_linear;
  bool log_y;
  double left; /* of the first points: labels stand before it */
};

static double scale_x(const struct frame *f, double x) {
  return f->x_linear ? x : log2(x);
}

static double place_x(const struct frame *f, double x) {
  const double right = WIDTH - RIGHT;
  return f->x1 > f->x0 ? f->left + (scale_x(f, x) - f->x0) / (f->x1 - f->x0) * (right - f->left - 8)
                       : (f->left + right) / 2;
}

static double place_y(const struct frame *f, double y) {
  const double v = f->log_y ? log(y) : y;
  const double at = HEIGHT - BOTTOM - (v - f->y0) / (f->y1 - f->y0) * (HEIGHT - BOTTOM - TOP);
  return fmax(at, -FAR);
}

static void add_escaped(struct wn_text *t, const char *s) {
  for (; *s; s++) {
    if (*s == '&')
      wn_text_add(t, "&amp;");
    else if (*s == '<')
      wn_text_add(t, "&lt;");
    else if (*s == '>')
      wn_text_add(t, "&gt;");
    else if ((unsigned char)*s >= 32)
      wn_text_add(t, "%c", *s);
  }
}

static void add_label(struct wn_text *t, double x, double y, const char *anchor, const char *class, const char *s) {
  wn_text_add(t, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
  add_escaped(t, s);
  wn_text_add(t, "</text>\n");
}

static void add_line(struct wn_text *t, const char *class, double x0, double y0, double x1, double y1) {
  wn_text_add(t, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x0, y0, x1, y1);
}

static void add_marker(struct wn_text *t, int colour, int style, double x, double y) {
  if (style == 0)
    wn_text_add(t, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"/>\n", colour, x, y);
  else if (style == 1)
    wn_text_add(t, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"5.6\" height=\"5.6\"/>\n", colour, x - 2.8,
                y - 2.8);
  else
    wn_text_add(t, "<path class=\"f%d\" d=\"M%.1f %.1f l3.8 6.4 h-7.6 z\"/>\n", colour, x, y - 4.2);
}

static void widen(struct frame *f, double y) {
  if (y < f->y0) f->y0 = y;
  if (y > f->y1) f->y1 = y;
}

static void find_frame(const wn_plot *p, struct frame *f) {
  size_t longest = 0;
  *f = (struct frame){INFINITY, -INFINITY, INFINITY, -INFINITY, p->x_linear, false, 0};
  for (int s = 0; s < p->series_count; s++) {
    const char *label = p->series[s].label ? p->series[s].label : "";
    for (int64_t i = 0; i < p->series[s].count; i++) {
      f->x0 = fmin(f->x0, scale_x(f, p->series[s].x[i]));
      f->x1 = fmax(f->x1, scale_x(f, p->series[s].x[i]));
      const double y = p->series[s].y[i];
      if (isfinite(y) && (p->y_limit <= 0 || y <= p->y_limit)) widen(f, y);
    }
    if (strlen(label) > longest) longest = strlen(label);
  }
  f->left = LEFT + 34 + 6.8 * (double)(longest < 40 ? longest : 40);
  for (int i = 0; i < p->level_count; i++)
    if (isfinite(p->levels[i].y)) widen(f, p->levels[i].y);
  if (f->y0 > f->y1) f->y0 = 0, f->y1 = p->y_limit > 0 && isfinite(p->y_limit) ? p->y_limit : 1; /* all is beyond */
  f->log_y = f->y0 > 0 && f->y1 > 3 * f->y0;
  if (f->log_y) f->y0 = log(f->y0), f->y1 = log(f->y1);
  const double margin = f->y1 > f->y0 ? 0.04 * (f->y1 - f->y0) : 0.5;
  f->y0 -= margin;
  f->y1 += margin;
}

/* 1, 2 or 5 times a power of ten: about 8 steps. */
static double even_step(double range) {
  const double raw = range / 8, power = pow(10, floor(log10(raw)));
  return raw / power <= 1 ? power : raw / power <= 2 ? 2 * power : raw / power <= 5 ? 5 * power : 10 * power;
}

static void add_axes(struct wn_text *t, const wn_plot *p, const struct frame *f) {
  char text[32];
  const double right = WIDTH - RIGHT, bottom = HEIGHT - BOTTOM;
  static const double mantissas[] = {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8};
  double last = INFINITY, step = 1;
  if (!f->log_y) step = even_step(f->y1 - f->y0);
  const int from = f->log_y ? (int)floor(f->y0 / log(10)) : 0;
  for (int k = 0; k < 400; k++) { /* ticks ascending; those too close to the one before are left out */
    const double y = f->log_y ? mantissas[k % 10] * pow(10, from + k / 10) : (ceil(f->y0 / step) + k) * step;
    const double v = f->log_y ? log(y) : y, at = v <= f->y1 && v >= f->y0 ? place_y(f, y) : NAN;
    if (v > f->y1) break;
    if (isnan(at) || last - at < 24) continue;
    last = at;
    add_line(t, "grid", LEFT, at, right, at);
    snprintf(text, sizeof text, "%.6g", y);
    add_label(t, LEFT - 8, at + 4, "end", "soft", text);
  }
  const double x_step = f->x_linear && f->x1 > f->x0 ? even_step(f->x1 - f->x0) : 1;
  for (double k = ceil(f->x0 / x_step - 1e-9); k <= floor(f->x1 / x_step + 1e-9); k++) {
    const double x = f->x_linear ? k * x_step : exp2(k), at = place_x(f, x);
    add_line(t, "grid", at, TOP, at, bottom);
    snprintf(text, sizeof text, "%.6g", x);
    add_label(t, at, bottom + 18, "middle", "soft", text);
  }
  add_line(t, "axis", LEFT, bottom, right, bottom);
  add_label(t, LEFT, TOP - 28, "start", "ink title", p->title);
  add_label(t, LEFT - 48, TOP - 9, "start", "soft", p->y_label);
  add_label(t, (f->left + right) / 2, HEIGHT - 16, "middle", "soft", p->x_label);
}

struct label {
  const wn_plot_series *series;
  double at; /* of its first point */
};
static int by_place(const void *a, const void *b) {
  const double x = ((const struct label *)a)->at, y = ((const struct label *)b)->at;
  return x < y ? -1 : x > y;
}

static void add_labels(struct wn_text *t, const wn_plot *p, const struct frame *f, struct label *labels) {
  int n = 0;
  for (int s = 0; s < p->series_count; s++)
    if (p->series[s].count > 0 && p->series[s].label &&
        scale_x(f, p->series[s].x[0]) < f->x0 + (f->x_linear ? 0.04 * (f->x1 - f->x0) : 0.3))
      labels[n++] = (struct label){&p->series[s], fmax(place_y(f, p->series[s].y[0]), TOP)};
  if (n == 0) return;
  qsort(labels, (size_t)n, sizeof *labels, by_place);
  double next = TOP + 4, room = HEIGHT - BOTTOM - 4;
  for (int i = 0; i < n; i++) {
    const double latest = room - (double)(n - 1 - i) * LINE; /* those below need their places too */
    double at = labels[i].at < next ? next : labels[i].at;
    if (at > latest) at = latest;
    next = at + LINE;
    const wn_plot_series *s = labels[i].series;
    const double x = place_x(f, s->x[0]);
    char class[8];
    snprintf(class, sizeof class, "f%d", s->colour);
    add_line(t, "tie", x - 24, at, x - 6, labels[i].at);
    add_label(t, x - 28, at + 4, "end", class, s->label);
  }
}

static void add_legend(struct wn_text *t, const wn_plot *p) {
  const double x = WIDTH - LEGEND;
  double y = TOP + 8;
  char class[32];
  if (p->colour_title) add_label(t, x, y + 4, "start", "soft", p->colour_title), y += 20;
  for (int i = 0; i < p->colour_count; i++, y += 20) {
    snprintf(class, sizeof class, "line c%d", i);
    add_line(t, class, x, y, x + 26, y);
    add_label(t, x + 34, y + 4, "start", "ink", p->colours[i]);
  }
  y += 12;
  if (p->style_title) add_label(t, x, y + 4, "start", "soft", p->style_title), y += 20;
  for (int i = 0; i < p->style_count; i++, y += 20) {
    snprintf(class, sizeof class, "line c5 s%d", i);
    add_line(t, class, x, y, x + 26, y);
    add_marker(t, 5, i, x + 13, y);
    add_label(t, x + 34, y + 4, "start", "ink", p->styles[i]);
  }
}

/* Named at the right end; names that would touch are moved apart, upwards from the lowest. */
static void add_levels(struct wn_text *t, const wn_plot *p, const struct frame *f) {
  bool done[WN_PLOT_STYLES] = {false};
  double room = HEIGHT - BOTTOM - 2;
  char class[32];
  for (int n = 0; n < p->level_count; n++) {
    int lowest = -1;
    for (int i = 0; i < p->level_count; i++)
      if (!done[i] && (lowest < 0 || p->levels[i].y < p->levels[lowest].y)) lowest = i;
    done[lowest] = true;
    if (!isfinite(p->levels[lowest].y)) continue;
    const double at = place_y(f, p->levels[lowest].y), text = at + 4 < room ? at + 4 : room;
    snprintf(class, sizeof class, "level s%d", p->levels[lowest].style);
    add_line(t, class, f->left, at, WIDTH - RIGHT, at);
    add_label(t, WIDTH - RIGHT + 6, text, "start", "soft", p->levels[lowest].label);
    room = text - LINE;
  }
}

static void draw(struct wn_text *t, const wn_plot *p, struct label *labels) {
  struct frame f;
  find_frame(p, &f);
  wn_text_add(t,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
              "role=\"img\">\n<title>",
              WIDTH, HEIGHT, WIDTH, HEIGHT);
  add_escaped(t, p->title);
  wn_text_add(t, "</title>\n<style>\n%s</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n", style_sheet,
              WIDTH, HEIGHT);
  add_axes(t, p, &f);
  add_levels(t, p, &f);
  wn_text_add(t, "<clipPath id=\"in\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n", LEFT, TOP,
              WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP);
  wn_text_add(t, "<g clip-path=\"url(#in)\">\n");
  for (int s = 0; s < p->series_count; s++) {
    const wn_plot_series *line = &p->series[s];
    if (line->count < 1) continue;
    wn_text_add(t, "<path class=\"line c%d s%d\" d=\"", line->colour, line->style);
    for (int64_t i = 0; i < line->count; i++)
      wn_text_add(t, "%s%.1f %.1f", i ? " L" : "M", place_x(&f, line->x[i]), place_y(&f, line->y[i]));
    wn_text_add(t, "\"/>\n");
    for (int64_t i = 0; i < line->count && line->count <= 24; i++)
      add_marker(t, line->colour, line->style, place_x(&f, line->x[i]), place_y(&f, line->y[i]));
  }
  wn_text_add(t, "</g>\n");
  add_labels(t, p, &f, labels);
  add_legend(t, p);
  wn_text_add(t, "</svg>\n");
}

static bool above(double y) { /* a perplexity may be infinite */
  return y > -INFINITY;
}

static wn_status check(wn_context *ctx, const wn_plot *p) {
  bool ok = p->colour_count <= WN_PLOT_COLOURS && p->style_count <= WN_PLOT_STYLES && p->level_count <= WN_PLOT_STYLES;
  int64_t points = 0;
  for (int s = 0; ok && s < p->series_count; s++) {
    const wn_plot_series *line = &p->series[s];
    ok = line->colour >= 0 && line->colour < WN_PLOT_COLOURS && line->style >= 0 && line->style < WN_PLOT_STYLES;
    for (int64_t i = 0; ok && i < line->count; i++) ok = above(line->y[i]) && isfinite(line->x[i]) && line->x[i] > 0;
    points += line->count;
  }
  for (int i = 0; ok && i < p->level_count; i++) ok = above(p->levels[i].y) && p->levels[i].style >= 0;
  if (ok && points > 0) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT,
                 "plot: expected finite points (y may be +infinity), x above 0, at most %d colours and %d styles, and "
                 "at least one point",
                 WN_PLOT_COLOURS, WN_PLOT_STYLES);
}

wn_status wn_plot_save_svg(wn_context *ctx, const wn_plot *plot, const char *path) {
  struct wn_text text = {0};
  void *labels;
  WN_TRY(check(ctx, plot));
  WN_TRY(wn_alloc(ctx, "labels", (size_t)plot->series_count * sizeof(struct label), &labels));
  draw(&text, plot, labels);
  wn_free(labels);
  const wn_status status = text.failed ? wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path)
                                       : wn_file_write(ctx, path, text.data, text.bytes);
  wn_free(text.data);
  return status;
}
