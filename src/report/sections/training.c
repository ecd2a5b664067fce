/* The curves of all runs, over tokens, time and steps, and a table of each run's final numbers. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "report/section.h"

struct training_run {
  const char *name;
  wn_train_log log;
};
struct training_runs {
  struct training_run *run; /* [count] */
  int count;
};

static const double *training_column(const wn_train_log *log, size_t column) {
  return *(double *const *)(const void *)((const char *)log + column);
}

/* Draws one column of every run that has it, with only the points that have it (validation has few). */
static void training_lines(const struct training_runs *runs, struct wn_drawing *d, size_t column, const char *suffix,
                           int dash) {
  static const int again[] = {0, 2, 3}; /* dash 1 is for validation */
  for (int i = 0; i < runs->count; i++) {
    const wn_train_log *log = &runs->run[i].log;
    const double *y = training_column(log, column);
    char name[300];
    int64_t n = 0, m = 0;
    for (int64_t k = 0; k < log->count; k++) n += isfinite(y[k]);
    if (n == 0) continue;
    snprintf(name, sizeof name, "%s%s", runs->run[i].name, suffix);
    /* with more than eight runs colours repeat with other dashes */
    double *memory = wn_drawing_line(d, n, i, dash ? dash : again[i / 8 % 3], name);
    for (int64_t k = 0; memory && k < log->count; k++)
      if (isfinite(y[k])) {
        memory[m] = isfinite(log->tokens[k]) ? log->tokens[k] : NAN;
        memory[n + m] = log->seconds[k];
        memory[2 * n + m] = log->step[k];
        memory[3 * n + m++] = y[k];
      }
  }
}

static void training_begin(struct wn_drawing *d, wn_context *ctx, const char *id, const char *title,
                           const char *about) {
  wn_drawing_begin(d, ctx, id, -1, title, NULL);
  d->figure.about = about;
  d->figure.axes = 3;
  d->figure.x[0].label = "tokens";
  d->figure.x[1].label = "seconds";
  d->figure.x[2].label = "step";
  d->figure.smooth = true;
  d->figure.small = true;
}

static wn_status training_draw_loss(struct wn_report *r, const struct training_runs *runs) {
  struct wn_drawing d;
  training_begin(&d, r->ctx, "loss", "Loss",
                 runs->count > 8
                     ? "Nats per token. Lines without marks: the training batch of each step, from the ninth "
                       "run on dashed in the colours of the first; dashed, with marks: the validation set."
                     : "Nats per token. Solid lines: the training batch of each step; dashed, with marks: the "
                       "validation set.");
  d.figure.y.label = "loss";
  training_lines(runs, &d, offsetof(wn_train_log, loss), "", 0);
  training_lines(runs, &d, offsetof(wn_train_log, val_loss), ", validation", 1);
  return wn_report_add(r, &d);
}

#define FIGURE(id_, title_, label_, column_, ...)                                                                      \
  { .id = (id_), .title = (title_), .label = (label_), .column = offsetof(wn_train_log, column_), .about = __VA_ARGS__ }
static const struct training_figure {
  const char *id, *title, *about, *label;
  size_t column;
  bool log, exponential;
} training_figures[] = {
    FIGURE("validation", "Perplexity on the validation set", "perplexity", val_loss,
           "exp of the validation loss, where it was measured.", .exponential = true),
    FIGURE("accuracy", "Accuracy on the validation set", "accuracy", val_accuracy,
           "Share of positions whose most likely token is the right one."),
    FIGURE("learning-rate", "Learning rate", "learning rate", lr, "Of each step."),
    FIGURE("speed", "Tokens per second", "tokens/s", tokens_per_second, "Speed of each step, without evaluations."),
    FIGURE("gradient", "Gradient norm", "norm", grad_norm, "Before clipping.", .log = true),
    FIGURE("span", "Mean span", "tokens", span, "Mean over heads and layers of the learned spans, in tokens."),
    FIGURE("mem-loss", "Memory losses", "loss", mem_loss, "What L_mem and the losses of gates add to the loss.",
           .log = true),
    FIGURE("train-budget", "Budget in training", "tokens", budget, "Mean of the layers' budgets in force."),
};

