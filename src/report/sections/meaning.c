/* How many tokens are needed for shares of the attention (Fernandez, Unsal, section 4): against context length, with
 * three fitted curves, and by layer and head. winnow analyze meaningful saves the same figures as files. */
#include <math.h>
#include <stdio.h>

#include "base/misuse.h"
#include "base/number.h"
#include "report/section.h"

enum { MEANING_LINES = 8, MEANING_CURVE = 100 };

static void meaning_percent(char out[32], double share) {
  wn_print(out, 32, "%.0f%% of the weight", 100 * share);
}

static void meaning_begin(struct wn_drawing *d, wn_context *ctx, const char *id, int number, const char *title,
                          const char *name) {
  wn_drawing_begin(d, ctx, id, number, title, name);
  d->figure.axes = 1;
  d->figure.x[0] = (wn_figure_axis){"context length", false};
  d->figure.y = (wn_figure_axis){"tokens needed", false};
}

/* One line for each of the shares tau[count]. */
static void meaning_draw_lengths(struct wn_drawing *d, const wn_meaning_report *m, const int *tau, int count) {
  int64_t used = 0;
  for (int k = 0; k < m->length_count; k++) used += m->rows[k] > 0;
  for (int i = 0; i < count; i++) {
    char name[32];
    meaning_percent(name, m->taus[tau[i]]);
    double *points = wn_drawing_line(d, used, i, 0, name);
    for (int64_t k = 0, n = 0; points && k < m->length_count; k++)
      if (m->rows[k] > 0) {
        points[n] = m->context[k];
        points[3 * used + n++] = m->all[k * m->tau_count + tau[i]].mean;
      }
  }
  d->figure.x[0].log = d->figure.y.log = true;
}

/* Every row's mean at one share, and curves through them. */
static void meaning_draw_fits(struct wn_drawing *d, const wn_meaning_report *m, int tau, const wn_fit *fits) {
  static const char *const terms[WN_FIT_COUNT] = {"sqrt(x)", "ln(x+1)", "x"};
  const double *y = m->y + (int64_t)tau * m->points;
  double most = 1, *points = wn_drawing_line(d, m->points, 5, 0, "rows");
  for (int64_t i = 0; points && i < m->points; i++) {
    most = fmax(most, m->x[i]);
    points[i] = m->x[i];
    points[3 * m->points + i] = y[i];
  }
  if (points) d->series[0].points = true;
  size_t at = (size_t)wn_print(d->about, sizeof d->about,
                               "Rows' tokens needed for %.0f%% of the weight, mean over layers and heads, and "
                               "least squares:",
                               100 * m->taus[tau]);
  for (int k = 0; k < WN_FIT_COUNT; k++) {
    double *curve = wn_drawing_line(d, MEANING_CURVE, k, 0, wn_fit_name((wn_fit_kind)k));
    for (int i = 0; curve && i < MEANING_CURVE; i++) {
      curve[i] = 1 + (most - 1) * i / (MEANING_CURVE - 1);
      curve[3 * MEANING_CURVE + i] = wn_fit_at((wn_fit_kind)k, &fits[k], curve[i]);
    }
    at += (size_t)wn_print(d->about + at, sizeof d->about - at, "%s %s %.4g + %.4g %s (R2 %.4f, AIC %.6g)",
                           k ? ";" : "", wn_fit_name((wn_fit_kind)k), fits[k].intercept, fits[k].slope, terms[k],
                           fits[k].r2, fits[k].aic);
  }
}

/* By head, over the rows with the longest contexts. */
static void meaning_draw_heads(struct wn_drawing *d, const wn_meaning_report *m, int tau, int64_t longest) {
  enum { STRIDE = sizeof(wn_meaning_cell) / sizeof(double) };
  const int64_t at = longest * m->tau_count + tau;
  wn_drawing_head_points(d, m->layers, m->heads, &m->head[at * m->layers * m->heads].mean, STRIDE, 0, "heads");
  wn_drawing_layer_line(d, m->layers, &m->layer[at * m->layers].mean, STRIDE, 1, 0, "mean of the layer");
  wn_print(d->about, sizeof d->about,
           "For %.0f%% of the weight, mean over the rows with the longest contexts (%.0f tokens on average).",
           100 * m->taus[tau], m->context[longest]);
  d->figure.axes = 2;
  d->figure.x[0].label = "layer";
  d->figure.x[1].label = "head";
  d->figure.y.log = true;
}

