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

int report_models(struct report *r) {
  bool section = false;
  int code = 0, spans = 0;
  for (int i = 0; !code && i < r->input_count; i++) {
    const struct report_input *in = &r->inputs[i];
    if (!in->loaded || !wn_model_config_get(in->loaded)->attention.span.enabled) continue;
    if (!section && wn_page_add_section(r->page, "Spans") != WN_OK) return cli_fail(r->ctx, WN_ERR_MEMORY);
    section = true;
    code = add_spans(r, in, spans++);
  }
  return code;
}
