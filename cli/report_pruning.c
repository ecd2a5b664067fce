/* winnow report: budgets by layer, and quality against memory for every policy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "report.h"

/* Of searches: both sets' perplexity along the way, and the budgets at the end. */
static int add_search(struct report *r, const struct report_input *in, int number) {
  wn_prune_curve c;
  struct report_lines l = {.count = 0};
  char id[64], title[400];
  wn_status status = wn_prune_curve_load(r->ctx, in->file, &c);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  const int lines = c.finetune_lr > 0 ? 3 : 2;
  static const char *const names[] = {"search set", "report set", "report set, before its tuning"};
  double *of[3];
  for (int s = 0; s < lines; s++)
    if (!(of[s] = report_line(&l, c.count, s, s == 2, names[s]))) status = WN_ERR_MEMORY;
  double least = INFINITY;
  for (int64_t i = 0; status == WN_OK && i < c.count; i++) {
    const wn_prune_point *p = &c.points[c.count - 1 - i];
    for (int s = 0; s < lines; s++) {
      double *m = of[s];
      m[i] = (double)p->total / (double)c.layers;
      m[c.count + i] = p->saving;
      m[2 * c.count + i] = (double)(c.count - 1 - i);
      m[3 * c.count + i] = exp(s == 2 ? p->untuned_report_loss : s ? p->report_loss : p->search_loss);
      least = fmin(least, m[3 * c.count + i]);
    }
  }
  snprintf(id, sizeof id, "search-%d", number);
  snprintf(title, sizeof title, "Budget search of %.250s: quality against memory", in->name);
  const wn_figure_level target = {"target (search set)", exp(c.target_loss)};
  wn_figure f = {.id = id,
                 .title = title,
                 .about =
                     "Perplexity as budgets shrink, one layer's at a step. The report set is one that the search never "
                     "looked at.",
                 .command = r->command,
                 .axes = 3,
                 .x = {{"tokens kept a layer, mean", true}, {"memory saved, times", true}, {"step", false}},
                 .y = {"perplexity", false},
                 .y_max = 3 * least,
                 .series = l.series,
                 .series_count = l.count,
                 .levels = &target,
                 .level_count = isfinite(c.target_loss) && exp(c.target_loss) < 3 * least};
  if (status == WN_OK) status = wn_page_add_figure(r->page, &f);
  report_lines_clear(&l);
  /* Budgets: at the end, and at the way's half and quarter of the memory. */
  if (status == WN_OK && c.count > 1) {
    const int64_t whole = c.layers * c.context;
    const double parts[] = {0.5, 0.25, 0};
    int64_t seen = -1;
    for (int k = 0; k < 3; k++) {
      int64_t at = c.count - 1;
      for (int64_t i = 0; parts[k] > 0 && i < c.count; i++)
        if ((double)c.points[i].total <= parts[k] * (double)whole) {
          at = i;
          break;
        }
      if (at == seen) continue;
      seen = at;
      char name[100];
      snprintf(name, sizeof name, "step %lld: %.1f times less memory", (long long)at, c.points[at].saving);
      double *m = report_line(&l, c.layers, k, 0, name);
      for (int64_t j = 0; m && j < c.layers; j++) {
        m[j] = (double)j;
        m[3 * c.layers + j] = (double)c.points[at].tokens[j];
      }
    }
    snprintf(id, sizeof id, "budgets-%d", number);
    snprintf(title, sizeof title, "Budgets by layer: %.250s", in->name);
    f = (wn_figure){.id = id,
                    .title = title,
                    .about = "Tokens that each layer keeps, at the search's end and on its way.",
                    .command = r->command,
                    .axes = 1,
                    .x = {{"layer", false}},
                    .y = {"tokens", false},
                    .bars = true,
                    .series = l.series,
                    .series_count = l.count};
    status = wn_page_add_figure(r->page, &f);
    report_lines_clear(&l);
  }
  wn_prune_curve_clear(&c);
  return status == WN_OK ? 0 : status == WN_ERR_MEMORY ? cli_error("out of memory") : cli_fail(r->ctx, status);
}

