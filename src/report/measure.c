/* The measurements of a report: calls of src/analyze, all on the same text or sequences. */
#include "base/error.h"
#include "report/section.h"

struct measured_on {
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  const char *from;
  bool there;
};

/* Chooses what to measure on: the first sequences of the data if sequences are asked for or there is no text, else the
 * text. */
static wn_status measure_on(const struct wn_report *r, const struct wn_report_input *in, struct measured_on *m) {
  const wn_report_options *o = r->options;
  const int64_t context = wn_model_config_get(in->loaded)->context;
  *m = (struct measured_on){.options = {.size = sizeof m->options,
                                        .batch = 1,
                                        .context = o->tokens < context ? o->tokens : context,
                                        .recurrence = -1,
                                        .max_batches = o->sequences > 0 ? o->sequences : 1}};
  if (o->sequences > 0 || !o->text || in->is_task) WN_TRY(wn_report_source(r, in, m->options.context, &m->source));
  m->input = (wn_analysis_input){.options = &m->options, .source = m->source};
  if (!m->source && o->text && in->tok) {
    m->input.tok = in->tok;
    m->input.text = o->text;
    m->input.bytes = o->text_bytes;
  }
  m->from = m->source ? "the data" : "the text";
  m->there = m->source || m->input.tok;
  return WN_OK;
}

/* If the analysis does not support the model, its figures are left out with a note, and the page goes on. */
static wn_status measure_end(const struct wn_report *r, const struct wn_report_input *in, struct measured_on *m,
                             wn_status status, const char *what) {
  wn_data_source_destroy(m->source);
  if (status != WN_ERR_UNSUPPORTED) return status;
  wn_report_note(r, in, "%s: %s", wn_context_error(r->ctx), what);
  return WN_OK;
}

/* Spans are means over the whole text, or over the shown sequences of the data. */
static wn_status measure_spans_on(const struct wn_report *r, const struct wn_report_input *in, struct measured_on *m) {
  WN_TRY(measure_on(r, in, m));
  if (!m->source) m->input.options = NULL;
  m->input.tok = in->tok; /* for token files too, to know where words begin */
  return WN_OK;
}

wn_status wn_measure_spans(struct wn_report *r, const struct wn_report_input *in, wn_span_report **out) {
  struct measured_on m;
  *out = NULL;
  if (!wn_model_config_get(in->loaded)->attention.span.dynamic) return wn_analyze_spans(r->ctx, in->loaded, NULL, out);
  WN_TRY(measure_spans_on(r, in, &m));
  if (m.there)
    return measure_end(r, in, &m, wn_analyze_spans(r->ctx, in->loaded, &m.input, out), "no figures of its spans");
  wn_report_note(r, in, "its spans are dynamic: their figures need a text or data");
  return WN_OK;
}

wn_status wn_measure_span_tokens(struct wn_report *r, const struct wn_report_input *in, wn_span_tokens **out) {
  struct measured_on m;
  *out = NULL;
  if (!wn_model_config_get(in->loaded)->attention.span.dynamic) return WN_OK;
  WN_TRY(measure_spans_on(r, in, &m));
  return m.there ? measure_end(r, in, &m, wn_analyze_span_tokens(r->ctx, in->loaded, &m.input, out),
                               "no figure of its spans along the text")
                 : WN_OK;
}

wn_status wn_measure_look(struct wn_report *r, const struct wn_report_input *in, wn_look_report **out,
                          const char **from) {
  struct measured_on m;
  const wn_look_options choice = {
      .size = sizeof choice, .early = 4, .control = in->control, .control_count = in->control_count};
  *out = NULL;
  WN_TRY(measure_on(r, in, &m));
  *from = m.from;
  return !m.there ? WN_OK
                  : measure_end(r, in, &m, wn_analyze_look(r->ctx, in->loaded, &m.input, &choice, out),
                                "no figures of the heads' attention");
}

wn_status wn_measure_meaning(struct wn_report *r, const struct wn_report_input *in, wn_meaning_report **out,
                             const char **from) {
  struct measured_on m;
  const wn_meaning_options choice = {.size = sizeof choice, .control = in->control, .control_count = in->control_count};
  *out = NULL;
  WN_TRY(measure_on(r, in, &m));
  *from = m.from;
  return !m.there ? WN_OK
                  : measure_end(r, in, &m, wn_analyze_meaning(r->ctx, in->loaded, &m.input, &choice, out),
                                "no figure of meaningful attention");
}

wn_status wn_measure_survival(struct wn_report *r, const struct wn_report_input *in, const wn_budgets *const *budgets,
                              int count, wn_survival_report **out, const char **from) {
  struct measured_on m;
  *out = NULL;
  WN_TRY(measure_on(r, in, &m));
  *from = m.from;
  return !m.there ? WN_OK
                  : measure_end(r, in, &m, wn_analyze_survival(r->ctx, in->loaded, &m.input, budgets, count, out),
                                "no figure of survival");
}

wn_status wn_measure_fits(struct wn_report *r, const wn_meaning_report *m, int tau, wn_fit fits[WN_FIT_COUNT],
                          bool *fitted) {
  *fitted = m->points >= 3;
  for (int k = 0; *fitted && k < WN_FIT_COUNT; k++) {
    const double *y = m->y + (int64_t)tau * m->points;
    const wn_status status = wn_fit_curve(r->ctx, (wn_fit_kind)k, m->x, y, m->points, &fits[k]);
    if (status == WN_ERR_MEMORY) return status;
    *fitted = status == WN_OK;
  }
  return WN_OK;
}