/* Draws a figure, unless no run has a value above 0. */
static wn_status training_draw_figure(struct wn_report *r, const struct training_runs *runs,
                                      const struct training_figure *f) {
  struct wn_drawing d;
  bool any = false;
  training_begin(&d, r->ctx, f->id, f->title, f->about);
  d.figure.y = (wn_figure_axis){f->label, f->log};
  training_lines(runs, &d, f->column, "", 0);
  for (int s = 0; s < d.figure.series_count; s++)
    for (int64_t i = 0; i < d.series[s].count; i++) {
      double *y = (double *)(uintptr_t)&d.series[s].y[i];
      if (f->exponential) *y = exp(*y);
      any |= *y > 0;
    }
  if (any || d.status != WN_OK) return wn_report_add(r, &d);
  wn_drawing_clear(&d);
  return WN_OK;
}

static int training_by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

enum { TRAINING_COLUMNS = 9 };

/* The final numbers of a run; NAN: empty. */
static wn_status training_end(wn_context *ctx, const wn_train_log *log, double values[TRAINING_COLUMNS - 1]) {
  const int64_t n = log->count;
  double sum = 0, best = INFINITY, error = NAN;
  int64_t from = n - 1; /* count steps, not lines, since log_every may leave steps out */
  while (from > 0 && log->step[from - 1] > log->step[n - 1] - 50) from--;
  for (int64_t k = from; k < n; k++) sum += log->loss[k] / (double)(n - from);
  for (int64_t k = 0; k < n; k++)
    if (isfinite(log->val_loss[k]) && log->val_loss[k] < best) best = log->val_loss[k], error = log->val_loss_stderr[k];
  double *speeds;
  WN_TRY(WN_ALLOC(ctx, "a run's speeds", n, &speeds));
  memcpy(speeds, log->tokens_per_second, (size_t)n * sizeof *speeds);
  qsort(speeds, (size_t)n, sizeof *speeds, training_by_size);
  const double all[] = {log->step[n - 1], log->tokens[n - 1], log->seconds[n - 1], sum, best, error,
                        exp(best),        speeds[n / 2]};
  memcpy(values, all, sizeof all);
  wn_free(speeds);
  return WN_OK;
}

static wn_status training_draw_ends(struct wn_report *r, const struct training_runs *runs) {
  static const char *const head[TRAINING_COLUMNS] = {"run",
                                                     "steps",
                                                     "tokens",
                                                     "seconds",
                                                     "loss, last 50 steps",
                                                     "best validation loss",
                                                     "its standard error",
                                                     "perplexity",
                                                     "tokens/s, median of steps"};
  struct wn_drawing d;
  wn_drawing_begin(&d, r->ctx, "runs", -1, "Runs", NULL);
  d.figure.about = "Each run at its end. The standard error is over the validation rows, not over seeds.";
  for (int i = 0; d.status == WN_OK && i < runs->count; i++) {
    double values[TRAINING_COLUMNS - 1];
    d.status = training_end(r->ctx, &runs->run[i].log, values);
    wn_drawing_cell(&d, "%s", runs->run[i].name);
    for (int c = 1; d.status == WN_OK && c < TRAINING_COLUMNS; c++) {
      const double v = values[c - 1]; /* counts of tokens may have more than seven digits */
      if (isfinite(v))
        wn_drawing_cell(&d, v == floor(v) && v < 1e15 ? "%.0f" : "%.7g", v);
      else
        wn_drawing_cell(&d, "%s", "");
    }
  }
  return wn_report_add_table(r, &d, head, TRAINING_COLUMNS);
}

/* Loads the logs that have lines. */
static wn_status training_load(struct wn_report *r, struct training_runs *runs) {
  WN_TRY(WN_ALLOC(r->ctx, "runs", r->input_count, &runs->run));
  for (int i = 0; i < r->input_count; i++) {
    if (!r->inputs[i].log) continue;
    struct training_run *run = &runs->run[runs->count];
    run->name = r->inputs[i].name;
    WN_TRY(wn_train_log_load(r->ctx, r->inputs[i].path, &run->log));
    if (run->log.count > 0)
      runs->count++;
    else
      wn_train_log_clear(&run->log);
  }
  return WN_OK;
}

static wn_status training_draw(struct wn_report *r) {
  struct training_runs runs = {0};
  wn_status status = training_load(r, &runs);
  if (status == WN_OK && runs.count > 0) {
    status = training_draw_loss(r, &runs);
    for (size_t k = 0; k < sizeof training_figures / sizeof *training_figures && status == WN_OK; k++)
      status = training_draw_figure(r, &runs, &training_figures[k]);
    if (status == WN_OK) status = training_draw_ends(r, &runs);
  }
  for (int i = 0; i < runs.count; i++) wn_train_log_clear(&runs.run[i].log);
  wn_free(runs.run);
  return status;
}

const struct wn_section wn_section_training = {
    .name = "training", .title = "Training", .needs = WN_NEEDS_RUNS, .draw = training_draw};
