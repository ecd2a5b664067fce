/* Searches and comparisons as tables and plots. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/text.h"
#include "winnow/report.h"

#define LIMIT 2 /* plots end at so many times the lowest perplexity: what is worse is in the table */

static wn_status save_text(wn_context *ctx, struct wn_text *text, const char *path) {
  const wn_status status = text->failed ? wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path)
                                        : wn_file_write(ctx, path, text->data, text->bytes);
  wn_free(text->data);
  return status;
}

static void add_tokens(struct wn_text *text, const int64_t *tokens, int64_t layers) {
  for (int64_t l = 0; l < layers; l++) wn_text_add(text, "%s%lld", l ? " " : "", (long long)tokens[l]);
}

/* ---- searches ---- */

wn_status wn_prune_curve_save_csv(wn_context *ctx, const wn_prune_curve *c, const char *path) {
  struct wn_text text = {0};
  wn_text_add(&text, "step,layer,budgets,total,saving,search_perplexity,report_perplexity,evaluations,seconds%s%s\n",
              c->checked ? ",exact_layer,exact_perplexity" : "",
              c->finetune_lr > 0 ? ",tuned,untuned_search_perplexity,untuned_report_perplexity" : "");
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_point *p = &c->points[i];
    wn_text_add(&text, "%lld,", (long long)i);
    if (p->layer >= 0) wn_text_add(&text, "%lld", (long long)p->layer);
    wn_text_add(&text, ",");
    add_tokens(&text, p->tokens, c->layers);
    wn_text_add(&text, ",%lld,%.6g,%.9g,%.9g,%lld,%.3f", (long long)p->total, p->saving, exp(p->search_loss),
                exp(p->report_loss), (long long)p->evaluations, p->seconds);
    if (c->checked) wn_text_add(&text, ",%lld,%.9g", (long long)p->exact_layer, exp(p->exact_loss));
    if (c->finetune_lr > 0)
      wn_text_add(&text, ",%lld,%.9g,%.9g", (long long)p->tuned, exp(p->untuned_search_loss),
                  exp(p->untuned_report_loss));
    wn_text_add(&text, "\n");
  }
  return save_text(ctx, &text, path);
}

wn_status wn_prune_curve_save_svg(wn_context *ctx, const wn_prune_curve *c, const char *title, const char *path) {
  void *memory;
  WN_TRY(wn_alloc(ctx, "points", 4 * (size_t)c->count * sizeof(double), &memory));
  double *x = memory, *search = x + c->count, *report = search + c->count, *untuned = report + c->count;
  for (int64_t i = 0; i < c->count; i++) { /* ascending: the last step first */
    const wn_prune_point *p = &c->points[c->count - 1 - i];
    x[i] = (double)p->total / (double)c->layers;
    search[i] = exp(p->search_loss);
    report[i] = exp(p->report_loss);
    untuned[i] = exp(p->untuned_report_loss);
  }
  static const char *const names[] = {"search set", "report set", "report set, before its tuning"};
  const wn_plot_series series[] = {{"search set", 0, 0, c->count, x, search},
                                   {"report set", 1, 0, c->count, x, report},
                                   {"report set, before its tuning", 2, 0, c->count, x, untuned}};
  const int lines = c->finetune_lr > 0 ? 3 : 2;
  const wn_plot_level level = {"target (search set)", 1, exp(c->target_loss)};
  /* A target far away would press the lines flat. */
  const bool shown = isfinite(c->target_loss) && c->target_loss < c->points[c->count - 1].search_loss + 1;
  const wn_plot plot = {.title = title,
                        .x_label = "tokens kept a layer, mean",
                        .y_label = "perplexity",
                        .series = series,
                        .series_count = lines,
                        .levels = &level,
                        .level_count = shown,
                        .colours = names,
                        .colour_count = lines};
  const wn_status status = wn_plot_save_svg(ctx, &plot, path);
  wn_free(memory);
  return status;
}

/* ---- comparisons ---- */

static const char *policy_of(const wn_prune_row *row) {
  return row->policy < 0 ? "none" : wn_policy_name(row->policy);
}

wn_status wn_prune_comparison_save_csv(wn_context *ctx, const wn_prune_comparison *c, const char *path) {
  struct wn_text text = {0};
  wn_text_add(&text, "model,policy,searched,tokens_per_layer,budgets,total,saving,loss,perplexity\n");
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_row *r = &c->results[i];
    wn_text_add(&text, "%s,%s,%d,%.6g,", c->names[r->subject], policy_of(r), r->searched, r->per_layer);
    add_tokens(&text, r->tokens, c->layers[r->subject]);
    wn_text_add(&text, ",%lld,%.6g,%.9g,%.9g\n", (long long)r->total, r->saving, r->loss, exp(r->loss));
  }
  return save_text(ctx, &text, path);
}

static json_t *row_json(const wn_prune_comparison *c, const wn_prune_row *r) {
  json_t *tokens = json_array();
  for (int64_t l = 0; tokens && l < c->layers[r->subject]; l++)
    json_array_append_new(tokens, json_integer(r->tokens[l]));
  return json_pack("{s:s, s:s, s:b, s:f, s:o, s:I, s:f, s:f, s:o}", "model", c->names[r->subject], "policy",
                   policy_of(r), "searched", (int)r->searched, "tokens_per_layer", r->per_layer, "tokens", tokens,
                   "total", (json_int_t)r->total, "saving", r->saving, "loss", r->loss, "perplexity",
                   isfinite(exp(r->loss)) ? json_real(exp(r->loss)) : json_null());
}

