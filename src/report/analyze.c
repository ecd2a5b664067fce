/* Analyses as plots. */
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "winnow/report.h"

enum { LENGTHS_MAX = 32 };

/* The lengths from `from` on that rows have, and a share's means there. */
static int points_of(const wn_meaning_report *r, int tau, double from, double *x, double *y) {
  int n = 0;
  for (int i = 0; i < r->length_count && n < LENGTHS_MAX; i++)
    if (r->rows[i] > 0 && r->context[i] >= from) x[n] = r->context[i], y[n++] = r->all[i * r->tau_count + tau].mean;
  return n;
}

wn_status wn_meaning_save_svg(wn_context *ctx, const wn_meaning_report *r, const char *title, const char *path) {
  wn_plot_series series[WN_PLOT_COLOURS];
  double x[WN_PLOT_COLOURS][LENGTHS_MAX], y[WN_PLOT_COLOURS][LENGTHS_MAX];
  const char *names[WN_PLOT_COLOURS];
  char text[WN_PLOT_COLOURS][32];
  const int count = r->tau_count < WN_PLOT_COLOURS ? r->tau_count : WN_PLOT_COLOURS;
  for (int i = 0; i < count; i++) { /* spread over the shares, the largest first as its line is the highest */
    const int tau = count > 1 ? (count - 1 - i) * (r->tau_count - 1) / (count - 1) : 0;
    snprintf(text[i], sizeof text[i], "%.3g", r->taus[tau]);
    names[i] = text[i];
    series[i] = (wn_plot_series){.colour = i, .x = x[i], .y = y[i]};
    series[i].count = points_of(r, tau, 4, x[i], y[i]);
  }
  const wn_plot plot = {.title = title,
                        .x_label = "context length",
                        .y_label = "tokens needed, mean over layers and heads",
                        .series = series,
                        .series_count = count,
                        .colours = names,
                        .colour_count = count,
                        .colour_title = "share of the weight"};
  return wn_plot_save_svg(ctx, &plot, path);
}

wn_status wn_meaning_fits_save_svg(wn_context *ctx, const wn_meaning_report *r, int tau, const wn_fit *fits,
                                   const char *title, const char *path) {
  enum { STEPS = 65 };
  double x[LENGTHS_MAX], y[LENGTHS_MAX], at[STEPS], curve[WN_FIT_COUNT][STEPS];
  const char *names[1 + WN_FIT_COUNT] = {"mean of the rows", wn_fit_name(WN_FIT_SQRT), wn_fit_name(WN_FIT_LOG),
                                         wn_fit_name(WN_FIT_LINEAR)};
  wn_plot_series series[1 + WN_FIT_COUNT] = {{.x = x, .y = y}};
  if (tau < 0 || tau >= r->tau_count) return wn_fail(ctx, WN_ERR_ARGUMENT, "plot: share %d of %d", tau, r->tau_count);
  const int n = points_of(r, tau, 4, x, y);
  if (n < 2) return wn_fail(ctx, WN_ERR_ARGUMENT, "plot: rows of %d context lengths, expected at least 2", n);
  series[0].count = n;
  for (int i = 0; i < STEPS; i++) at[i] = x[0] * pow(x[n - 1] / x[0], (double)i / (STEPS - 1));
  for (int k = 0; k < WN_FIT_COUNT; k++) {
    for (int i = 0; i < STEPS; i++) curve[k][i] = wn_fit_at((wn_fit_kind)k, &fits[k], at[i]);
    series[1 + k] = (wn_plot_series){.colour = 1 + k, .style = 1, .count = STEPS, .x = at, .y = curve[k]};
  }
  char label[64];
  snprintf(label, sizeof label, "tokens needed for %.3g of the weight", r->taus[tau]);
  const wn_plot plot = {.title = title,
                        .x_label = "context length",
                        .y_label = label,
                        .series = series,
                        .series_count = 1 + WN_FIT_COUNT,
                        .colours = names,
                        .colour_count = 1 + WN_FIT_COUNT};
  return wn_plot_save_svg(ctx, &plot, path);
}

