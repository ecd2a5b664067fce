/* winnow report: the curves of all runs, over tokens, time and steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "report.h"

struct curve {
  int input; /* in report.inputs */
  wn_train_log log;
};

/* One column of every run. Empty ones are left out; validation has few points, which stand apart in arrays of their
 * own. */
static int add(struct report *r, struct curve *curves, int count, wn_figure *f, size_t column, const char *suffix,
               int dash, wn_figure_series *series, int at) {
  (void)r;
  for (int i = 0; i < count; i++) {
    wn_train_log *log = &curves[i].log;
    const double *y = *(double **)(void *)((char *)log + column);
    int64_t n = 0;
    for (int64_t k = 0; k < log->count; k++) n += isfinite(y[k]);
    if (n == 0) continue;
    double *memory = malloc((size_t)n * 4 * sizeof *memory);
    char *name = malloc(strlen(r->inputs[curves[i].input].name) + strlen(suffix) + 1);
    if (!memory || !name) {
      free(memory);
      free(name);
      return -1;
    }
    static const int again[] = {0, 2, 3}; /* 1 is validation's */
    int64_t m = 0;
    for (int64_t k = 0; k < log->count; k++)
      if (isfinite(y[k])) {
        memory[m] = isfinite(log->tokens[k]) ? log->tokens[k] : NAN;
        memory[n + m] = log->seconds[k];
        memory[2 * n + m] = log->step[k];
        memory[3 * n + m++] = y[k];
      }
    sprintf(name, "%s%s", r->inputs[curves[i].input].name, suffix);
    series[at++] = (wn_figure_series){.name = name,
                                      .count = n,
                                      .x = {memory, memory + n, memory + 2 * n},
                                      .y = memory + 3 * n,
                                      .colour = i % 8,
                                      /* beyond eight runs colours come again: told apart by their dashes */
                                      .dash = dash ? dash : again[i / 8 % 3]};
  }
  f->series = series;
  f->series_count = at;
  return at;
}

static void clear(wn_figure_series *series, int count) {
  for (int i = 0; i < count; i++) {
    free((void *)(uintptr_t)series[i].name);
    free((void *)(uintptr_t)series[i].x[0]);
  }
}

static const wn_figure frame = {
    .axes = 3, .x = {{"tokens", false}, {"seconds", false}, {"step", false}}, .smooth = true};

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

