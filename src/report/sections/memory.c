/* Quality against memory: comparisons of policies, and budget searches with their budgets by layer. winnow prune saves
 * the same figures as files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "base/number.h"
#include "report/section.h"
#include "winnow/task.h"

/* Perplexities above so many times the smallest are cut off in the figure; the table has them. */
enum { MEMORY_WORST = 3 };

static void memory_begin(struct wn_drawing *d, wn_context *ctx, const char *id, int number, const char *title,
                         const char *name) {
  wn_drawing_begin(d, ctx, id, number, title, name);
  d->figure.axes = 2;
  d->figure.x[0] = (wn_figure_axis){"tokens kept per layer, mean", true};
  d->figure.x[1] = (wn_figure_axis){"memory saved, times", true};
  d->figure.y.label = "perplexity";
}

/* ---- searches ---- */

/* Says what the search's figure shows, with the errors of its last point. */
static void memory_tell_search(const wn_prune_curve *c, char *out, size_t bytes) {
  int n =
      wn_print(out, bytes,
               "Perplexity as budgets shrink, by one layer per step. The search (%lld rows) never uses the report set "
               "(%lld rows).",
               (long long)c->search_rows, (long long)c->report_rows);
  if (c->count < 1) return;
  const wn_prune_point *last = &c->points[c->count - 1];
  const wn_estimate *change = &last->report_change, *saving = &c->report_saving;
  if (isfinite(change->error))
    n += wn_print(
        out + n, bytes - (size_t)n,
        " At its end the report set's loss is %.4f, standard error over rows %.4f; that is %+.4f +- %.4f against "
        "no budgets, paired row by row.",
        last->report_loss, last->report_rows.error, change->value, change->error);
  if (isfinite(saving->error))
    wn_print(out + n, bytes - (size_t)n,
             " At the target on the report set the saving is %.3g; 95%% interval over rows %.3g to %.3g%s.",
             saving->value, saving->low, saving->high, c->report_saving_open > 0.025 ? " or more" : "");
}

/* The perplexity of both sets during the search. */
static void memory_draw_search(struct wn_drawing *d, wn_context *ctx, const wn_prune_curve *c, const char *name,
                               int number) {
  static const char *const names[] = {"search set", "report set", "report set, before its tuning"};
  const int lines = c->finetune_lr > 0 ? 3 : 2;
  double least = INFINITY;
  memory_begin(d, ctx, "search", number, "Budget search", NULL);
  if (name) snprintf(d->title, sizeof d->title, "Budget search of %.250s: quality against memory", name);
  memory_tell_search(c, d->about, sizeof d->about);
  d->figure.axes = 3;
  d->figure.x[2].label = "step";
  for (int s = 0; s < lines; s++) {
    double *m = wn_drawing_line(d, c->count, s, s == 2, names[s]);
    for (int64_t i = 0; m && i < c->count; i++) { /* from the last step on, so that x ascends */
      const wn_prune_point *p = &c->points[c->count - 1 - i];
      m[i] = (double)p->total / (double)c->layers;
      m[c->count + i] = p->saving;
      m[2 * c->count + i] = (double)(c->count - 1 - i);
      m[3 * c->count + i] = exp(s == 2 ? p->untuned_report_loss : s ? p->report_loss : p->search_loss);
      least = fmin(least, m[3 * c->count + i]);
    }
  }
  d->figure.y_max = MEMORY_WORST * least;
  if (isfinite(c->target_loss) && exp(c->target_loss) < MEMORY_WORST * least)
    wn_drawing_level(d, "target (search set)", exp(c->target_loss));
}

