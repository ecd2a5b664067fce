/* winnow report: what winnow analyze measures of each model. */
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
  const int64_t n = s->layers * s->heads;
  double *m = calloc((size_t)(2 * n + 4 * s->layers), sizeof *m);
  char id[64], title[400], about[400];
  if (m) {
    double *x = m, *y = m + n, *lx = m + 2 * n, *mean = lx + s->layers, *widest = mean + s->layers;
    for (int64_t l = 0; l < s->layers; l++) {
      lx[l] = (double)l;
      mean[l] = s->layer[l].span;
      widest[l] = s->layer[l].widest;
      for (int64_t h = 0; h < s->heads; h++) {
        x[l * s->heads + h] = (double)l;
        y[l * s->heads + h] = s->head[l * s->heads + h].span;
      }
    }
    const wn_figure_series series[] = {
        {.name = "heads", .count = n, .x = {x}, .y = y, .colour = 0, .points = true},
        {.name = "mean of the layer", .count = s->layers, .x = {lx}, .y = mean, .colour = 1},
        {.name = "widest of the layer", .count = s->layers, .x = {lx}, .y = widest, .colour = 2, .dash = 1}};
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
                         .axes = 1,
                         .x = {{"layer", false}},
                         .y = {"span, tokens", true},
                         .series = series,
                         .series_count = 3,
                         .levels = &limit,
                         .level_count = 1};
    status = wn_page_add_figure(r->page, &f);
    free(m);
  }
  wn_span_report_destroy(s);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

/* What the figures below are measured on: the text, or the first sequences of the data. NULL source and text: nothing.
 */
static int open_input(struct report *r, const struct report_input *in, wn_eval_options *options,
                      wn_data_source **source, wn_analysis_input *out) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  *options = (wn_eval_options){.batch = 1,
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
static wn_status draw_meaning(struct report *r, const struct report_input *in, const wn_meaning_report *m, int number) {
  static const double wanted[SHARES] = {0.5, 0.7, 0.9, 0.95};
  wn_figure_series series[SHARES + WN_FIT_COUNT + 1] = {0};
  char names[SHARES + WN_FIT_COUNT + 1][120], id[64], title[400], about[700];
  const int64_t heads = m->layers * m->heads;
  double *values =
      calloc((size_t)(m->length_count * (SHARES + 1) + 2 * heads + 2 * m->layers + 2 * WN_FIT_COUNT * CURVE + 4),
             sizeof *values);
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
           "%lld rows.",
           (long long)m->points);
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
    double *hx = free_at, *hy = hx + heads, *lx = hy + heads, *ly = lx + m->layers;
    const wn_meaning_cell *by_head = m->head + (longest * m->tau_count + main_tau) * heads;
    const wn_meaning_cell *by_layer = m->layer + (longest * m->tau_count + main_tau) * m->layers;
    for (int64_t i = 0; i < heads; i++) hx[i] = (double)(i / m->heads), hy[i] = by_head[i].mean;
    for (int64_t l = 0; l < m->layers; l++) lx[l] = (double)l, ly[l] = by_layer[l].mean;
    series[0] = (wn_figure_series){.name = "heads", .count = heads, .x = {hx}, .y = hy, .colour = 0, .points = true};
    series[1] = (wn_figure_series){.name = "mean of the layer", .count = m->layers, .x = {lx}, .y = ly, .colour = 1};
    snprintf(id, sizeof id, "meaningful-heads-%d", number);
    snprintf(title, sizeof title, "Tokens needed by layer and head: %.250s", in->name);
    snprintf(about, sizeof about,
             "For %.0f%% of the weight, mean over the rows with the longest contexts (%.0f tokens on average).",
             100 * m->taus[main_tau], m->context[longest]);
    f.series_count = 2;
    f.x[0] = (wn_figure_axis){"layer", false};
    f.y.log = true;
    status = wn_page_add_figure(r->page, &f);
  }
  free(values);
  return status;
}