wn_status wn_prune_comparison_save_json(wn_context *ctx, const wn_prune_comparison *c, const char *path) {
  json_t *results = json_array();
  bool ok = results != NULL;
  for (int64_t i = 0; ok && i < c->count; i++) ok = !json_array_append_new(results, row_json(c, &c->results[i]));
  json_t *j = ok ? json_pack("{s:I, s:I, s:I, s:O}", "context", (json_int_t)c->context, "rows", (json_int_t)c->rows,
                             "counted", (json_int_t)c->counted, "results", results)
                 : NULL;
  json_decref(results);
  if (!j) return wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path);
  const wn_status status = wn_json_save_file(ctx, path, j);
  json_decref(j);
  return status;
}

/* The lines: a subject with a policy, searched or not, each with the subject's unpruned point at the context. */
struct lines {
  wn_plot_series series[256];
  char labels[256][96];
  int count;
  const char *colours[WN_PLOT_COLOURS];
  int colour_of[2][WN_POLICY_MAX], colour_count; /* [searched] */
  char names[WN_PLOT_COLOURS][48];
};

static int colour(struct lines *l, const wn_prune_row *r) {
  int *at = &l->colour_of[r->searched][r->policy];
  if (*at < 0) {
    if (l->colour_count == WN_PLOT_COLOURS) return WN_PLOT_COLOURS - 1;
    *at = l->colour_count++;
    snprintf(l->names[*at], sizeof l->names[*at], "%s%s", policy_of(r), r->searched ? ", searched" : "");
    l->colours[*at] = l->names[*at];
  }
  return *at;
}

static void find_lines(const wn_prune_comparison *c, double *points, struct lines *l) {
  for (int i = 0; i < 2 * WN_POLICY_MAX; i++) l->colour_of[i / WN_POLICY_MAX][i % WN_POLICY_MAX] = -1;
  for (int64_t i = 0, next; i < c->count; i = next) {
    const wn_prune_row *first = &c->results[i];
    next = i + 1;
    if (first->policy < 0) continue;
    while (next < c->count && c->results[next].subject == first->subject && c->results[next].policy == first->policy &&
           c->results[next].searched == first->searched)
      next++;
    if (l->count == (int)(sizeof l->series / sizeof *l->series)) return;
    char *label = l->labels[l->count];
    wn_plot_series *s = &l->series[l->count++];
    snprintf(label, sizeof l->labels[0], "%s, %s%s", c->names[first->subject], policy_of(first),
             first->searched ? ", searched" : "");
    *s = (wn_plot_series){.label = label, .colour = colour(l, first), .style = first->subject % WN_PLOT_STYLES};
    double *x = points + 2 * i, *y = x + (next - i);
    s->x = x, s->y = y, s->count = next - i;
    for (int64_t k = i; k < next; k++) x[k - i] = c->results[k].per_layer, y[k - i] = exp(c->results[k].loss);
    for (int64_t k = 1; k < s->count; k++) /* a short list: sorted by insertion */
      for (int64_t m = k; m > 0 && x[m] < x[m - 1]; m--) {
        const double tx = x[m], ty = y[m];
        x[m] = x[m - 1], x[m - 1] = tx, y[m] = y[m - 1], y[m - 1] = ty;
      }
  }
}

wn_status wn_prune_comparison_save_svg(wn_context *ctx, const wn_prune_comparison *c, const char *title,
                                       const char *path) {
  void *memory, *points;
  wn_plot_level levels[WN_PLOT_STYLES];
  char names[WN_PLOT_STYLES][96];
  WN_TRY(wn_alloc(ctx, "lines", sizeof(struct lines), &memory));
  wn_status status = wn_alloc(ctx, "points", 2 * (size_t)c->count * sizeof(double), &points);
  if (status != WN_OK) {
    wn_free(memory);
    return status;
  }
  struct lines *l = memory;
  find_lines(c, points, l);
  int level_count = 0;
  double lowest = INFINITY;
  for (int64_t i = 0; i < c->count; i++) lowest = fmin(lowest, exp(c->results[i].loss));
  for (int64_t i = 0; i < c->count && level_count < WN_PLOT_STYLES; i++) {
    if (c->results[i].policy >= 0) continue;
    snprintf(names[level_count], sizeof names[0], "%s, unpruned", c->names[c->results[i].subject]);
    levels[level_count] =
        (wn_plot_level){names[level_count], c->results[i].subject % WN_PLOT_STYLES, exp(c->results[i].loss)};
    level_count++;
  }
  const wn_plot plot = {.title = title,
                        .x_label = "tokens kept a layer",
                        .y_label = "perplexity",
                        .series = l->series,
                        .series_count = l->count,
                        .levels = levels,
                        .level_count = level_count,
                        .colours = l->colours,
                        .colour_count = l->colour_count,
                        .styles = c->names,
                        .style_count = c->subjects < WN_PLOT_STYLES ? c->subjects : WN_PLOT_STYLES,
                        .colour_title = "policy",
                        .style_title = "model",
                        .y_limit = LIMIT * lowest};
  status = wn_plot_save_svg(ctx, &plot, path);
  wn_free(points);
  wn_free(memory);
  return status;
}
