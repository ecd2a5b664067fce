/* Figures as SVG: lines with bands, points, bars and cells over linear or logarithmic axes, with the legend below.
 * Colours are classes of a style sheet, which has a second set for dark backgrounds. No scripts, no embedded fonts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "base/number.h"
#include "report/figure.h"
#include "text/utf8.h"

enum {
  WIDTH = 760,
  PLOT_HEIGHT = 380,
  LEFT = 70,
  RIGHT = 20,
  TOP = 44,
  BOTTOM = 48,
  ROW = 20,
  TICKS = 64,
  FAR = 10000,
  FEW = 24,
  SIGN = 44, /* in the legend: width of a line's sample, and roughly of a letter */
  LETTER = 7,
  LETTERS = (WIDTH - RIGHT - LEFT - SIGN) / LETTER
};

static const char svg_style_sheet[] =
    "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px}\n"
    ".ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#57606a}.title{font-size:15px;font-weight:600}\n"
    ".grid{stroke:#d8dee4}.axis{stroke:#8c959f}.level{stroke:#57606a;stroke-dasharray:5 4}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.s1{stroke-dasharray:7 4}.s2{stroke-dasharray:2 3}\n"
    ".s3{stroke-dasharray:9 3 2 3}.band{fill-opacity:0.15}\n"
    ".c0{stroke:#0a5fc4}.f0{fill:#0a5fc4}.c1{stroke:#c2410c}.f1{fill:#c2410c}.c2{stroke:#15803d}.f2{fill:#15803d}\n"
    ".c3{stroke:#9d2fa8}.f3{fill:#9d2fa8}.c4{stroke:#92700c}.f4{fill:#92700c}.c5{stroke:#64748b}.f5{fill:#64748b}\n"
    ".c6{stroke:#0e7c86}.f6{fill:#0e7c86}.c7{stroke:#be185d}.f7{fill:#be185d}\n"
    "@media "
    "(prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9ea7b3}.grid{stroke:#2b323b}\n"
    ".axis{stroke:#6e7681}.level{stroke:#9ea7b3}\n"
    ".c0{stroke:#6cb6ff}.f0{fill:#6cb6ff}.c1{stroke:#ff9b5e}.f1{fill:#ff9b5e}.c2{stroke:#5fd38a}.f2{fill:#5fd38a}\n"
    ".c3{stroke:#e08cf0}.f3{fill:#e08cf0}.c4{stroke:#e3bf4e}.f4{fill:#e3bf4e}.c5{stroke:#a9b6c6}.f5{fill:#a9b6c6}\n"
    ".c6{stroke:#4fd3de}.f6{fill:#4fd3de}.c7{stroke:#ff8cb8}.f7{fill:#ff8cb8}}\n";

/* An axis: the data's range (log10 on a logarithmic axis), and its place in the picture. */
struct scale {
  bool log, whole; /* whole: only whole numbers are marked */
  double low, high, from, to;
};

static bool svg_usable(const struct scale *s, double v) {
  return isfinite(v) && (!s->log || v > 0);
}
static double svg_place(const struct scale *s, double v) {
  if (s->log) v = log10(v);
  return s->from + (s->high > s->low ? (v - s->low) / (s->high - s->low) : 0.5) * (s->to - s->from);
}

static void svg_widen(struct scale *s, double v) {
  if (!svg_usable(s, v)) return;
  if (s->log) v = log10(v);
  s->low = fmin(s->low, v);
  s->high = fmax(s->high, v);
}