static int add_meaning(struct report *r, const struct report_input *in, int number, bool *section) {
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  wn_meaning_report *m = NULL;
  int code = open_input(r, in, &options, &source, &input);
  if (code || (!input.source && !input.tok)) return code;
  wn_status status = wn_analyze_meaning(r->ctx, in->loaded, &input, NULL, &m);
  wn_data_source_destroy(source);
  if (status == WN_ERR_UNSUPPORTED) {
    cli_note(&r->common, "%s: %s: no figure of meaningful attention", in->path, wn_context_error(r->ctx));
    return 0;
  }
  if (status == WN_OK && !*section) status = wn_page_add_section(r->page, "Meaningful attention");
  *section = true;
  if (status == WN_OK) status = draw_meaning(r, in, m, number);
  wn_meaning_report_destroy(m);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

/* The similarity bias of all models in one figure: means over heads against the layer. */
struct bias {
  wn_figure_series series[3 * 8];
  char names[3 * 8][300];
  double *memory[8];
  int models;
};

static int measure_bias(struct report *r, const struct report_input *in, struct bias *b) {
  static const char *const what[] = {"output and own value", "values", "weight on itself"};
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  wn_look_report *look = NULL;
  const int code = open_input(r, in, &options, &source, &input);
  if (code || (!input.source && !input.tok)) return code;
  const wn_status status = wn_analyze_look(r->ctx, in->loaded, &input, &(wn_look_options){.early = 4}, &look);
  wn_data_source_destroy(source);
  if (status == WN_ERR_UNSUPPORTED) return 0;
  if (status != WN_OK) return cli_fail(r->ctx, status);
  const wn_model_config *c = wn_model_config_get(in->loaded);
  const int64_t L = c->layers, H = c->heads;
  double *m = b->memory[b->models] = calloc((size_t)(4 * L), sizeof *m);
  for (int64_t l = 0; m && l < L; l++) {
    m[l] = (double)l;
    for (int64_t h = 0; h < H; h++) {
      const wn_look_head *head = &look->head[l * H + h];
      m[L + l] += head->output_similarity / (double)H;
      m[2 * L + l] += head->value_similarity / (double)H;
      m[3 * L + l] += head->self_weight / (double)H;
    }
  }
  for (int k = 0; m && k < 3; k++) {
    const int at = 3 * b->models + k;
    snprintf(b->names[at], sizeof b->names[0], "%s: %s", in->name, what[k]);
    b->series[at] = (wn_figure_series){
        .name = b->names[at], .count = L, .x = {m}, .y = m + (k + 1) * L, .colour = k, .dash = b->models % 4};
  }
  b->models += m != NULL;
  wn_look_report_destroy(look);
  return m ? 0 : cli_error("out of memory");
}

static int add_bias(struct report *r) {
  struct bias *b = calloc(1, sizeof *b);
  int code = b ? 0 : cli_error("out of memory");
  for (int i = 0; !code && i < r->input_count && b->models < r->models && b->models < 8; i++)
    if (r->inputs[i].loaded && wn_model_config_get(r->inputs[i].loaded)->encoder.layers == 0)
      code = measure_bias(r, &r->inputs[i], b);
  const wn_figure f = {.id = "similarity",
                       .title = "Similarity bias",
                       .about =
                           "Mean over heads: the cosine of a row's output and its own value, that of the values of a "
                           "text with each other, and the weight of a row on itself (Zhai, Exclusive Self Attention, "
                           "figure 1).",
                       .command = r->command,
                       .axes = 1,
                       .x = {{"layer", false}},
                       .y = {"cosine, weight", false},
                       .series = b ? b->series : NULL,
                       .series_count = b ? 3 * b->models : 0};
  if (!code && b->models > 0) {
    const wn_status status = wn_page_add_figure(r->page, &f);
    if (status != WN_OK) code = cli_fail(r->ctx, status);
  }
  for (int k = 0; b && k < b->models; k++) free(b->memory[k]);
  free(b);
  return code;
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
  if (!code && meaning) code = add_bias(r);
  return code;
}
