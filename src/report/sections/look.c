/* What heads attend to, as measured by winnow analyze attention: similarity bias, entropy, sinks. All models share the
 * figures. Colours mean models if heads of several models are shown, else what is measured. */
#include <stdio.h>

#include "base/misuse.h"
#include "report/section.h"

enum { LOOK_MODELS = 8, LOOK_STRIDE = sizeof(wn_look_head) / sizeof(double) };

struct looks {
  const wn_look_report *report[LOOK_MODELS];
  const char *name[LOOK_MODELS];
  int count;
  char rows[120]; /* "mean over 512 rows of the text" */
};

/* "what" with one model, "NAME: what" with several. */
static const char *look_name(const struct looks *k, int model, const char *what, char out[300]) {
  if (k->count == 1)
    snprintf(out, 300, "%s", what);
  else
    snprintf(out, 300, "%.200s: %s", k->name[model], what);
  return out;
}

static int look_colour(const struct looks *k, int model, int what) {
  return k->count == 1 ? what : model;
}

static void look_draw_similarity(struct wn_drawing *d, wn_context *ctx, const struct looks *k) {
  char name[300];
  wn_drawing_begin(d, ctx, "similarity", -1, "Similarity bias", NULL);
  d->figure.about =
      "Mean over heads: the cosine of a row's output and its own value, that of the values of a text with "
      "each other, and the weight of a row on itself (Zhai, Exclusive Self Attention, figure 1).";
  d->figure.axes = 1;
  d->figure.x[0].label = "layer";
  d->figure.y.label = "cosine, weight";
  for (int m = 0; m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    if (!look->layer) continue; /* the model has no layers */
    wn_drawing_layer_line(d, look->layers, &look->layer->output_similarity, LOOK_STRIDE, 0, m,
                          look_name(k, m, "output and own value", name));
    wn_drawing_layer_line(d, look->layers, &look->layer->value_similarity, LOOK_STRIDE, 1, m,
                          look_name(k, m, "values", name));
    wn_drawing_layer_line(d, look->layers, &look->layer->self_weight, LOOK_STRIDE, 2, m,
                          look_name(k, m, "weight on itself", name));
  }
}

static void look_begin_heads(struct wn_drawing *d, wn_context *ctx, const char *id, const char *title,
                             const char *y_label) {
  wn_drawing_begin(d, ctx, id, -1, title, NULL);
  d->figure.axes = 2;
  d->figure.x[0].label = "layer";
  d->figure.x[1].label = "head";
  d->figure.y.label = y_label;
}

static wn_status look_draw_entropy(struct wn_report *r, const struct looks *k) {
  struct wn_drawing d;
  char name[300];
  look_begin_heads(&d, r->ctx, "entropy", "Entropy of the attention by layer and head", "entropy, bits");
  for (int m = 0; m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    wn_drawing_head_points(&d, look->layers, look->heads, &look->head->entropy, LOOK_STRIDE, look_colour(k, m, 0),
                           look_name(k, m, "heads", name));
    wn_drawing_layer_line(&d, look->layers, &look->layer->entropy, LOOK_STRIDE, look_colour(k, m, 1), 0,
                          look_name(k, m, "mean of the layer", name));
  }
  snprintf(d.about, sizeof d.about,
           "How widely a head spreads its weight: minus the sum of a log2 a over a row's weights a, %s. "
           "E bits correspond to 2^E equal weights; 0 is a row that attends to a single token. The first rows see few "
           "keys in any head.",
           k->rows);
  return wn_report_add(r, &d);
}

static wn_status look_draw_sinks(struct wn_report *r, const struct looks *k) {
  struct wn_drawing d;
  bool learned = false;
  char name[300], first[80];
  look_begin_heads(&d, r->ctx, "sinks", "Attention sinks by layer and head", "share of the weight");
  for (int m = 0; m < k->count; m++) {
    const wn_look_report *look = k->report[m];
    bool its = false;
    for (int64_t i = 0; i < look->layers; i++) its |= look->layer[i].learned > 0;
    learned |= its;
    snprintf(first, sizeof first, "first %lld tokens, mean of the layer", (long long)look->early);
    wn_drawing_head_points(&d, look->layers, look->heads, &look->head->first, LOOK_STRIDE, look_colour(k, m, 0),
                           look_name(k, m, "first token, heads", name));
    wn_drawing_layer_line(&d, look->layers, &look->layer->first, LOOK_STRIDE, look_colour(k, m, 1), 0,
                          look_name(k, m, "first token, mean of the layer", name));
    wn_drawing_layer_line(&d, look->layers, &look->layer->early, LOOK_STRIDE, look_colour(k, m, 2), 1,
                          look_name(k, m, first, name));
    if (its)
      wn_drawing_layer_line(&d, look->layers, &look->layer->learned, LOOK_STRIDE, look_colour(k, m, 3), 2,
                            look_name(k, m, "learned sinks, mean of the layer", name));
  }
  snprintf(d.about, sizeof d.about,
           "The share of a row's weight on its document's first token and on its first %lld, %s: heads "
           "that find nothing relevant attend there (Xiao et al. 2023, attention sinks).%s The first rows see few "
           "other keys.",
           (long long)k->report[0]->early, k->rows, learned ? " Learned sinks are extra keys before every row." : "");
  return wn_report_add(r, &d);
}

static wn_status look_measure(struct wn_report *r, struct looks *k) {
  for (int i = 0; i < r->input_count && k->count < r->options->models && k->count < LOOK_MODELS; i++) {
    const char *from;
    wn_look_report *look;
    if (!wn_report_has_decoder(&r->inputs[i])) continue;
    WN_TRY(wn_measure_look(r, &r->inputs[i], &look, &from));
    if (!look) continue;
    if (k->count == 0)
      snprintf(k->rows, sizeof k->rows, "mean over %llu rows of %s", (unsigned long long)look->tokens, from);
    k->report[k->count] = look;
    k->name[k->count++] = r->inputs[i].name;
  }
  return WN_OK;
}

static wn_status look_draw(struct wn_report *r) {
  struct looks k = {.count = 0};
  struct wn_drawing d;
  wn_status status = look_measure(r, &k);
  if (status == WN_OK && k.count > 0) {
    status = look_draw_entropy(r, &k);
    if (status == WN_OK) status = look_draw_sinks(r, &k);
    if (status == WN_OK) {
      look_draw_similarity(&d, r->ctx, &k);
      status = wn_report_add(r, &d);
    }
  }
  for (int m = 0; m < k.count; m++) wn_look_report_destroy((wn_look_report *)(uintptr_t)k.report[m]);
  return status;
}

wn_status wn_look_save_svg(wn_context *ctx, const wn_look_report *report, const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(report), WN_POINTER(path));
  const struct looks k = {.report = {report}, .name = {""}, .count = 1};
  struct wn_drawing d;
  look_draw_similarity(&d, ctx, &k);
  return wn_drawing_save_svg(&d, title, path);
}

const struct wn_section wn_section_look = {
    .name = "look", .title = "What heads look at", .needs = WN_NEEDS_MODELS, .draw = look_draw};