int report_training(struct report *r) {
  struct curve *curves = calloc(REPORT_INPUTS, sizeof *curves);
  wn_figure_series *series = calloc(3 * REPORT_INPUTS, sizeof *series);
  int count = 0, code = curves && series ? 0 : cli_error("out of memory"), n = 0;
  for (int i = 0; !code && i < r->input_count; i++) {
    if (!r->inputs[i].log) continue;
    curves[count].input = i;
    const wn_status status = wn_train_log_load(r->ctx, r->inputs[i].path, &curves[count].log);
    if (status != WN_OK)
      code = cli_fail(r->ctx, status);
    else if (curves[count].log.count > 0)
      count++;
    else
      wn_train_log_clear(&curves[count].log);
  }
  wn_status status = WN_OK;
  if (!code && count > 0) {
    const char *summary_head[] = {"run",
                                  "steps",
                                  "tokens",
                                  "seconds",
                                  "loss, last 50 steps",
                                  "best validation loss",
                                  "perplexity",
                                  "tokens/s, median of steps"};
    status = wn_page_add_section(r->page, "Training");
    /* Losses: training thin of meaning step by step, validation dashed. */
    wn_figure f = frame;
    f.id = "loss";
    f.title = "Loss";
    f.about = "Nats a token. Full lines: the training batch of each step; dashed, with marks: the validation set.";
    if (count > 8)
      f.about =
          "Nats a token. Lines without marks: the training batch of each step, from the ninth run on dashed in the "
          "colours of the first; dashed, with marks: the validation set.";
    f.command = r->command;
    f.y.label = "loss";
    n = add(r, curves, count, &f, offsetof(wn_train_log, loss), "", 0, series, 0);
    if (n >= 0) n = add(r, curves, count, &f, offsetof(wn_train_log, val_loss), ", validation", 1, series, n);
    if (n < 0) code = cli_error("out of memory");
    if (!code && status == WN_OK) status = wn_page_add_figure(r->page, &f);
    clear(series, n < 0 ? 0 : n);
    struct {
      const char *id, *title, *about, *label;
      size_t column;
      bool log;
    } more[] = {
        {"validation", "Perplexity on the validation set", "exp of the validation loss, where it was measured.",
         "perplexity", offsetof(wn_train_log, val_loss), false},
        {"accuracy", "Accuracy on the validation set", "Share of positions whose most likely token is the right one.",
         "accuracy", offsetof(wn_train_log, val_accuracy), false},
        {"learning-rate", "Learning rate", "Of each step.", "learning rate", offsetof(wn_train_log, lr), false},
        {"speed", "Tokens a second", "Of each step, without evaluations.", "tokens/s",
         offsetof(wn_train_log, tokens_per_second), false},
        {"gradient", "Gradient norm", "Before clipping.", "norm", offsetof(wn_train_log, grad_norm), true},
        {"span", "Mean span", "Mean over heads and layers of the learned spans, in tokens.", "tokens",
         offsetof(wn_train_log, span), false},
        {"mem-loss", "Memory loss", "The term of L_mem that the loss adds.", "loss", offsetof(wn_train_log, mem_loss),
         true},
        {"train-budget", "Budget in training", "Mean of the layers' budgets in force.", "tokens",
         offsetof(wn_train_log, budget), false},
    };
    for (size_t k = 0; k < sizeof more / sizeof *more && !code && status == WN_OK; k++) {
      f = frame;
      f.id = more[k].id, f.title = more[k].title, f.about = more[k].about, f.command = r->command;
      f.y = (wn_figure_axis){more[k].label, more[k].log};
      n = add(r, curves, count, &f, more[k].column, "", 0, series, 0);
      bool any = false;
      for (int s = 0; s < n; s++)
        for (int64_t i = 0; i < series[s].count; i++) {
          double *y = (double *)(uintptr_t)series[s].y;
          if (k == 0) y[i] = exp(y[i]);
          any |= y[i] > 0;
        }
      if (n < 0)
        code = cli_error("out of memory");
      else if (n > 0 && any)
        status = wn_page_add_figure(r->page, &f);
      clear(series, n < 0 ? 0 : n);
    }
    char text[REPORT_INPUTS * 8][32];
    const char *cells[REPORT_INPUTS * 8];
    for (int i = 0; i < count; i++) {
      const wn_train_log *log = &curves[i].log;
      double sum = 0, best = INFINITY;
      int64_t last = log->count < 50 ? log->count : 50;
      for (int64_t k = log->count - last; k < log->count; k++) sum += log->loss[k] / (double)last;
      for (int64_t k = 0; k < log->count; k++)
        if (isfinite(log->val_loss[k])) best = fmin(best, log->val_loss[k]);
      double *speeds = malloc((size_t)log->count * sizeof *speeds), median = NAN;
      if (speeds) {
        memcpy(speeds, log->tokens_per_second, (size_t)log->count * sizeof *speeds);
        qsort(speeds, (size_t)log->count, sizeof *speeds, by_size);
        median = speeds[log->count / 2];
        free(speeds);
      }
      const double values[7] = {log->step[log->count - 1],
                                log->tokens[log->count - 1],
                                log->seconds[log->count - 1],
                                sum,
                                best,
                                exp(best),
                                median};
      cells[8 * i] = r->inputs[curves[i].input].name;
      for (int c = 0; c < 7; c++) {
        if (isfinite(values[c])) snprintf(text[8 * i + c], sizeof text[0], "%.7g", values[c]);
        cells[8 * i + c + 1] = isfinite(values[c]) ? text[8 * i + c] : NULL;
      }
    }
    const wn_figure what = {.id = "runs", .title = "Runs", .about = "Each run at its end.", .command = r->command};
    if (!code && status == WN_OK) status = wn_page_add_table(r->page, &what, summary_head, 8, cells, count);
    if (!code && status != WN_OK) code = cli_fail(r->ctx, status);
  }
  for (int i = 0; curves && i < count; i++) wn_train_log_clear(&curves[i].log);
  free(curves);
  free(series);
  return code;
}