static int by_tokens(const void *a, const void *b) {
  const wn_prune_row *x = *(const wn_prune_row *const *)a, *y = *(const wn_prune_row *const *)b;
  return x->per_layer < y->per_layer ? -1 : x->per_layer > y->per_layer;
}

/* A line for each model, policy and way of choosing budgets; each ends at the model without budgets. */
static int add_comparison(struct report *r, const struct report_input *in, int number) {
  wn_prune_comparison c;
  struct report_lines *l = calloc(1, sizeof *l);
  wn_status status = wn_prune_comparison_load(r->ctx, in->file, &c);
  if (status != WN_OK || !l) {
    free(l);
    return status != WN_OK ? cli_fail(r->ctx, status) : cli_error("out of memory");
  }
  const wn_prune_row **rows = calloc((size_t)c.count + 1, sizeof *rows);
  double least = INFINITY;
  int colour = 0;
  for (int policy = 0; rows && policy < WN_POLICY_COUNT; policy++)
    for (int searched = 0; searched < 2; searched++) {
      bool used = false;
      for (int s = 0; s < c.subjects; s++) {
        int64_t n = 0, own = 0;
        for (int64_t i = 0; i < c.count; i++) {
          const wn_prune_row *row = &c.results[i];
          if (row->subject != s) continue;
          least = fmin(least, exp(row->loss));
          const bool mine = row->policy == policy && row->searched == (searched != 0);
          own += mine;
          if (mine || row->policy < 0) rows[n++] = row;
        }
        if (!own) continue;
        used = true;
        qsort((void *)(uintptr_t)rows, (size_t)n, sizeof *rows, by_tokens);
        char name[300];
        snprintf(name, sizeof name, "%.200s, %s%s", c.names[s], wn_policy_name((wn_policy)policy),
                 searched ? ", searched" : "");
        double *m = report_line(l, n, colour, s, name);
        for (int64_t i = 0; m && i < n; i++) {
          m[i] = rows[i]->per_layer;
          m[n + i] = rows[i]->saving;
          m[3 * n + i] = exp(rows[i]->loss);
        }
      }
      colour += used;
    }
  char id[64], title[400], about[400];
  snprintf(id, sizeof id, "memory-%d", number);
  snprintf(title, sizeof title, "Quality against memory: %.250s", in->name);
  snprintf(
      about, sizeof about,
      "Perplexity on the same %llu positions under equal budgets a layer, for every policy; a searched line has its "
      "own "
      "budget for each layer. Colours are policies, dashes models. What is more than three times the best is cut off.",
      (unsigned long long)c.counted);
  const wn_figure f = {.id = id,
                       .title = title,
                       .about = about,
                       .command = r->command,
                       .axes = 2,
                       .x = {{"tokens kept a layer, mean", true}, {"memory saved, times", true}},
                       .y = {"perplexity", false},
                       .y_max = 3 * least,
                       .series = l->series,
                       .series_count = l->count};
  if (l->count == REPORT_LINES)
    cli_note(&r->common, "%s: more than %d lines: the figure has the first", in->path, REPORT_LINES);
  if (rows && l->count > 0) status = wn_page_add_figure(r->page, &f);
  report_lines_clear(l);
  free(l);
  free((void *)(uintptr_t)rows);
  wn_prune_comparison_loaded_clear(&c);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

int report_pruning(struct report *r) {
  int code = 0, searches = 0, comparisons = 0;
  for (int i = 0; i < r->input_count; i++) searches += r->inputs[i].search, comparisons += r->inputs[i].compare;
  if (searches + comparisons == 0) return 0;
  const wn_status status = wn_page_add_section(r->page, "Quality against memory");
  if (status != WN_OK) return cli_fail(r->ctx, status);
  int number = 0;
  for (int i = 0; !code && i < r->input_count; i++)
    if (r->inputs[i].compare) code = add_comparison(r, &r->inputs[i], number++);
  number = 0;
  for (int i = 0; !code && i < r->input_count; i++)
    if (r->inputs[i].search) code = add_search(r, &r->inputs[i], number++);
  return code;
}