/* Budgets by layer at the search's end, and where it first reached a half and a quarter of the memory. */
static void memory_draw_budgets(struct wn_drawing *d, wn_context *ctx, const wn_prune_curve *c, const char *name,
                                int number) {
  const double parts[] = {0.5, 0.25, 0}, whole = (double)(c->layers * c->context);
  int64_t seen = -1;
  wn_drawing_begin(d, ctx, "budgets", number, "Budgets by layer", name);
  d->figure.about = "Tokens that each layer keeps, at the end of the search and during it.";
  d->figure.axes = 1;
  d->figure.x[0].label = "layer";
  d->figure.y.label = "tokens";
  d->figure.bars = true;
  for (int k = 0; k < 3; k++) {
    int64_t at = c->count - 1;
    for (int64_t i = 0; parts[k] > 0 && i < c->count; i++)
      if ((double)c->points[i].total <= parts[k] * whole) {
        at = i;
        break;
      }
    if (at == seen) continue;
    seen = at;
    char step[100];
    wn_print(step, sizeof step, "step %lld: %.1f times less memory", (long long)at, c->points[at].saving);
    double *m = wn_drawing_line(d, c->layers, k, 0, step);
    for (int64_t j = 0; m && j < c->layers; j++) {
      m[j] = (double)j;
      m[3 * c->layers + j] = (double)c->points[at].tokens[j];
    }
  }
}

static wn_status memory_add_search(struct wn_report *r, const struct wn_report_input *in, int number) {
  wn_prune_curve c;
  struct wn_drawing d;
  WN_TRY(wn_prune_curve_load(r->ctx, in->file, &c));
  memory_draw_search(&d, r->ctx, &c, in->name, number);
  wn_status status = wn_report_add(r, &d);
  if (status == WN_OK && c.count > 1) {
    memory_draw_budgets(&d, r->ctx, &c, in->name, number);
    status = wn_report_add(r, &d);
  }
  wn_prune_curve_clear(&c);
  return status;
}

/* ---- comparisons ---- */

static int memory_by_tokens(const void *a, const void *b) {
  const wn_prune_row *x = *(const wn_prune_row *const *)a, *y = *(const wn_prune_row *const *)b;
  return x->per_layer < y->per_layer ? -1 : x->per_layer > y->per_layer;
}

/* The quality of a result: the accuracy of a task, or the perplexity if task is below 0. */
static double memory_quality(const wn_prune_row *row, int task) {
  return task < 0 ? exp(row->loss) : 100 * row->scores[task].accuracy;
}

/* Draws the line of a subject under a policy; it ends at the subject's result without budgets. rows [c->count]:
 * scratch. False: there are no such results. */
static bool memory_draw_line(struct wn_drawing *d, const wn_prune_comparison *c, int task, int subject, int policy,
                             bool searched, int colour, const wn_prune_row **rows) {
  int64_t n = 0, own = 0;
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_row *row = &c->results[i];
    if (row->subject != subject) continue;
    const bool mine = row->policy == policy && row->searched == searched;
    own += mine;
    if (mine || row->policy < 0) rows[n++] = row;
  }
  if (!own) return false;
  qsort((void *)(uintptr_t)rows, (size_t)n, sizeof *rows, memory_by_tokens);
  char name[300];
  snprintf(name, sizeof name, "%.200s, %s%s", c->names[subject], wn_policy_name(policy), searched ? ", searched" : "");
  double *m = wn_drawing_line(d, n, colour, subject, name);
  for (int64_t i = 0; m && i < n; i++) {
    m[i] = rows[i]->per_layer;
    m[n + i] = rows[i]->saving;
    m[3 * n + i] = memory_quality(rows[i], task);
  }
  return true;
}

/* A line for each model, policy and way of choosing budgets; each ends at the model without budgets. */
static void memory_draw_lines(struct wn_drawing *d, wn_context *ctx, const wn_prune_comparison *c, int task) {
  void *rows;
  int colour = 0;
  d->status = wn_alloc(ctx, "results by tokens", (size_t)c->count * sizeof(wn_prune_row *), &rows);
  if (d->status != WN_OK) return;
  for (int policy = 0; policy < wn_policy_count(); policy++)
    for (int searched = 0; searched < 2; searched++) {
      bool used = false;
      for (int s = 0; s < c->subjects; s++)
        used |= memory_draw_line(d, c, task, s, policy, searched != 0, colour, rows);
      colour += used;
    }
  wn_free(rows);
}

