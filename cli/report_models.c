/* winnow report: spans, and how many tokens the attention needs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/analyze.h>
#include "report.h"

/* Spans of every head, over the layers; a logarithmic axis, for they differ by orders of magnitude. */
static int add_spans(struct report *r, const struct report_input *in, int number) {
  wn_span_report *s = NULL;
  const wn_analysis_input input = {.tok = in->tok, .text = r->content, .bytes = r->content_bytes};
  const bool dynamic = wn_model_config_get(in->loaded)->attention.span.dynamic;
  if (dynamic && !(r->content && in->tok)) {
    cli_note(&r->common, "%s: its spans are dynamic: give --text for their figure", in->path);
    return 0;
  }
  wn_status status = wn_analyze_spans(r->ctx, in->loaded, dynamic ? &input : NULL, &s);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  struct report_lines lines = {.count = 0};
  char id[64], title[400], about[400];
  const bool ok =
      report_head_points(&lines, s->layers, s->heads, &s->head->span, sizeof *s->head / sizeof(double), 0, "heads") &&
      report_layer_line(&lines, s->layers, &s->layer->span, sizeof *s->layer / sizeof(double), 1, 0,
                        "mean of the layer") &&
      report_layer_line(&lines, s->layers, &s->layer->widest, sizeof *s->layer / sizeof(double), 2, 1,
                        "widest of the layer");
  const wn_figure_level limit = {"limit", s->limit};
  snprintf(id, sizeof id, "spans-%d", number);
  snprintf(title, sizeof title, "Spans by layer and head: %.250s", in->name);
  snprintf(about, sizeof about,
           "How far back each head looks, in tokens (%s); the mean over all is %.4g, the limit %.6g. A span of 0 has "
           "no place on a logarithmic axis.",
           s->dynamic ? "mean over the text" : "learned", s->span, s->limit);
  const wn_figure f = {.id = id,
                       .title = title,
                       .about = about,
                       .command = r->command,
                       .axes = 2,
                       .x = {{"layer", false}, {"head", false}},
                       .y = {"span, tokens", true},
                       .series = lines.series,
                       .series_count = lines.count,
                       .levels = &limit,
                       .level_count = 1};
  status = ok ? wn_page_add_figure(r->page, &f) : WN_ERR_MEMORY;
  report_lines_clear(&lines);
  wn_span_report_destroy(s);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

int report_measured_on(struct report *r, const struct report_input *in, wn_eval_options *options,
                       wn_data_source **source, wn_analysis_input *out) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  *options = (wn_eval_options){.size = sizeof(wn_eval_options),
                               .batch = 1,
                               .context = r->tokens < c->context ? r->tokens : c->context,
                               .memory = -1,
                               .max_batches = r->sequences > 0 ? r->sequences : 1};
  *out = (wn_analysis_input){.options = options};
  *source = NULL;
  if (r->sequences > 0 || !r->content) {
    const int code = report_source(r, in, options->context, source);
    if (code) return code;
    out->source = *source;
  }
  if (!*source && r->content && in->tok) out->tok = in->tok, out->text = r->content, out->bytes = r->content_bytes;
  return 0;
}

enum { SHARES = 4, CURVE = 100 };

