/* winnow report: what heads look at, as winnow analyze attention measures it: similarity bias, entropy, sinks. All
 * models in the same figures. Colours are models where heads are shown and there are several; else they are what is
 * measured. */
#include <stdio.h>
#include <stdlib.h>
#include <winnow/analyze.h>
#include "report.h"

enum { MODELS = 8, STRIDE = sizeof(wn_look_head) / sizeof(double) };

struct looks {
  wn_look_report *report[MODELS];
  const char *name[MODELS];
  int count;
  char rows[120]; /* "mean over 512 rows of the text" */
};

static int measure(struct report *r, const struct report_input *in, struct looks *k) {
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  const int code = report_measured_on(r, in, &options, &source, &input);
  if (code || (!input.source && !input.tok)) return code;
  const wn_look_options choice = {.size = sizeof choice, .early = 4};
  const wn_status status = wn_analyze_look(r->ctx, in->loaded, &input, &choice, &k->report[k->count]);
  wn_data_source_destroy(source);
  if (status == WN_ERR_UNSUPPORTED) {
    cli_note(&r->common, "%s: %s: no figures of what heads look at", in->path, wn_context_error(r->ctx));
    return 0;
  }
  if (status != WN_OK) return cli_fail(r->ctx, status);
  if (k->count == 0)
    snprintf(k->rows, sizeof k->rows, "mean over %llu rows of %s", (unsigned long long)k->report[0]->tokens,
             input.source ? "the data" : "the text");
  k->name[k->count++] = in->name;
  return 0;
}

/* "what" of one model, "NAME: what" of several. */
static const char *named(const struct looks *k, int model, const char *what, char out[300]) {
  if (k->count == 1)
    snprintf(out, 300, "%s", what);
  else
    snprintf(out, 300, "%.200s: %s", k->name[model], what);
  return out;
}

static int colour_of(const struct looks *k, int model, int what) {
  return k->count == 1 ? what : model;
}

static wn_status draw(struct report *r, struct report_lines *l, bool ok, wn_figure *f) {
  f->command = r->command;
  f->series = l->series;
  f->series_count = l->count;
  const wn_status status = ok ? wn_page_add_figure(r->page, f) : WN_ERR_MEMORY;
  report_lines_clear(l);
  return status;
}

static wn_status draw_similarity(struct report *r, const struct looks *k, struct report_lines *l) {
  bool ok = true;
  char name[300];
  for (int m = 0; ok && m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    ok =
        report_layer_line(l, look->layers, &look->layer->output_similarity, STRIDE, 0, m,
                          named(k, m, "output and own value", name)) &&
        report_layer_line(l, look->layers, &look->layer->value_similarity, STRIDE, 1, m, named(k, m, "values", name)) &&
        report_layer_line(l, look->layers, &look->layer->self_weight, STRIDE, 2, m,
                          named(k, m, "weight on itself", name));
  }
  wn_figure f = {.id = "similarity",
                 .title = "Similarity bias",
                 .about = "Mean over heads: the cosine of a row's output and its own value, that of the values of a "
                          "text with each other, and the weight of a row on itself (Zhai, Exclusive Self Attention, "
                          "figure 1).",
                 .axes = 1,
                 .x = {{"layer", false}},
                 .y = {"cosine, weight", false}};
  return draw(r, l, ok, &f);
}

static wn_status draw_entropy(struct report *r, const struct looks *k, struct report_lines *l) {
  bool ok = true;
  char name[300], about[500];
  for (int m = 0; ok && m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    ok = report_head_points(l, look->layers, look->heads, &look->head->entropy, STRIDE, colour_of(k, m, 0),
                            named(k, m, "heads", name)) &&
         report_layer_line(l, look->layers, &look->layer->entropy, STRIDE, colour_of(k, m, 1), 0,
                           named(k, m, "mean of the layer", name));
  }
  snprintf(about, sizeof about,
           "How widely a head spreads its weight: minus the sum of a log2 a over a row's weights a, %s. "
           "E bits are as many as 2^E equal weights have; 0 is a row that looks at a single token. The first rows have "
           "little to spread over, whatever the head.",
           k->rows);
  wn_figure f = {.id = "entropy",
                 .title = "Entropy of the attention by layer and head",
                 .about = about,
                 .axes = 2,
                 .x = {{"layer", false}, {"head", false}},
                 .y = {"entropy, bits", false}};
  return draw(r, l, ok, &f);
}

static wn_status draw_sinks(struct report *r, const struct looks *k, struct report_lines *l) {
  bool ok = true, learned = false;
  char name[300], first[80], about[500];
  for (int m = 0; ok && m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    bool its = false;
    for (int64_t i = 0; i < look->layers; i++) its |= look->layer[i].learned > 0;
    learned |= its;
    snprintf(first, sizeof first, "first %lld tokens, mean of the layer", (long long)look->early);
    ok = report_head_points(l, look->layers, look->heads, &look->head->first, STRIDE, colour_of(k, m, 0),
                            named(k, m, "first token, heads", name)) &&
         report_layer_line(l, look->layers, &look->layer->first, STRIDE, colour_of(k, m, 1), 0,
                           named(k, m, "first token, mean of the layer", name)) &&
         report_layer_line(l, look->layers, &look->layer->early, STRIDE, colour_of(k, m, 2), 1,
                           named(k, m, first, name)) &&
         (!its || report_layer_line(l, look->layers, &look->layer->learned, STRIDE, colour_of(k, m, 3), 2,
                                    named(k, m, "learned sinks, mean of the layer", name)));
  }
  snprintf(
      about, sizeof about,
      "The share of a row's weight on its document's first token and on its first %lld, %s: heads "
      "with nothing to look at rest there (Xiao et al. 2023, attention sinks).%s The first rows have little else to "
      "look at.",
      (long long)k->report[0]->early, k->rows, learned ? " Learned sinks are keys of their own before every row." : "");
  wn_figure f = {.id = "sinks",
                 .title = "Attention sinks by layer and head",
                 .about = about,
                 .axes = 2,
                 .x = {{"layer", false}, {"head", false}},
                 .y = {"share of the weight", false}};
  return draw(r, l, ok, &f);
}

int report_look(struct report *r) {
  struct looks k = {.count = 0};
  int code = 0;
  for (int i = 0; !code && i < r->input_count && k.count < r->models && k.count < MODELS; i++)
    if (r->inputs[i].loaded && wn_model_config_get(r->inputs[i].loaded)->encoder.layers == 0)
      code = measure(r, &r->inputs[i], &k);
  struct report_lines *lines = calloc(1, sizeof *lines);
  if (!code && !lines) code = cli_error("out of memory");
  if (!code && k.count > 0) {
    wn_status status = wn_page_add_section(r->page, "What heads look at");
    if (status == WN_OK) status = draw_entropy(r, &k, lines);
    if (status == WN_OK) status = draw_sinks(r, &k, lines);
    if (status == WN_OK) status = draw_similarity(r, &k, lines);
    if (status != WN_OK) code = cli_fail(r->ctx, status);
  }
  for (int m = 0; m < k.count; m++) wn_look_report_destroy(k.report[m]);
  free(lines);
  return code;
}