static void memory_draw_comparison(struct wn_drawing *d, wn_context *ctx, const wn_prune_comparison *c,
                                   const char *name, int number) {
  double least = INFINITY, error = 0;
  char errors[200];
  for (int64_t i = 0; i < c->count; i++) error = fmax(error, c->results[i].loss_rows.error); /* fmax ignores NAN */
  wn_print(errors, sizeof errors, " The standard error of a loss over the %lld %ss is at most %.2g nats.",
           (long long)c->rows, c->unit, error);
  memory_begin(d, ctx, "memory", number, "Quality against memory", name);
  snprintf(d->about, sizeof d->about,
           "Perplexity on the same %llu positions under equal budgets per layer, for every policy; a searched line has "
           "a separate budget for each layer. Colours are policies, dashes models. Points above three times the best "
           "are cut off.%s",
           (unsigned long long)c->counted, error > 0 ? errors : "");
  memory_draw_lines(d, ctx, c, -1);
  for (int64_t i = 0; i < c->count; i++) least = fmin(least, exp(c->results[i].loss));
  d->figure.y_max = MEMORY_WORST * least;
}

/* The same for a task's accuracy. */
static void memory_draw_task(struct wn_drawing *d, wn_context *ctx, const wn_prune_comparison *c, int task,
                             const char *name, int number) {
  double error = 0;
  char id[64], title[200];
  snprintf(id, sizeof id, "memory-%.40s", c->tasks[task]);
  snprintf(title, sizeof title, "Accuracy against memory, %.100s", c->tasks[task]);
  memory_begin(d, ctx, id, number, title, name);
  d->figure.y.label = "accuracy, %";
  for (int64_t i = 0; i < c->count; i++) error = fmax(error, c->results[i].scores[task].error);
  snprintf(
      d->about, sizeof d->about,
      "Answers to %.100s (%s) under equal budgets per layer, for every policy; the standard error of a point is at "
      "most %.2f. Colours are policies, dashes models.",
      c->tasks[task], wn_task_metric_name(wn_task_chief_metric(wn_task_at(wn_task_find(c->tasks[task])))), 100 * error);
  memory_draw_lines(d, ctx, c, task);
}

/* Adds the cell "MODEL, POLICY, searched" of a line. */
static void memory_name(struct wn_drawing *d, const wn_prune_comparison *c, int subject, int policy, bool searched) {
  wn_drawing_cell(d, "%.60s, %s%s", c->names[subject], policy < 0 ? "no budget" : wn_policy_name(policy),
                  searched ? ", searched" : "");
}

/* The losses with their errors, and their differences from the first model without budgets. */
static wn_status memory_add_differences(struct wn_report *r, const wn_prune_comparison *c, const char *name,
                                        int number) {
  enum { COLUMNS = 8 };
  static const char *const head[COLUMNS] = {"result",     "tokens per layer", "loss",   "standard error",
                                            "difference", "95% from",         "95% to", "verdict"};
  struct wn_drawing d;
  if (!isfinite(c->results[0].loss_rows.error)) return WN_OK; /* an older file, or one row */
  wn_drawing_begin(&d, r->ctx, "differences", number, "Losses and their differences", name);
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_row *row = &c->results[i];
    const double numbers[] = {row->loss, row->loss_rows.error, row->difference.value, row->difference.low,
                              row->difference.high};
    memory_name(&d, c, row->subject, row->policy, row->searched);
    wn_drawing_cell(&d, "%.5g", row->per_layer);
    for (int k = 0; k < 5; k++) wn_drawing_cell(&d, "%.4f", numbers[k]);
    wn_drawing_cell(&d, "%s", i == 0 ? "" : wn_verdict_name(row->verdict));
  }
  wn_print(
      d.about, sizeof d.about,
      "Losses in nats with their standard errors over %lld %ss%s; differences from %.60s without budgets, paired row "
      "by "
      "row, with 95%% intervals. Equal: the interval lies within %g nats; open: it contains 0 and reaches further.",
      (long long)c->rows, c->unit, c->unit[0] == 'b' ? " (consecutive ones count as independent)" : "", c->names[0],
      c->margin);
  return wn_report_add_table(r, &d, head, COLUMNS);
}

