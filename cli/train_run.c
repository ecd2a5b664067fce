/* A training run with progress on the terminal, shared by train and adapt. */
#include "train_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "signals.h"
#include "estimate.h"

struct watch {
  const struct cli_common *common;
  struct cli_progress bar;
  wn_context *ctx;
  wn_train_progress last;
  uint64_t first_tokens; /* tokens trained on before this process */
  double val_loss, val_error, val_accuracy, best_val_loss;
  bool any, evaluated, told;
  struct cli_views *views;
};

static void train_on_progress(void *user, const wn_train_progress *p) {
  struct watch *w = user;
  if (!w->any) {
    w->bar.first = p->step > 0 ? (uint64_t)p->step - 1 : 0;
    w->any = true;
  }
  w->last = *p;
  cli_views_add(w->views, w->ctx, p);
  char extra[160], error[32];
  int n = snprintf(extra, sizeof extra, "loss %.4f", p->loss);
  if (p->evaluated) {
    w->val_loss = p->val_loss;
    w->val_accuracy = p->val_accuracy;
    w->val_error = p->val_loss_rows.error;
    if (!w->evaluated || p->val_loss < w->best_val_loss) w->best_val_loss = p->val_loss;
    w->evaluated = true;
  }
  if (w->evaluated) n += snprintf(extra + n, sizeof extra - (size_t)n, "  val %.4f", w->val_loss);
  snprintf(extra + n, sizeof extra - (size_t)n, "  %s tok/s", cli_count(p->tokens_per_second));
  if (p->evaluated && !w->common->quiet) {
    cli_progress_clear(&w->bar);
    cli_note(w->common,
             "step %" PRId64 "/%" PRId64
             "  loss %.4f  val loss %.4f%s  perplexity %.2f  accuracy %.2f%%  lr %.2e  %s tok/s",
             p->step, p->steps, p->loss, p->val_loss, cli_estimate_error(&p->val_loss_rows, 1, 4, error),
             exp(p->val_loss), 100 * p->val_accuracy, p->lr, cli_count(p->tokens_per_second));
  }
  cli_progress_update(&w->bar, (uint64_t)p->step, (uint64_t)p->steps, extra);
  if (wn_context_cancelled(w->ctx) && !w->told) {
    w->told = true;
    cli_progress_clear(&w->bar);
    cli_note(w->common, "winnow: interrupted; saving (a second interrupt stops at once and loses what is not saved)");
  }
}

static json_t *train_summary(const struct watch *w, const char *out_dir, double seconds) {
  const wn_train_progress *p = &w->last;
  double trained = (double)p->tokens - (double)w->first_tokens;
  json_t *j =
      json_pack("{s:o, s:I, s:I, s:I, s:o, s:f, s:f, s:I}", "out", cli_text(out_dir), "step", (json_int_t)p->step,
                "steps", (json_int_t)p->steps, "tokens", (json_int_t)p->tokens, "loss",
                w->any ? cli_number(p->loss) : json_null(), "seconds", seconds, "tokens_per_second",
                p->seconds > 0 ? trained / p->seconds : 0, "peak_resident_bytes", (json_int_t)cli_peak_resident());
  if (!j) return NULL;
  wn_memory_info memory;
  wn_memory_info_get(&memory);
  json_object_set_new(j, "peak_bytes", json_integer((json_int_t)memory.peak_bytes));
  if (w->evaluated) {
    json_object_set_new(j, "val_loss", json_real(w->val_loss));
    json_object_set_new(j, "val_loss_stderr", cli_number(w->val_error));
    json_object_set_new(j, "val_perplexity", cli_number(exp(w->val_loss)));
    json_object_set_new(j, "val_accuracy", json_real(w->val_accuracy));
    json_object_set_new(j, "best_val_loss", json_real(w->best_val_loss));
  }
  return j;
}

int cli_train_run(const struct cli_common *common, wn_context *ctx, const wn_recipe *given, const char *out,
                  bool resume, struct cli_views *views, const char *verb, const char *done) {
  struct watch watch = {.common = common, .ctx = ctx, .views = views};
  cli_train_saved(out, &watch.last.step, &watch.first_tokens); /* reported if no step is left to do */
  watch.last.steps = watch.last.step, watch.last.tokens = watch.first_tokens;
  /* If the folder cannot be resumed, open no view: the run is refused below. */
  int code = resume && !wn_train_can_resume(out) ? 0 : cli_views_open(views, common, ctx, out, resume);
  if (code) {
    cli_views_close(views);
    return code;
  }
  cli_progress_begin(&watch.bar, common, verb, "steps");
  cli_signals_begin(ctx);
  double start = cli_seconds();
  wn_status status = wn_train_run(ctx, given, out, resume, train_on_progress, &watch);
  double seconds = cli_seconds() - start;
  cli_signals_end();
  cli_progress_end(&watch.bar);
  cli_views_close(views);
  if (status == WN_OK || status == WN_ERR_CANCELLED) {
    const wn_train_progress *p = &watch.last;
    if (common->json)
      code = cli_print_json(train_summary(&watch, out, seconds));
    else if (watch.any)
      cli_note(common, "%s %s: step %" PRId64 "/%" PRId64 ", loss %.4f, %s tokens in %s, peak memory %s",
               status == WN_OK ? done : "saved", out, p->step, p->steps, p->loss, cli_count((double)p->tokens),
               cli_duration(seconds), cli_bytes((double)cli_peak_resident()));
    else if (status == WN_OK)
      cli_note(common, "%s: nothing left to train after step %" PRId64, out, p->step);
    if (status == WN_ERR_CANCELLED) {
      cli_note(common, "winnow: stopped; go on with: winnow %s --resume --out %s", verb, out);
      if (!code) code = CLI_INTERRUPTED;
    }
  } else {
    code = cli_fail(ctx, status);
  }
  return code;
}