/* Tokens that shares of the weight need: against context length, with the three fits, and by layer and head. */
static wn_status draw_meaning(struct report *r, const struct report_input *in, const wn_meaning_report *m,
                              const char *from, int number) {
  static const double wanted[SHARES] = {0.5, 0.7, 0.9, 0.95};
  wn_figure_series series[SHARES + WN_FIT_COUNT + 1] = {0};
  char names[SHARES + WN_FIT_COUNT + 1][120], id[64], title[400], about[700];
  const int64_t heads = m->layers * m->heads;
  double *values = calloc((size_t)(m->length_count * (SHARES + 1) + 2 * WN_FIT_COUNT * CURVE), sizeof *values);
  if (!values) return WN_ERR_MEMORY;
  double *x = values, *free_at = values + m->length_count;
  int n = 0, main_tau = m->tau_count - 1;
  int64_t lengths[64], used = 0, longest = 0;
  for (int64_t k = 0; k < m->length_count && used < 64; k++)
    if (m->rows[k] > 0) {
      lengths[used] = longest = k;
      x[used++] = m->context[k];
    }
  for (int w = 0; w < SHARES; w++)
    for (int t = 0; t < m->tau_count; t++) {
      if (fabs(m->taus[t] - wanted[w]) > 1e-9) continue;
      if (w == 2) main_tau = t;
      for (int64_t k = 0; k < used; k++) free_at[k] = m->all[lengths[k] * m->tau_count + t].mean;
      snprintf(names[n], sizeof names[0], "%.0f%% of the weight", 100 * m->taus[t]);
      series[n] = (wn_figure_series){.name = names[n], .count = used, .x = {x}, .y = free_at, .colour = n};
      n++;
      free_at += m->length_count;
    }
  snprintf(id, sizeof id, "meaningful-%d", number);
  snprintf(title, sizeof title, "Tokens needed against context length: %.250s", in->name);
  snprintf(about, sizeof about,
           "The fewest content tokens whose weights reach a share of the attention, mean over rows, heads and layers; "
           "%lld rows of %s.",
           (long long)m->points, from);
  wn_figure f = {.id = id,
                 .title = title,
                 .about = about,
                 .command = r->command,
                 .axes = 1,
                 .x = {{"context length", true}},
                 .y = {"tokens needed", true},
                 .series = series,
                 .series_count = n};
  wn_status status = n > 0 ? wn_page_add_figure(r->page, &f) : WN_OK;

  /* Fits of every row's mean at one share. */
  wn_fit fits[WN_FIT_COUNT];
  const double *y = m->y + (int64_t)main_tau * m->points;
  bool fitted = m->points >= 3;
  for (int k = 0; fitted && k < WN_FIT_COUNT; k++)
    fitted = wn_fit_curve(r->ctx, (wn_fit_kind)k, m->x, y, m->points, &fits[k]) == WN_OK;
  if (status == WN_OK && fitted) {
    double most = 1;
    for (int64_t i = 0; i < m->points; i++) most = fmax(most, m->x[i]);
    n = 0;
    series[n++] =
        (wn_figure_series){.name = "rows", .count = m->points, .x = {m->x}, .y = y, .colour = 5, .points = true};
    size_t at = (size_t)snprintf(about, sizeof about,
                                 "Rows' tokens needed for %.0f%% of the weight, mean over layers and heads, and "
                                 "least squares:",
                                 100 * m->taus[main_tau]);
    for (int k = 0; k < WN_FIT_COUNT; k++) {
      double *fx = free_at, *fy = free_at + CURVE;
      free_at += 2 * CURVE;
      for (int i = 0; i < CURVE; i++) {
        fx[i] = 1 + (most - 1) * i / (CURVE - 1);
        fy[i] = wn_fit_at((wn_fit_kind)k, &fits[k], fx[i]);
      }
      snprintf(names[n], sizeof names[0], "%s", wn_fit_name((wn_fit_kind)k));
      series[n] = (wn_figure_series){.name = names[n], .count = CURVE, .x = {fx}, .y = fy, .colour = k};
      n++;
      at += (size_t)snprintf(about + at, sizeof about - at, "%s %s %.4g + %.4g %s (R2 %.4f, AIC %.6g)", k ? ";" : "",
                             wn_fit_name((wn_fit_kind)k), fits[k].intercept, fits[k].slope,
                             k == WN_FIT_SQRT  ? "sqrt(x)"
                             : k == WN_FIT_LOG ? "ln(x+1)"
                                               : "x",
                             fits[k].r2, fits[k].aic);
    }
    snprintf(id, sizeof id, "fits-%d", number);
    snprintf(title, sizeof title, "Tokens needed, and three fits: %.250s", in->name);
    f.series_count = n;
    f.x[0].log = f.y.log = false;
    status = wn_page_add_figure(r->page, &f);
  }
  if (status == WN_OK) {
    const int64_t at = longest * m->tau_count + main_tau;
    struct report_lines lines = {.count = 0};
    enum { STRIDE = sizeof(wn_meaning_cell) / sizeof(double) };
    if (!report_head_points(&lines, m->layers, m->heads, &m->head[at * heads].mean, STRIDE, 0, "heads") ||
        !report_layer_line(&lines, m->layers, &m->layer[at * m->layers].mean, STRIDE, 1, 0, "mean of the layer"))
      status = WN_ERR_MEMORY;
    snprintf(id, sizeof id, "meaningful-heads-%d", number);
    snprintf(title, sizeof title, "Tokens needed by layer and head: %.250s", in->name);
    snprintf(about, sizeof about,
             "For %.0f%% of the weight, mean over the rows with the longest contexts (%.0f tokens on average).",
             100 * m->taus[main_tau], m->context[longest]);
    f.series = lines.series;
    f.series_count = lines.count;
    f.axes = 2;
    f.x[0] = (wn_figure_axis){"layer", false};
    f.x[1] = (wn_figure_axis){"head", false};
    f.y.log = true;
    if (status == WN_OK) status = wn_page_add_figure(r->page, &f);
    report_lines_clear(&lines);
  }
  free(values);
  return status;
}

static int add_meaning(struct report *r, const struct report_input *in, int number, bool *section) {
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  wn_meaning_report *m = NULL;
  int code = report_measured_on(r, in, &options, &source, &input);
  if (code || (!input.source && !input.tok)) return code;
  wn_status status = wn_analyze_meaning(r->ctx, in->loaded, &input, NULL, &m);
  wn_data_source_destroy(source);
  if (status == WN_ERR_UNSUPPORTED) {
    cli_note(&r->common, "%s: %s: no figure of meaningful attention", in->path, wn_context_error(r->ctx));
    return 0;
  }
  if (status == WN_OK && !*section) status = wn_page_add_section(r->page, "Meaningful attention");
  *section = true;
  if (status == WN_OK) status = draw_meaning(r, in, m, input.source ? "the data" : "the text", number);
  wn_meaning_report_destroy(m);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

int report_models(struct report *r) {
  bool section = false, meaning = false;
  int code = 0, spans = 0, models = 0;
  for (int i = 0; !code && i < r->input_count; i++) {
    const struct report_input *in = &r->inputs[i];
    if (!in->loaded || !wn_model_config_get(in->loaded)->attention.span.enabled) continue;
    if (!section && wn_page_add_section(r->page, "Spans") != WN_OK) return cli_fail(r->ctx, WN_ERR_MEMORY);
    section = true;
    code = add_spans(r, in, spans++);
  }
  for (int i = 0; !code && i < r->input_count && models < r->models; i++) {
    if (!r->inputs[i].loaded || wn_model_config_get(r->inputs[i].loaded)->encoder.layers > 0) continue;
    code = add_meaning(r, &r->inputs[i], models++, &meaning);
  }
  return code;
}