/* The memory saved at the quality of the first model without budgets. */
static wn_status memory_add_savings(struct wn_report *r, const wn_prune_comparison *c, const char *name, int number) {
  enum { COLUMNS = 5 };
  static const char *const head[COLUMNS] = {"line", "saving, times", "95% from", "95% to",
                                            "samples beyond the line, %"};
  struct wn_drawing d;
  if (c->saving_count == 0) return WN_OK;
  wn_drawing_begin(&d, r->ctx, "savings", number, "Memory saved at equal quality", name);
  for (int64_t i = 0; i < c->saving_count; i++) {
    const wn_prune_saving *s = &c->savings[i];
    const double numbers[] = {s->saving.value, s->saving.low, s->saving.high, 100 * s->open};
    memory_name(&d, c, s->subject, s->policy, s->searched);
    for (int k = 0; k < 4; k++) wn_drawing_cell(&d, "%.4g", numbers[k]);
  }
  wn_print(
      d.about, sizeof d.about,
      "How many times less memory at the loss of %.60s without budgets, between the measured budgets by a line; 95%% "
      "intervals by a bootstrap over %lld %ss with the budgets held fixed. Samples that the whole line does not pass "
      "that "
      "loss in count with its last saving.",
      c->names[0], (long long)c->rows, c->unit);
  return wn_report_add_table(r, &d, head, COLUMNS);
}

static wn_status memory_add_comparison(struct wn_report *r, const struct wn_report_input *in, int number) {
  wn_prune_comparison c;
  struct wn_drawing d;
  WN_TRY(wn_prune_comparison_load(r->ctx, in->file, &c));
  memory_draw_comparison(&d, r->ctx, &c, in->name, number);
  wn_status status = d.status;
  if (d.figure.series_count > 0)
    status = wn_report_add(r, &d);
  else
    wn_drawing_clear(&d);
  if (status == WN_OK) status = memory_add_differences(r, &c, in->name, number);
  if (status == WN_OK) status = memory_add_savings(r, &c, in->name, number);
  for (int t = 0; t < c.task_count && status == WN_OK; t++) {
    memory_draw_task(&d, r->ctx, &c, t, in->name, number);
    status = d.status;
    if (status == WN_OK && d.figure.series_count > 0)
      status = wn_report_add(r, &d);
    else
      wn_drawing_clear(&d);
  }
  wn_prune_comparison_loaded_clear(&c);
  return status;
}

static wn_status memory_draw(struct wn_report *r) {
  int comparisons = 0, searches = 0;
  for (int i = 0; i < r->input_count; i++)
    if (r->inputs[i].compare) WN_TRY(memory_add_comparison(r, &r->inputs[i], comparisons++));
  for (int i = 0; i < r->input_count; i++)
    if (r->inputs[i].search) WN_TRY(memory_add_search(r, &r->inputs[i], searches++));
  return WN_OK;
}

wn_status wn_prune_curve_save_svg(wn_context *ctx, const wn_prune_curve *curve, const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(curve), WN_POINTER(path));
  struct wn_drawing d;
  memory_draw_search(&d, ctx, curve, NULL, -1);
  return wn_drawing_save_svg(&d, title, path);
}

wn_status wn_prune_comparison_save_svg(wn_context *ctx, const wn_prune_comparison *comparison, const char *title,
                                       const char *path) {
  WN_CHECK_CALL(WN_POINTER(comparison), WN_POINTER(path));
  struct wn_drawing d;
  memory_draw_comparison(&d, ctx, comparison, NULL, -1);
  return wn_drawing_save_svg(&d, title, path);
}

const struct wn_section wn_section_memory = {
    .name = "memory", .title = "Quality against memory", .needs = WN_NEEDS_SEARCHES, .draw = memory_draw};