wn_status wn_sweep_save_svg(wn_context *ctx, const wn_sweep_report *r, const char *title, const char *path) {
  enum { POINTS = 64, METRICS = 3 };
  double x[POINTS], y[METRICS][POINTS];
  wn_plot_series series[METRICS];
  const char *names[METRICS];
  int count = 0;
  const int n = r->count < POINTS ? r->count : POINTS;
  const wn_sweep_point *b = &r->baseline, *f = &r->full;
  const double gains[METRICS] = {b->loss - f->loss, f->accuracy - b->accuracy, f->exact - b->exact};
  static const char *const all[METRICS] = {"loss", "accuracy", "tasks answered"};
  for (int i = 0; i < n; i++) x[i] = r->point[i].tau;
  for (int m = 0; m < METRICS; m++) {
    if (!(gains[m] > 0)) continue;
    for (int i = 0; i < n; i++) {
      const wn_sweep_point *p = &r->point[i];
      const double part = m == 0 ? b->loss - p->loss : m == 1 ? p->accuracy - b->accuracy : p->exact - b->exact;
      y[count][i] = fmax(part / gains[m], -0.2); /* far below the baseline nothing is told apart */
    }
    names[count] = all[m];
    series[count] = (wn_plot_series){.colour = count, .count = n, .x = x, .y = y[count]};
    count++;
  }
  char label[32];
  snprintf(label, sizeof label, "gamma %.3g", r->gamma);
  const wn_plot_level level = {.label = label, .y = r->gamma, .style = 1};
  if (count == 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "plot: nothing is better than without the content");
  const wn_plot plot = {.title = title,
                        .x_label = "share tau of the weight that is kept",
                        .y_label = "part of the improvement over no content that is kept",
                        .series = series,
                        .series_count = count,
                        .levels = &level,
                        .level_count = 1,
                        .colours = names,
                        .colour_count = count,
                        .x_linear = true};
  return wn_plot_save_svg(ctx, &plot, path);
}

wn_status wn_look_save_svg(wn_context *ctx, const wn_look_report *r, const char *title, const char *path) {
  enum { LINES = 3 };
  void *memory;
  WN_TRY(wn_alloc(ctx, "points", (size_t)r->layers * (LINES + 1) * sizeof(double), &memory));
  double *x = memory, *y = x + r->layers;
  static const char *const names[LINES] = {"cos(v_i, v_j)", "a_ii", "cos(y_i, v_i)"};
  wn_plot_series series[LINES];
  for (int64_t l = 0; l < r->layers; l++) {
    x[l] = (double)l + 1;
    y[l] = r->layer[l].value_similarity;
    y[r->layers + l] = r->layer[l].self_weight;
    y[2 * r->layers + l] = r->layer[l].output_similarity;
  }
  for (int i = 0; i < LINES; i++)
    series[i] = (wn_plot_series){.colour = i, .count = r->layers, .x = x, .y = y + i * r->layers};
  const wn_plot plot = {.title = title,
                        .x_label = "layer, from 1",
                        .y_label = "mean over heads",
                        .series = series,
                        .series_count = LINES,
                        .colours = names,
                        .colour_count = LINES,
                        .x_linear = true};
  const wn_status status = wn_plot_save_svg(ctx, &plot, path);
  wn_free(memory);
  return status;
}

wn_status wn_survival_save_svg(wn_context *ctx, const wn_survival_report *r, const char *title, const char *path) {
  double x[WN_SURVIVAL_AGES];
  wn_plot_series series[WN_POLICY_MAX];
  const char *names[WN_POLICY_MAX];
  for (int k = 0; k < WN_SURVIVAL_AGES; k++) x[k] = ldexp(1, k);
  for (int i = 0; i < r->count && i < WN_POLICY_MAX; i++) {
    names[i] = wn_policy_name(r->policy[i].policy);
    series[i] = (wn_plot_series){.colour = i, .x = x, .y = r->policy[i].alive};
    while (series[i].count < WN_SURVIVAL_AGES && r->policy[i].alive[series[i].count] >= 0) series[i].count++;
  }
  const wn_plot plot = {.title = title,
                        .x_label = "rows after the token's own",
                        .y_label = "share still held",
                        .series = series,
                        .series_count = r->count,
                        .colours = names,
                        .colour_count = r->count,
                        .colour_title = "policy"};
  return wn_plot_save_svg(ctx, &plot, path);
}