static wn_status meaning_draw_model(struct wn_report *r, const char *name, const wn_meaning_report *m, const char *from,
                                    int number) {
  static const double wanted[] = {0.5, 0.7, 0.9, 0.95};
  struct wn_drawing d;
  wn_fit fits[WN_FIT_COUNT];
  int shares[sizeof wanted / sizeof *wanted], count = 0,
                                              tau = m->tau_count - 1; /* tau: the share of fits and heads, 0.9 */
  int64_t longest = 0;
  bool fitted;
  for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++)
    for (int t = 0; t < m->tau_count; t++)
      if (fabs(m->taus[t] - wanted[w]) <= 1e-9) {
        shares[count++] = t;
        if (w == 2) tau = t;
      }
  for (int k = 0; k < m->length_count; k++)
    if (m->rows[k] > 0) longest = k;
  if (count > 0) {
    meaning_begin(&d, r->ctx, "meaningful", number, "Tokens needed against context length", name);
    meaning_draw_lengths(&d, m, shares, count);
    snprintf(d.about, sizeof d.about,
             "The fewest content tokens whose weights reach a share of the attention, mean over rows, heads and "
             "layers; %lld rows of %s.",
             (long long)m->points, from);
    WN_TRY(wn_report_add(r, &d));
  }
  WN_TRY(wn_measure_fits(r, m, tau, fits, &fitted));
  if (fitted) {
    meaning_begin(&d, r->ctx, "fits", number, "Tokens needed, and three fits", name);
    meaning_draw_fits(&d, m, tau, fits);
    WN_TRY(wn_report_add(r, &d));
  }
  meaning_begin(&d, r->ctx, "meaningful-heads", number, "Tokens needed by layer and head", name);
  meaning_draw_heads(&d, m, tau, longest);
  return wn_report_add(r, &d);
}

static wn_status meaning_draw(struct wn_report *r) {
  int models = 0;
  for (int i = 0; i < r->input_count && models < r->options->models; i++) {
    const struct wn_report_input *in = &r->inputs[i];
    wn_meaning_report *m;
    const char *from;
    if (!wn_report_has_decoder(in)) continue;
    WN_TRY(wn_measure_meaning(r, in, &m, &from));
    const wn_status status = m ? meaning_draw_model(r, in->name, m, from, models) : WN_OK;
    wn_meaning_report_destroy(m);
    WN_TRY(status);
    models++;
  }
  return WN_OK;
}

wn_status wn_meaning_save_svg(wn_context *ctx, const wn_meaning_report *report, const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(report), WN_POINTER(path));
  struct wn_drawing d;
  int shares[MEANING_LINES];
  const int all = report->tau_count, count = all < MEANING_LINES ? all : MEANING_LINES;
  for (int i = 0; i < count; i++) shares[i] = count > 1 ? i * (all - 1) / (count - 1) : 0; /* spread evenly */
  meaning_begin(&d, ctx, "meaningful", -1, "Tokens needed against context length", NULL);
  meaning_draw_lengths(&d, report, shares, count);
  return wn_drawing_save_svg(&d, title, path);
}

wn_status wn_meaning_fits_save_svg(wn_context *ctx, const wn_meaning_report *report, int tau, const wn_fit *fits,
                                   const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(report), WN_POINTER(fits), WN_POINTER(path));
  struct wn_drawing d;
  char label[64];
  if (tau < 0 || tau >= report->tau_count)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "plot: share %d of %d", tau, report->tau_count);
  meaning_begin(&d, ctx, "fits", -1, "Tokens needed, and three fits", NULL);
  meaning_draw_fits(&d, report, tau, fits);
  wn_print(label, sizeof label, "tokens needed for %.3g of the weight", report->taus[tau]);
  d.figure.y.label = label;
  return wn_drawing_save_svg(&d, title, path);
}

const struct wn_section wn_section_meaning = {
    .name = "meaning", .title = "Meaningful attention", .needs = WN_NEEDS_MODELS, .draw = meaning_draw};
