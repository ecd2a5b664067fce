/* Learned and dynamic spans (Sukhbaatar et al. 2019). */

#include "base/error.h"
#include "base/number.h"
#include "report/section.h"

/* The spans of all heads over the layers, on a logarithmic axis since they differ by orders of magnitude. */
static wn_status spans_draw_heads(struct wn_report *r, const char *name, const wn_span_report *s, int number) {
  enum { LAYER = sizeof(wn_span_layer) / sizeof(double), HEAD = sizeof(wn_span_head) / sizeof(double) };
  struct wn_drawing d;
  wn_drawing_begin(&d, r->ctx, "spans", number, "Spans by layer and head", name);
  wn_print(d.about, sizeof d.about,
           "How far back each head looks, in tokens (%s); the mean over all is %.4g, the limit %.6g. A span of 0 "
           "cannot be drawn on a logarithmic axis.",
           s->dynamic ? "mean over the text" : "learned", s->span, s->limit);
  d.figure.axes = 2;
  d.figure.x[0].label = "layer";
  d.figure.x[1].label = "head";
  d.figure.y = (wn_figure_axis){"span, tokens", true};
  wn_drawing_head_points(&d, s->layers, s->heads, &s->head->span, HEAD, 0, "heads");
  wn_drawing_layer_line(&d, s->layers, &s->layer->span, LAYER, 1, 0, "mean of the layer");
  wn_drawing_layer_line(&d, s->layers, &s->layer->widest, LAYER, 2, 1, "widest of the layer");
  wn_drawing_level(&d, "limit", s->limit);
  return wn_report_add(r, &d);
}

/* The spans of all tokens, mean over layers and heads, with tokens that begin a word marked (the paper's figure 5). */
static wn_status spans_draw_tokens(struct wn_report *r, const char *name, const wn_span_tokens *s, int number) {
  const int64_t most = r->options->tokens, n = s->count < most ? s->count : most;
  struct wn_drawing d;
  int64_t starts = 0, k = 0;
  for (int64_t i = 0; i < n; i++) starts += s->start[i];
  wn_drawing_begin(&d, r->ctx, "span-tokens", number, "Dynamic spans along the text", name);
  wn_print(
      d.about, sizeof d.about,
      "How far back each token looks, mean over layers and heads. Over %lld tokens: %.4g where a word begins, %.4g one "
      "token before, %.4g elsewhere.",
      (long long)s->count, s->start_mean, s->before_mean, s->other_mean);
  d.figure.axes = 1;
  d.figure.x[0].label = "token";
  d.figure.y.label = "span, tokens";
  double *all = wn_drawing_line(&d, n, 0, 0, "every token");
  for (int64_t i = 0; all && i < n; i++) all[i] = all[n + i] = all[2 * n + i] = (double)i, all[3 * n + i] = s->mean[i];
  double *words = starts > 0 ? wn_drawing_line(&d, starts, 1, 0, "a word begins") : NULL;
  for (int64_t i = 0; words && i < n; i++)
    if (s->start[i]) {
      words[k] = words[starts + k] = words[2 * starts + k] = (double)i;
      words[3 * starts + k++] = s->mean[i];
    }
  if (words) d.series[d.figure.series_count - 1].points = true;
  return wn_report_add(r, &d);
}

static wn_status spans_draw(struct wn_report *r) {
  int number = 0;
  for (int i = 0; i < r->input_count; i++) {
    const struct wn_report_input *in = &r->inputs[i];
    wn_span_report *s;
    if (!in->loaded || !wn_model_config_get(in->loaded)->attention.span.enabled) continue;
    WN_TRY(wn_measure_spans(r, in, &s));
    const wn_status status = s ? spans_draw_heads(r, in->name, s, number) : WN_OK;
    wn_span_report_destroy(s);
    WN_TRY(status);
    wn_span_tokens *tokens;
    WN_TRY(wn_measure_span_tokens(r, in, &tokens));
    const wn_status drawn = tokens ? spans_draw_tokens(r, in->name, tokens, number) : WN_OK;
    wn_span_tokens_destroy(tokens);
    WN_TRY(drawn);
    number++;
  }
  return WN_OK;
}

const struct wn_section wn_section_spans = {
    .name = "spans", .title = "Spans", .needs = WN_NEEDS_MODELS, .draw = spans_draw};