/* The distance between about `want` ticks: 1, 2 or 5 times a power of ten. */
static double svg_step(double range, int want) {
  const double raw = range / want, power = pow(10, floor(log10(raw))), lead = raw / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static int svg_ticks(const struct scale *s, double out[TICKS]) {
  int n = 0;
  if (s->log && s->high - s->low >= 0.9) {
    static const double leads[] = {1, 2, 5};
    const int every = (int)ceil((s->high - s->low) / 10), each = s->high - s->low < 4 ? 3 : 1;
    for (int d = (int)floor(s->low); d <= (int)ceil(s->high) && n < TICKS - 3; d += every)
      for (int k = 0; k < each; k++) {
        const double at = d + log10(leads[k]);
        if (at >= s->low - 1e-9 && at <= s->high + 1e-9) out[n++] = leads[k] * pow(10, d);
      }
    return n;
  }
  const double low = s->log ? pow(10, s->low) : s->low, high = s->log ? pow(10, s->high) : s->high;
  if (!(high > low)) {
    out[0] = low;
    return 1;
  }
  double step = svg_step(high - low, 6);
  if (s->whole && step < 1) step = 1;
  for (double at = ceil(low / step - 1e-9) * step; at <= high + step * 1e-9 && n < TICKS; at += step)
    out[n++] = fabs(at) < step * 1e-6 ? 0 : at;
  return n;
}

static void svg_add_text(struct wn_text *t, double x, double y, const char *anchor, const char *class, const char *s) {
  wn_text_add(t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
  wn_html_add(t, s);
  wn_text_add(t, "</text>\n");
}

static void svg_write_tick(double v, char *out, size_t bytes) {
  if (fabs(v) >= 1e6 && fabs(v) < 1e12)
    wn_print(out, bytes, "%.6g%s", v / (fabs(v) < 1e9 ? 1e6 : 1e9), fabs(v) < 1e9 ? "M" : "G");
  else
    wn_print(out, bytes, "%.6g", v);
}

static const char *svg_axis_label(const wn_figure_axis *axis, char *out, size_t bytes) {
  snprintf(out, bytes, "%s%s", axis->label, axis->log ? " (logarithmic)" : "");
  return out;
}

static void svg_add_axes(struct wn_text *t, const wn_figure *f, const struct scale *x, const struct scale *y) {
  double at[TICKS];
  char label[40], title[300];
  int n = svg_ticks(y, at);
  for (int i = 0; i < n; i++) {
    const double p = svg_place(y, at[i]);
    svg_write_tick(at[i], label, sizeof label);
    wn_text_add(t, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, WIDTH - RIGHT, p, p);
    svg_add_text(t, LEFT - 6, p + 4, "end", "soft", label);
  }
  n = svg_ticks(x, at);
  double last = -1e9;
  for (int i = 0; i < n; i++) {
    const double p = svg_place(x, at[i]);
    svg_write_tick(at[i], label, sizeof label);
    wn_text_add(t, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", p, p, TOP + PLOT_HEIGHT,
                TOP + PLOT_HEIGHT + 4);
    if (p - last < 8 + 7 * (double)strlen(label)) continue;
    svg_add_text(t, p, TOP + PLOT_HEIGHT + 18, "middle", "soft", label);
    last = p;
  }
  wn_text_add(t, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT, WIDTH - RIGHT,
              TOP + PLOT_HEIGHT, TOP + PLOT_HEIGHT);
  svg_add_text(t, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT_HEIGHT + 38, "middle", "soft",
               svg_axis_label(&f->x[0], title, sizeof title));
  wn_text_add(t, "<g transform=\"translate(16 %.1f) rotate(-90)\">", TOP + PLOT_HEIGHT / 2.0);
  svg_add_text(t, 0, 0, "middle", "soft", svg_axis_label(&f->y, title, sizeof title));
  wn_text_add(t, "</g>\n");
}

/* Bars start at the bottom of the plot; bars with the same x stand side by side. */
static void svg_add_bars(struct wn_text *t, const wn_figure *f, int s, const struct scale *x, const struct scale *y,
                         double width) {
  const wn_figure_series *bars = &f->series[s];
  for (int64_t i = 0; i < bars->count; i++) {
    if (!svg_usable(x, bars->x[0][i]) || !svg_usable(y, bars->y[i])) continue;
    const double left = svg_place(x, bars->x[0][i]) + width * (s - f->series_count / 2.0);
    const double top = fmax(TOP, fmin(TOP + PLOT_HEIGHT, svg_place(y, bars->y[i])));
    wn_text_add(t, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", bars->colour, left,
                top, fmax(width - 1, 0.6), TOP + PLOT_HEIGHT - top);
  }
}

/* The sides of the cell around a point: left, right, top and bottom, in the figure's numbers. */
static void svg_cell(const wn_figure *f, double x, double y, double out[4]) {
  const double half = f->cell[0] / 2, root = sqrt(f->cell[0]);
  out[0] = f->x[0].log ? x / root : x - half, out[1] = f->x[0].log ? x * root : x + half;
  out[2] = y - f->cell[1] / 2, out[3] = y + f->cell[1] / 2;
}

/* Cells, as dark as their z, which stands in them. */
static void svg_add_cells(struct wn_text *t, const wn_figure *f, const wn_figure_series *cells, const struct scale *x,
                          const struct scale *y) {
  char value[40];
  double at[4];
  for (int64_t i = 0; i < cells->count; i++) {
    if (!svg_usable(x, cells->x[0][i]) || !svg_usable(y, cells->y[i]) || !isfinite(cells->z[i])) continue;
    svg_cell(f, cells->x[0][i], cells->y[i], at);
    const double left = svg_place(x, at[0]), top = svg_place(y, at[2]), right = svg_place(x, at[1]),
                 bottom = svg_place(y, at[3]);
    wn_text_add(t, "<rect class=\"f%d\" fill-opacity=\"%.2f\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                cells->colour, 0.7 * fmax(0, fmin(1, cells->z[i] / f->z_max)), left, top, right - left, bottom - top);
    wn_print(value, sizeof value, "%.3g", cells->z[i]);
    svg_add_text(t, (left + right) / 2, (top + bottom) / 2 + 4, "middle", "ink", value);
  }
}

static void svg_add_mark(struct wn_text *t, int colour, double x, double y, const char *radius) {
  wn_text_add(t, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>\n", colour, x, y, radius);
}

static void svg_add_points(struct wn_text *t, const wn_figure_series *points, const struct scale *x,
                           const struct scale *y) {
  for (int64_t i = 0; i < points->count; i++) {
    if (!svg_usable(x, points->x[0][i]) || !svg_usable(y, points->y[i])) continue;
    const double at = svg_place(y, points->y[i]);
    if (at >= TOP)
      svg_add_mark(t, points->colour, svg_place(x, points->x[0][i]), fmin(TOP + PLOT_HEIGHT, at),
                   points->count > 300 ? "1.5" : "3");
  }
}

/* The place of a line's point; +infinity is far above the plot, where the clip path cuts lines off. False: the point
 * cannot be drawn. */
static bool svg_point(const wn_figure_series *line, int64_t i, const struct scale *x, const struct scale *y,
                      double at[2]) {
  if (i < 0 || i >= line->count || !svg_usable(x, line->x[0][i])) return false;
  at[0] = svg_place(x, line->x[0][i]);
  at[1] = line->y[i] == INFINITY ? -FAR : svg_usable(y, line->y[i]) ? svg_place(y, line->y[i]) : NAN;
  return !isnan(at[1]);
}

/* Draws a line, with gaps at points that cannot be drawn. */
static void svg_add_line(struct wn_text *t, const wn_figure_series *line, const struct scale *x,
                         const struct scale *y) {
  double at[2], other[2];
  bool any = false;
  for (int64_t i = 0; i < line->count; i++) {
    if (!svg_point(line, i, x, y, at)) continue;
    if (!any) wn_text_add(t, "<path class=\"line c%d s%d\" d=\"", line->colour, line->dash);
    wn_text_add(t, "%s%.1f %.1f", any && svg_point(line, i - 1, x, y, other) ? "L" : "M", at[0], at[1]);
    any = true;
  }
  if (any) wn_text_add(t, "\"/>\n");
}

/* Draws a line's marks: all of them (`all`: they are few and cannot be mistaken for points, as on a page), else only
 * single points between two gaps. */
static void svg_add_line_marks(struct wn_text *t, const wn_figure_series *line, bool all, const struct scale *x,
                               const struct scale *y) {
  double at[2], other[2];
  for (int64_t i = 0; i < line->count; i++)
    if (svg_point(line, i, x, y, at) && at[1] >= TOP &&
        ((all && line->count <= FEW) || (!svg_point(line, i - 1, x, y, other) && !svg_point(line, i + 1, x, y, other))))
      svg_add_mark(t, line->colour, at[0], at[1], "3");
}

/* The band around a line, from y - z to y + z. */
static void svg_add_band(struct wn_text *t, const wn_figure_series *line, const struct scale *x,
                         const struct scale *y) {
  const int64_t n = line->z ? line->count : 0;
  bool any = false;
  for (int64_t k = 0; k < 2 * n; k++) { /* there above the line, and back below it */
    const int64_t i = k < n ? k : 2 * n - 1 - k;
    const double edge = line->y[i] + (k < n ? line->z[i] : -line->z[i]);
    if (!svg_usable(x, line->x[0][i]) || !svg_usable(y, edge)) continue;
    if (!any) wn_text_add(t, "<path class=\"band f%d\" d=\"", line->colour);
    wn_text_add(t, "%s%.1f %.1f", any ? "L" : "M", svg_place(x, line->x[0][i]), svg_place(y, edge));
    any = true;
  }
  if (any) wn_text_add(t, "Z\"/>\n");
}

static void svg_add_series(struct wn_text *t, const wn_figure *f, int s, const struct scale *x, const struct scale *y,
                           double bar) {
  if (f->bars)
    svg_add_bars(t, f, s, x, y, bar);
  else if (f->cell[0] > 0)
    svg_add_cells(t, f, &f->series[s], x, y);
  else if (f->series[s].points)
    svg_add_points(t, &f->series[s], x, y);
  else
    svg_add_band(t, &f->series[s], x, y), svg_add_line(t, &f->series[s], x, y);
}

static size_t svg_letters(const char *s) {
  return wn_utf8_characters(s, strlen(s));
}
static const char *svg_skip(const char *s, size_t letters) {
  for (; *s && (letters > 0 || ((unsigned char)*s & 0xC0) == 0x80); s++)
    letters -= ((unsigned char)s[0] & 0xC0) != 0x80;
  return s;
}

/* A name for the legend; one that is wider than the plot loses its middle. */
static const char *svg_shorten(const char *name, char *out, size_t bytes) {
  const size_t n = svg_letters(name), head = (LETTERS - 1) / 2, tail = LETTERS - 1 - head;
  if (n <= LETTERS) return name;
  snprintf(out, bytes, "%.*s\xE2\x80\xA6%s", (int)(svg_skip(name, head) - name), name, svg_skip(name, n - tail));
  return out;
}

/* Draws the legend below the plot; returns its number of rows. */
static int svg_add_legend(struct wn_text *t, const wn_figure *f) {
  const double top = TOP + PLOT_HEIGHT + BOTTOM + 14;
  double at = LEFT;
  int row = 0;
  for (int s = 0; s < f->series_count; s++) {
    const wn_figure_series *line = &f->series[s];
    char shorter[4 * LETTERS + 8];
    const char *name = svg_shorten(line->name, shorter, sizeof shorter);
    const double width = SIGN + LETTER * (double)svg_letters(name), y = top + ROW * row;
    if (at > LEFT && at + width > WIDTH - RIGHT) at = LEFT, row++;
    const double here = y + (at == LEFT && row > 0 ? top + ROW * row - y : 0);
    if (line->points)
      wn_text_add(t, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", line->colour, at + 14, here - 4);
    else if (f->bars)
      wn_text_add(t, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"8\"/>\n", line->colour, at + 8,
                  here - 8);
    else
      wn_text_add(t, "<path class=\"line c%d s%d\" d=\"M%.1f %.1fh24\"/>\n", line->colour, line->dash, at, here - 4);
    svg_add_text(t, at + 30, here, "start", "ink", name);
    at += width;
  }
  return f->series_count > 0 ? row + 1 : 0;
}

/* Computes the axes' ranges: data, levels, the bottom of bars, some room at the edges, at most y_max. Returns a bar's
 * width. */
static double svg_find_scales(const wn_figure *f, bool points, struct scale *x, struct scale *y) {
  const bool cells = f->cell[0] > 0;
  int64_t most = 1;
  double bar = 0, at[4];
  *x = (struct scale){
      .log = f->x[0].log, .whole = true, .low = INFINITY, .high = -INFINITY, .from = LEFT, .to = WIDTH - RIGHT};
  *y = (struct scale){.log = f->y.log, .low = INFINITY, .high = -INFINITY, .from = TOP + PLOT_HEIGHT, .to = TOP};
  if (cells) y->from = TOP, y->to = TOP + PLOT_HEIGHT;
  for (int s = 0; s < f->series_count; s++) {
    const wn_figure_series *line = &f->series[s];
    if (line->count > most) most = line->count;
    for (int64_t i = 0; i < line->count; i++) {
      if (!svg_usable(x, line->x[0][i]) || !svg_usable(y, line->y[i])) continue;
      svg_widen(x, line->x[0][i]);
      x->whole &= line->x[0][i] == floor(line->x[0][i]);
      svg_widen(y, line->y[i]);
      if (cells) {
        svg_cell(f, line->x[0][i], line->y[i], at);
        svg_widen(x, at[0]), svg_widen(x, at[1]), svg_widen(y, at[2]), svg_widen(y, at[3]);
      } else if (line->z) {
        svg_widen(y, line->y[i] - line->z[i]), svg_widen(y, line->y[i] + line->z[i]);
      }
    }
  }
  for (int l = 0; l < f->level_count; l++) svg_widen(y, f->levels[l].y);
  if (f->bars && !y->log) svg_widen(y, 0);
  if (!(x->high >= x->low)) x->low = 0, x->high = 1;
  if (!(y->high >= y->low)) y->low = 0, y->high = 1;
  const double cut = f->y_max > 0 ? (y->log ? log10(f->y_max) : f->y_max) : INFINITY;
  if (y->high > cut) y->high = cut;
  const double room = cells ? 0 : (y->high > y->low ? y->high - y->low : fmax(1, fabs(y->high))) * 0.04;
  if (!(f->bars && y->low == 0)) y->low -= room;
  y->high += room;
  if (f->bars) {
    const double half = (x->high - x->low) / (2 * (double)(most > 1 ? most - 1 : 1));
    x->low -= half > 0 ? half : 0.5, x->high += half > 0 ? half : 0.5;
    bar = 0.8 * (WIDTH - RIGHT - LEFT) / (double)most / f->series_count;
  }
  if (points && !x->log) { /* keep marks clear of the edges */
    const double margin = x->high > x->low ? (x->high - x->low) * 0.03 : 0.5;
    x->low -= margin, x->high += margin;
  }
  return bar;
}

static void svg_add_levels(struct wn_text *t, const wn_figure *f, const struct scale *y) {
  for (int l = 0; l < f->level_count; l++) {
    const double at = svg_place(y, f->levels[l].y);
    if (!svg_usable(y, f->levels[l].y)) continue;
    wn_text_add(t, "<line class=\"level\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, WIDTH - RIGHT, at,
                at);
    svg_add_text(t, WIDTH - RIGHT - 4, at - 5, "end", "soft", f->levels[l].name);
  }
}

wn_status wn_figure_save_svg(wn_context *ctx, const wn_figure *f, const char *path) {
  WN_CHECK_CALL(WN_POINTER_AS("figure", f), WN_POINTER(path));
  struct wn_text body = {0}, text = {0};
  struct scale x, y;
  bool points = false;
  WN_TRY(wn_figure_check(ctx, f));
  for (int s = 0; s < f->series_count; s++) points |= f->series[s].points;
  const double bar = svg_find_scales(f, points, &x, &y);
  svg_add_text(&body, LEFT, 24, "start", "title ink", f->title);
  svg_add_axes(&body, f, &x, &y);
  svg_add_levels(&body, f, &y);
  wn_text_add(&body, "<clipPath id=\"in\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n", LEFT,
              TOP - 2, WIDTH - RIGHT - LEFT, PLOT_HEIGHT + 2);
  wn_text_add(&body, "<g clip-path=\"url(#in)\">\n");
  for (int s = 0; s < f->series_count; s++)
    if (f->series[s].points) svg_add_series(&body, f, s, &x, &y, bar); /* marks first, so that lines lie over them */
  for (int s = 0; s < f->series_count; s++)
    if (!f->series[s].points) svg_add_series(&body, f, s, &x, &y, bar);
  wn_text_add(&body, "</g>\n");
  for (int s = 0; s < f->series_count && !f->bars && f->cell[0] <= 0; s++)
    if (!f->series[s].points) svg_add_line_marks(&body, &f->series[s], !points, &x, &y);
  const int height = TOP + PLOT_HEIGHT + BOTTOM + 8 + (f->cell[0] > 0 ? 0 : ROW * svg_add_legend(&body, f));
  wn_text_add(&text,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
              "role=\"img\">\n<title>",
              WIDTH, height, WIDTH, height);
  wn_html_add(&text, f->title);
  wn_text_add(&text, "</title>\n<style>\n%s</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n",
              svg_style_sheet, WIDTH, height);
  wn_text_add(&text, "%s</svg>\n", body.data ? body.data : "");
  text.failed |= body.failed;
  wn_free(body.data);
  return wn_text_save(ctx, &text, path);
}
